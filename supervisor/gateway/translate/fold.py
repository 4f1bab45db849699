"""Folds the chunks of a streamed answer into the whole answer that the engine would have given."""

from __future__ import annotations

from typing import Any

# Said once for the whole answer; everything else at the top of a chunk belongs to the choice that it ends.
_HEAD = ("id", "created", "model", "system_fingerprint")
_NOT_TAIL = frozenset({*_HEAD, "object", "choices", "prompt_progress"})


class _Text(list[str]):
    """A string that grows piece by piece; joined once, at the end."""


class Fold:
    """One answer, grown chunk by chunk; the same for chat and text completions.

    Args:
        kind: the whole answer's ``object``: ``chat.completion`` or ``text_completion``.
        prefix: text that every choice begins with, and that the chunks leave out.
    """

    __slots__ = ("_choices", "_head", "_kind", "_owner", "_prefix", "_tails")

    def __init__(self, kind: str, prefix: str = "") -> None:
        self._kind = kind
        self._prefix = prefix
        self._head: dict[str, Any] = {}
        self._choices: dict[int, dict[str, Any]] = {}
        self._tails: dict[int, dict[str, Any]] = {}
        self._owner = 0

    def feed(self, chunk: dict[str, Any]) -> None:
        """Add one chunk, as parsed from the data of a frame.

        Raises:
            TypeError, ValueError, AttributeError, KeyError: it has not the shape of a chunk.
        """
        for key in _HEAD:
            if key in chunk:
                self._head.setdefault(key, chunk[key])
        for piece in chunk.get("choices") or ():
            self._owner = index = piece.get("index") or 0
            _add_choice(self._choices.setdefault(index, {}), piece)
        # Usage and timings come per choice, with its end or right after it.
        tail = {key: value for key, value in chunk.items() if key not in _NOT_TAIL}
        if tail:
            self._tails.setdefault(self._owner, {}).update(tail)

    def result(self) -> dict[str, Any]:
        """The whole answer. As in llama-server's own, usage and timings are those of the first choice."""
        tail = self._tails[min(self._tails)] if self._tails else {}
        choices = [_finished(index, self._choices[index], self._prefix) for index in sorted(self._choices)]
        return {**self._head, "object": self._kind, "choices": choices, **tail}


def _add_choice(choice: dict[str, Any], piece: dict[str, Any]) -> None:
    for key, value in piece.items():
        if key == "delta":
            _add_delta(choice.setdefault("message", {}), value)
        elif key == "text":
            choice.setdefault("text", _Text()).append(value)
        elif key == "logprobs" and isinstance(value, dict):
            _add_logprobs(choice, value)
        elif value is not None or key not in choice:
            choice[key] = value


def _add_delta(message: dict[str, Any], delta: dict[str, Any]) -> None:
    for key, value in delta.items():
        if key == "tool_calls":
            calls = message.setdefault("tool_calls", {})
            for piece in value or ():
                _add_call(calls.setdefault(piece.get("index") or 0, {}), piece)
        elif isinstance(value, str) and key != "role":
            _grow(message, key, value)
        elif value is not None or key not in message:
            message[key] = value


def _add_call(call: dict[str, Any], piece: dict[str, Any]) -> None:
    for key, value in piece.items():
        if key == "function":
            function = call.setdefault("function", {})
            for name, part in value.items():
                if name == "arguments" and isinstance(part, str):
                    _grow(function, name, part)
                elif part is not None:
                    function[name] = part
        elif key != "index" and value is not None:
            call[key] = value


def _grow(owner: dict[str, Any], key: str, piece: str) -> None:
    held = owner.get(key)
    if isinstance(held, _Text):
        held.append(piece)
    else:
        owner[key] = _Text([piece])


def _add_logprobs(choice: dict[str, Any], piece: dict[str, Any]) -> None:
    grown = choice.get("logprobs") or {}
    choice["logprobs"] = grown
    for key, value in piece.items():
        if isinstance(value, list) and isinstance(grown.get(key), list):
            grown[key].extend(value)
        elif value is not None or key not in grown:
            grown[key] = list(value) if isinstance(value, list) else value


def _joined(value: Any) -> Any:
    """The value with every grown text joined."""
    if isinstance(value, _Text):
        return "".join(value)
    if isinstance(value, dict):
        return {key: _joined(part) for key, part in value.items()}
    return value


def _finished(index: int, choice: dict[str, Any], prefix: str) -> dict[str, Any]:
    whole = {"finish_reason": None, **_joined(choice), "index": index}
    _cut_withheld(whole)
    if "message" in whole:
        message = {"role": "assistant", **whole["message"]}
        message["content"] = prefix + (message.get("content") or "")
        calls = message.pop("tool_calls", None)
        if calls:
            message["tool_calls"] = [calls[number] for number in sorted(calls)]
        whole["message"] = message
    return whole


def _cut_withheld(whole: dict[str, Any]) -> None:
    """Drop the logprobs of tokens that a stop string took back.

    llama-server streams them as empty tokens without bytes when it stops at a string of several tokens; its whole
    answer leaves them out.
    """
    logprobs = whole.get("logprobs")
    content = logprobs.get("content") if isinstance(logprobs, dict) else None
    if whole["finish_reason"] != "stop" or not isinstance(content, list):
        return
    empty = (place for place, entry in enumerate(content) if entry.get("token") == "" and not entry.get("bytes"))
    first = next(empty, None)
    if first is not None:
        del content[first:]
