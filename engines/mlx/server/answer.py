"""One choice of an answer in the making: from pieces of text to deltas of a chat, or to text of a completion. Pure."""

from __future__ import annotations

import json
import secrets
from typing import Any

from engines.mlx.server.asked import Asked
from engines.mlx.server.reasoning import Kind, Marks, Splitter
from engines.mlx.server.work import Counts, Done, Piece, Scored, TokenScore
from engines.tool_calls import Recovered, Recoverer

Delta = dict[str, Any]


class ChoiceAnswer:
    """Turns the events of one choice into deltas.

    Attributes:
        counts: what it took; None until it has ended.
        reason: why it ended: ``stop``, ``length`` or ``tool_calls``; None until then.
        recovered: the calls in its text; None where no tools were offered, or until it has ended.
    """

    def __init__(self, asked: Asked, index: int, marks: Marks | None, *, thinking: bool) -> None:
        chat = asked.chat
        self.index = index
        self.counts: Counts | None = None
        self.reason: str | None = None
        self.recovered: Recovered | None = None
        self._chat = chat is not None
        self._splitter = Splitter(marks if chat is not None else None, inside=thinking)
        tools = chat.tools.offered if chat is not None else ()
        self._calls = Recoverer(list(tools)) if tools else None
        self._begun = False

    def piece(self, piece: Piece) -> list[Delta]:
        """The deltas that a piece of text makes; for a completion one with ``text``."""
        if not self._chat:
            return [{"text": piece.text}] if piece.text or piece.scores else []
        return self._led(self._deltas(self._splitter.feed(piece.text)))

    def end(self, done: Done) -> list[Delta]:
        """The last deltas, and among them the calls that stood in the text."""
        self.counts, self.reason = done.counts, done.reason
        if not self._chat:
            return []
        deltas = self._deltas(self._splitter.finish())
        if self._calls is not None:
            self.recovered = self._calls.end()
            if self._calls.rest:
                deltas.append({"content": self._calls.rest})
            if self.recovered.calls and self.recovered.complete:
                deltas += _call_deltas(self.recovered)
                self.reason = "tool_calls"
        return self._led(deltas, always=True)

    def _deltas(self, parts: list[tuple[Kind, str]]) -> list[Delta]:
        deltas: list[Delta] = []
        for kind, text in parts:
            if kind == "reasoning":
                deltas.append({"reasoning_content": text})
            elif self._calls is None:
                deltas.append({"content": text})
            elif passed := self._calls.feed(text):
                deltas.append({"content": passed})
        return deltas

    def _led(self, deltas: list[Delta], *, always: bool = False) -> list[Delta]:
        """The first delta of a chat says who speaks."""
        if self._begun or not (deltas or always):
            return deltas
        self._begun = True
        return [{"role": "assistant", "content": None}, *deltas]


def _call_deltas(recovered: Recovered) -> list[Delta]:
    """For each call one delta with its name, and one with its arguments, as clients of streams expect them."""
    deltas: list[Delta] = []
    for place, call in enumerate(recovered.calls):
        head = {"index": place, "id": f"call_{secrets.token_hex(12)}", "type": "function"}
        deltas.append({"tool_calls": [{**head, "function": {"name": call.name, "arguments": ""}}]})
        arguments = json.dumps(call.arguments, ensure_ascii=False)
        deltas.append({"tool_calls": [{"index": place, "function": {"arguments": arguments}}]})
    return deltas


def chat_logprobs(scores: tuple[Scored, ...]) -> dict[str, Any]:
    """Scores in the form of chats."""
    return {"content": [{**_score(one.chosen), "top_logprobs": list(map(_score, one.others))} for one in scores]}


def completion_logprobs(scores: tuple[Scored, ...], offset: int) -> dict[str, Any]:
    """Scores in the form of completions; ``offset`` is where the first token's text begins."""
    offsets = []
    for one in scores:
        offsets.append(offset)
        offset += len(one.chosen.text)
    return {
        "tokens": [one.chosen.text for one in scores],
        "token_logprobs": [one.chosen.logprob for one in scores],
        "top_logprobs": [{other.text: other.logprob for other in one.others} for one in scores],
        "text_offset": offsets,
    }


def _score(score: TokenScore) -> dict[str, Any]:
    return {"id": score.id, "token": score.text, "bytes": list(score.raw), "logprob": score.logprob}


def usage(counts: list[Counts]) -> dict[str, Any]:
    """Tokens of all choices; a prompt that several choices share counts once for each set of equal ones."""
    prompt = counts[0].prompt if counts else 0
    said = sum(count.said for count in counts)
    cached = max((count.cached for count in counts), default=0)
    return {
        "completion_tokens": said,
        "prompt_tokens": prompt,
        "total_tokens": prompt + said,
        "prompt_tokens_details": {"cached_tokens": min(cached, prompt)},
    }


def timings(counts: Counts) -> dict[str, Any]:
    """Speeds of one choice, in milliseconds and tokens per second."""
    read = max(counts.prompt - counts.cached, 0)
    prompt_ms, said_ms = max(counts.prompt_seconds * 1000, 0.001), max(counts.said_seconds * 1000, 0.001)
    return {
        "cache_n": counts.cached,
        "prompt_n": read,
        "prompt_ms": prompt_ms,
        "prompt_per_token_ms": prompt_ms / max(read, 1),
        "prompt_per_second": read * 1000 / prompt_ms,
        "predicted_n": counts.said,
        "predicted_ms": said_ms,
        "predicted_per_token_ms": said_ms / max(counts.said, 1),
        "predicted_per_second": counts.said * 1000 / said_ms,
        **({"draft_n_accepted": counts.drafted} if counts.drafted else {}),
    }
