"""Whole answers, for clients that asked for no stream: grown from the same events. Pure."""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence
from typing import Any

from engines.mlx.server.answer import ChoiceAnswer, Delta, chat_logprobs, completion_logprobs, timings, usage
from engines.mlx.server.asked import Asked
from engines.mlx.server.work import Counts, Done, Event, Failed, Piece, Scored


class WholeAnswer:
    """Collects the events of all choices; ``document`` is the answer once ``complete``."""

    def __init__(self, asked: Asked, model: str, choices: Sequence[ChoiceAnswer]) -> None:
        self._asked = asked
        self._model = model
        self._choices = choices
        self._deltas: list[list[Delta]] = [[] for _ in choices]
        self._scores: list[list[Scored]] = [[] for _ in choices]
        self._stops: list[str | None] = [None for _ in choices]
        self._left = len(choices)

    @property
    def complete(self) -> bool:
        """Every choice has ended."""
        return self._left == 0

    def add(self, events: Sequence[tuple[int, Event]]) -> None:
        """Take some events.

        Raises:
            RequestError: one of them is the failure of its choice.
        """
        for index, event in events:
            if isinstance(event, Piece):
                self._deltas[index] += self._choices[index].piece(event)
                self._scores[index] += event.scores
            elif isinstance(event, Done):
                self._deltas[index] += self._choices[index].end(event)
                self._stops[index] = event.stop
                self._left -= 1
            elif isinstance(event, Failed):
                raise event.error

    def document(self) -> dict[str, Any]:
        """The answer."""
        chat = self._asked.chat is not None
        counts = [choice.counts for choice in self._choices if choice.counts is not None]
        return {
            "choices": [self._choice(choice, chat=chat) for choice in self._choices],
            "created": int(time.time()),
            "model": self._model,
            "system_fingerprint": "enginehouse-mlx",
            "object": "chat.completion" if chat else "text_completion",
            "usage": self._usage(counts),
            "id": ("chatcmpl-" if chat else "cmpl-") + secrets.token_hex(16),
            "timings": timings(counts[0]),
        }

    def _usage(self, counts: list[Counts]) -> dict[str, Any]:
        """A completion's prompts are each read for themselves; a chat has one."""
        if self._asked.chat is not None:
            return usage(counts)
        each = counts[:: self._asked.wishes.choices]
        summed = usage(counts)
        prompt = sum(count.prompt for count in each)
        return {**summed, "prompt_tokens": prompt, "total_tokens": prompt + summed["completion_tokens"]}

    def _choice(self, choice: ChoiceAnswer, *, chat: bool) -> dict[str, Any]:
        deltas, scores = self._deltas[choice.index], tuple(self._scores[choice.index])
        wanted = self._asked.wishes.top_logprobs is not None
        stop = self._stops[choice.index]
        ending: dict[str, Any] = {"finish_reason": choice.reason, "index": choice.index}
        if stop is not None:
            ending["stop_reason"] = stop
        if not chat:
            logprobs = completion_logprobs(scores, 0) if wanted else None
            return {"text": "".join(delta["text"] for delta in deltas), "logprobs": logprobs, **ending}
        ending["message"] = _message(deltas)
        return {**ending, "logprobs": chat_logprobs(scores)} if wanted else ending


def _message(deltas: list[Delta]) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": _text(deltas, "content")}
    if thoughts := _text(deltas, "reasoning_content"):
        message["reasoning_content"] = thoughts
    calls: dict[int, dict[str, Any]] = {}
    for delta in deltas:
        for piece in delta.get("tool_calls", ()):
            if "id" in piece:
                call = {key: piece[key] for key in ("id", "type")}
                calls[piece["index"]] = {**call, "function": dict(piece["function"])}
            else:
                calls[piece["index"]]["function"]["arguments"] += piece["function"]["arguments"]
    if calls:
        message["tool_calls"] = [calls[place] for place in sorted(calls)]
    return message


def _text(deltas: list[Delta], key: str) -> str:
    return "".join(delta.get(key) or "" for delta in deltas)
