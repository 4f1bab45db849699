"""From a chat's answer to Ollama's, whole or line by line. Pure: the same chunks give the same bytes."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import orjson

from supervisor.gateway.translate.tool_calls import MARK
from supervisor.gateway.translate.usage import tokens

# Puts a piece (text, thinking, calls) in the place where a client of this path looks for it.
Place = Callable[[str, str, list[dict[str, Any]]], dict[str, Any]]
_NANOSECONDS = 1_000_000  # of a millisecond


def in_message(text: str, thinking: str, calls: list[dict[str, Any]]) -> dict[str, Any]:
    """As ``/api/chat`` answers."""
    more: dict[str, Any] = {"thinking": thinking} if thinking else {}
    if calls:
        more["tool_calls"] = calls
    return {"message": {"role": "assistant", "content": text, **more}}


def in_response(text: str, thinking: str, calls: list[dict[str, Any]]) -> dict[str, Any]:
    """As ``/api/generate`` answers, which offers no tools."""
    del calls
    return {"response": text, **({"thinking": thinking} if thinking else {})}


def whole(answer: dict[str, Any], *, place: Place, thinking: bool, load_seconds: Callable[[], float]) -> dict[str, Any]:
    """The whole answer that a whole chat answer, or a text completion, makes."""
    [choice, *_] = answer["choices"]
    said = choice.get("message") or {"content": choice.get("text")}
    thought = (said.get("reasoning_content") or "") if thinking else ""
    calls = [_call(call.get("function") or {}) for call in said.get("tool_calls") or ()]
    made = {**_head(answer), **place(said.get("content") or "", thought, calls)}
    return {**made, **_tail(answer, choice.get("finish_reason"), load_seconds()), **_marked(choice)}


class Lines:
    """Makes the lines, chunk by chunk; calls come whole, in a line of their own before the last.

    Args:
        place: where a piece stands in a line.
        thinking: with the model's reasoning.
        load_seconds: how long the model was waited for.
    """

    __slots__ = ("_calls", "_choice", "_head", "_load_seconds", "_place", "_tail", "_thinking")

    def __init__(self, *, place: Place, thinking: bool, load_seconds: Callable[[], float]) -> None:
        self._place = place
        self._thinking = thinking
        self._load_seconds = load_seconds
        self._head: dict[str, Any] = {}
        self._calls: dict[int, dict[str, Any]] = {}
        self._choice: dict[str, Any] = {}
        self._tail: dict[str, Any] = {}

    def progress(self, report: dict[str, Any]) -> None:
        """Nothing is said of it."""

    def feed(self, chunk: dict[str, Any]) -> bytes:
        """The lines that this chunk makes."""
        if not self._head:
            self._head = _head(chunk)
        self._tail |= {key: chunk[key] for key in ("usage", "timings") if chunk.get(key)}
        made: list[bytes] = []
        for choice in chunk.get("choices") or ():
            delta = choice.get("delta") or {}
            text = delta.get("content") or choice.get("text") or ""
            thought = (delta.get("reasoning_content") or "") if self._thinking else ""
            if text or thought:
                made.append(self._line(text, thought, []))
            for call in delta.get("tool_calls") or ():
                self._collect(call)
            if choice.get("finish_reason"):
                self._choice = choice
        return b"".join(made)

    def end(self) -> bytes:
        """The last lines of an answer that is complete."""
        calls = [_call(function) for _, function in sorted(self._calls.items())]
        before = self._line("", "", calls) if calls else b""
        last = {
            **self._head,
            **self._place("", "", []),
            **_tail(self._tail, self._choice.get("finish_reason"), self._load_seconds()),
            **_marked(self._choice),
        }
        return before + orjson.dumps(last) + b"\n"

    def _line(self, text: str, thinking: str, calls: list[dict[str, Any]]) -> bytes:
        return orjson.dumps({**self._head, **self._place(text, thinking, calls), "done": False}) + b"\n"

    def _collect(self, call: dict[str, Any]) -> None:
        held = self._calls.setdefault(call.get("index") or 0, {"name": "", "arguments": ""})
        function = call.get("function") or {}
        held["name"] = held["name"] or function.get("name") or ""
        held["arguments"] += function.get("arguments") or ""


def _head(answer: dict[str, Any]) -> dict[str, Any]:
    created = answer.get("created")
    moment = datetime.fromtimestamp(created, UTC) if isinstance(created, int | float) else None
    said = moment.isoformat().replace("+00:00", "Z") if moment else None
    return {"model": answer.get("model"), "created_at": said}


def _tail(answer: dict[str, Any], finish: Any, load_seconds: float) -> dict[str, Any]:
    usage, timings = answer.get("usage"), answer.get("timings") or {}
    load = round(load_seconds * 1000 * _NANOSECONDS)
    read, said = (round((timings.get(key) or 0) * _NANOSECONDS) for key in ("prompt_ms", "predicted_ms"))
    return {
        "done": True,
        "done_reason": "length" if finish == "length" else "stop",
        "total_duration": load + read + said,
        "load_duration": load,
        "prompt_eval_count": tokens(usage, "prompt_tokens"),
        "prompt_eval_duration": read,
        "eval_count": tokens(usage, "completion_tokens"),
        "eval_duration": said,
    }


def _marked(choice: dict[str, Any]) -> dict[str, Any]:
    return {MARK: choice[MARK]} if MARK in choice else {}


def _call(function: dict[str, Any]) -> dict[str, Any]:
    """Ollama's arguments are an object; those of a call that was cut are none, and nothing of it may be run."""
    try:
        parsed = orjson.loads(function.get("arguments") or "{}")
    except orjson.JSONDecodeError:
        parsed = None
    return {"function": {"name": function.get("name"), "arguments": parsed if isinstance(parsed, dict) else {}}}
