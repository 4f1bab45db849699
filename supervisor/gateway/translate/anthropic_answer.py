"""From a chat's answer to Anthropic's message, whole or as its events. Pure: the same chunks give the same bytes.

The order of events is Anthropic's: ``message_start``; for each block start, deltas, stop; ``message_delta`` with the
stop reason and the usage; ``message_stop``. They begin with the first content, so that an engine that died before it
can still be replaced.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import orjson

from supervisor.gateway.translate.tool_calls import MARK
from supervisor.gateway.translate.usage import cached_tokens, tokens

_REASONS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use", "content_filter": "refusal"}


def _untimed(_timings: Any) -> dict[str, Any]:
    return {}


def _unknown() -> str | None:
    return None


@dataclass(frozen=True, slots=True)
class Told:
    """What an answer's chunks do not say, or not alone; asked for at its end.

    Attributes:
        timing: what else there is to say in ``usage``, from the engine's timings.
        stopped_by: the stop string that ended it; None: none, or not known.
    """

    timing: Callable[[Any], dict[str, Any]] = _untimed
    stopped_by: Callable[[], str | None] = _unknown

    def ending(self, finish: str | None) -> dict[str, Any]:
        """Why the message ended, in Anthropic's words."""
        word = self.stopped_by() if finish == "stop" else None
        reason = _REASONS.get(finish or "", "end_turn") if word is None else "stop_sequence"
        return {"stop_reason": reason, "stop_sequence": word}


_NOTHING = Told()


def message(answer: dict[str, Any], *, thinking: bool, told: Told = _NOTHING) -> dict[str, Any]:
    """The whole message that a whole chat answer makes; ``thinking`` and ``told`` as ``MessageEvents``."""
    [choice, *_] = answer["choices"]
    said = choice["message"]
    blocks: list[dict[str, Any]] = []
    if thinking and said.get("reasoning_content"):
        blocks.append({"type": "thinking", "thinking": said["reasoning_content"], "signature": ""})
    if said.get("content"):
        blocks.append({"type": "text", "text": said["content"]})
    blocks += [_tool_use(call) for call in said.get("tool_calls") or ()]
    whole = {
        **_head(answer),
        "content": blocks,
        **told.ending(choice.get("finish_reason")),
        "usage": {**_input(answer.get("usage")), **_output(answer.get("usage")), **told.timing(answer.get("timings"))},
    }
    return {**whole, MARK: choice[MARK]} if MARK in choice else whole


class MessageEvents:
    """Makes the events, chunk by chunk.

    Args:
        thinking: with blocks of it.
        told: what the chunks do not say.
    """

    def __init__(self, *, thinking: bool, told: Told = _NOTHING) -> None:
        self._thinking = thinking
        self._told = told
        self._timings: Any = None
        self._started = False
        self._block: str | int | None = None
        self._count = 0
        self._calls: set[int] = set()
        self._finish: str | None = None
        self._mark: Any = None
        self._prompt: dict[str, Any] | None = None
        self._usage: dict[str, Any] | None = None

    def progress(self, report: dict[str, Any]) -> None:
        """The engine says how long the prompt is, before its first content."""
        total, cached = report.get("total"), report.get("cache")
        if isinstance(total, int):
            self._prompt = {"prompt_tokens": total, "prompt_tokens_details": {"cached_tokens": cached}}

    def feed(self, chunk: dict[str, Any]) -> bytes:
        """The events that this chunk makes."""
        made: list[bytes] = []
        if not self._started:
            self._started = True
            made.append(_event("message_start", message=self._start(chunk)))
        self._usage = chunk.get("usage") or self._usage
        self._timings = chunk.get("timings") or self._timings
        for choice in chunk.get("choices") or ():
            delta = choice.get("delta") or {}
            if self._thinking and delta.get("reasoning_content"):
                self._open("thinking", {"type": "thinking", "thinking": "", "signature": ""}, made)
                made.append(self._delta(type="thinking_delta", thinking=delta["reasoning_content"]))
            if delta.get("content"):
                self._open("text", {"type": "text", "text": ""}, made)
                made.append(self._delta(type="text_delta", text=delta["content"]))
            for call in delta.get("tool_calls") or ():
                self._call(call, made)
            self._finish = choice.get("finish_reason") or self._finish
            self._mark = choice.get(MARK) or self._mark
        return b"".join(made)

    def end(self) -> bytes:
        """The last events of a message that is complete."""
        made: list[bytes] = []
        if not self._started:
            made.append(self.feed({}))
        self._close(made)
        delta = self._told.ending(self._finish)
        usage = {**_input(self._usage), **_output(self._usage)} if self._usage else {"output_tokens": 0}
        usage |= self._told.timing(self._timings)
        marked = {MARK: self._mark} if self._mark else {}
        made += [_event("message_delta", delta=delta, usage=usage, **marked), _event("message_stop")]
        return b"".join(made)

    def _start(self, chunk: dict[str, Any]) -> dict[str, Any]:
        usage = {**_input(self._prompt), "output_tokens": 0}
        return {**_head(chunk), "content": [], "stop_reason": None, "usage": usage}

    def _call(self, call: dict[str, Any], made: list[bytes]) -> None:
        at, function = call.get("index") or 0, call.get("function") or {}
        if at not in self._calls:
            self._calls.add(at)
            block: dict[str, Any] = {
                "type": "tool_use",
                "id": call.get("id"),
                "name": function.get("name"),
                "input": {},
            }
            self._open(at, block, made)
        if function.get("arguments"):
            made.append(self._delta(type="input_json_delta", partial_json=function["arguments"]))

    def _open(self, kind: str | int, block: dict[str, Any], made: list[bytes]) -> None:
        """Begin a block, unless one of this kind is open; that of a call has its number for a kind."""
        if self._block == kind:
            return
        self._close(made)
        self._block = kind
        made.append(_event("content_block_start", index=self._count, content_block=block))

    def _close(self, made: list[bytes]) -> None:
        if self._block is not None:
            made.append(_event("content_block_stop", index=self._count))
            self._block = None
            self._count += 1

    def _delta(self, **delta: Any) -> bytes:
        return _event("content_block_delta", index=self._count, delta=delta)


def _head(answer: dict[str, Any]) -> dict[str, Any]:
    known = str(answer.get("id") or "").removeprefix("chatcmpl-")
    return {
        "id": f"msg_{known}",
        "type": "message",
        "role": "assistant",
        "model": answer.get("model"),
        "stop_sequence": None,
    }


def _tool_use(call: dict[str, Any]) -> dict[str, Any]:
    function = call["function"]
    return {"type": "tool_use", "id": call.get("id"), "name": function["name"], "input": _arguments(function)}


def _arguments(function: dict[str, Any]) -> dict[str, Any]:
    """Anthropic's input is an object; a model cut in mid-call leaves what is none, and nothing of it may be run."""
    try:
        parsed = orjson.loads(function.get("arguments") or "{}")
    except orjson.JSONDecodeError:
        return {}
    return parsed if isinstance(parsed, dict) else {}


def _input(usage: Any) -> dict[str, Any]:
    """Anthropic counts what was read from a cache apart from the rest of the input."""
    cached = cached_tokens(usage)
    counted: dict[str, Any] = {"input_tokens": tokens(usage, "prompt_tokens") - cached}
    if cached:
        counted["cache_read_input_tokens"] = cached
    return counted


def _output(usage: Any) -> dict[str, Any]:
    return {"output_tokens": tokens(usage, "completion_tokens")}


def _event(kind: str, **facts: Any) -> bytes:
    return b"event: " + kind.encode() + b"\ndata: " + orjson.dumps({"type": kind, **facts}) + b"\n\n"
