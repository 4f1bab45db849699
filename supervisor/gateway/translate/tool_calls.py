"""Tool calls that a model wrote as text and its engine did not parse, given to the client as calls.

Nothing is held back: in a stream the text has passed when its end shows that it was a call, so the calls follow it, in
a chunk of their own before the one that finishes the choice. A call that was cut is never given, since it must not be
run; one that lacks required arguments is given and marked. The marks stand in the choice, as ``enginehouse``.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import Any

import orjson

from engines.tool_call_forms.toolbox import Toolbox, toolbox
from engines.tool_calls import Recovered, recover

MARK = "enginehouse"
# In characters. A call of a longer text is not looked for: it would take the loop's time from everybody else.
_LONGEST_SEARCHED = 2**18


def call_id() -> str:
    """A new id of a call."""
    return f"call_{secrets.token_hex(12)}"


def watches_calls(body: dict[str, Any]) -> bool:
    """Whether calls may stand in the text of the answer to this chat: it offers tools, and none is forbidden."""
    return bool(body.get("tools")) and body.get("tool_choice") != "none" and body.get("parse_tool_calls") is not False


class _Choice:
    """What was seen of one choice."""

    __slots__ = ("arguments", "length", "names", "texts")

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.length = 0
        self.names: dict[int, str] = {}
        self.arguments: dict[int, list[str]] = {}


class CallWatch:
    """Reads the chunks of a streamed chat beside their way to the client.

    Args:
        tools: as in the request.
        new_id: makes the ids of recovered calls.
    """

    def __init__(self, tools: Any, new_id: Callable[[], str] = call_id) -> None:
        self._tools = tools
        self._box = toolbox(tools)
        self._new_id = new_id
        self._choices: dict[int, _Choice] = {}

    def see(self, chunk: dict[str, Any]) -> list[dict[str, Any]] | None:
        """The chunks to send in this one's place; None: it passes as it is.

        Raises:
            TypeError, ValueError, AttributeError, KeyError: it has not the shape of a chunk.
        """
        pieces: list[dict[str, Any]] = []
        changed = False
        for piece in chunk.get("choices") or ():
            choice = self._choices.setdefault(piece.get("index") or 0, _Choice())
            _collect(choice, piece.get("delta") or {})
            ended = self._end(choice, piece) if piece.get("finish_reason") is not None else None
            pieces += [piece] if ended is None else ended
            changed = changed or ended is not None
        if not changed:
            return None
        *before, last = pieces
        return [*({**_bare(chunk), "choices": [piece]} for piece in before), {**chunk, "choices": [last]}]

    def _end(self, choice: _Choice, piece: dict[str, Any]) -> list[dict[str, Any]] | None:
        if choice.names:
            given = [(name, _parsed("".join(choice.arguments[at]))) for at, name in sorted(choice.names.items())]
            marks = _marks_of_given(self._box, given)
            return [{**piece, MARK: {"tool_calls": marks}}] if marks else None
        found = _search("".join(choice.texts), self._tools, choice.length)
        if found is None:
            return None
        calls, marks = _calls_and_marks(self._box, found, self._new_id)
        mark = {MARK: {"tool_calls": marks}}
        if not calls:
            return [{**piece, **mark}]
        numbered = [{"index": at, **call} for at, call in enumerate(calls)]
        delta = {"index": piece.get("index") or 0, "finish_reason": None, "delta": {"tool_calls": numbered}}
        return [delta, {**piece, "finish_reason": "tool_calls", **mark}]


def recover_whole(answer: dict[str, Any], tools: Any, new_id: Callable[[], str] = call_id) -> dict[str, Any]:
    """A whole chat answer with the calls that stood in its text as calls, and the text without them."""
    box = toolbox(tools)
    choices = answer.get("choices")
    if not box.schemas or not isinstance(choices, list):
        return answer
    return {**answer, "choices": [_whole_choice(choice, tools, box, new_id) for choice in choices]}


def _whole_choice(choice: Any, tools: Any, box: Toolbox, new_id: Callable[[], str]) -> Any:
    message = choice.get("message") if isinstance(choice, dict) else None
    if not isinstance(message, dict):
        return choice
    given = message.get("tool_calls")
    if given:
        functions = [call.get("function") or {} for call in given]
        marks = _marks_of_given(box, [(one.get("name"), _parsed(one.get("arguments"))) for one in functions])
        return {**choice, MARK: {"tool_calls": marks}} if marks else choice
    text = message.get("content")
    found = _search(text, tools, len(text)) if isinstance(text, str) else None
    if found is None:
        return choice
    calls, marks = _calls_and_marks(box, found, new_id)
    if not calls:
        return {**choice, MARK: {"tool_calls": marks}}
    called = {**message, "content": found.content or None, "tool_calls": calls}
    return {**choice, "message": called, "finish_reason": "tool_calls", MARK: {"tool_calls": marks}}


def _collect(choice: _Choice, delta: dict[str, Any]) -> None:
    text = delta.get("content")
    if isinstance(text, str) and text:
        choice.length += len(text)
        if choice.length <= _LONGEST_SEARCHED:
            choice.texts.append(text)
    for call in delta.get("tool_calls") or ():
        at, function = call.get("index") or 0, call.get("function") or {}
        choice.names.setdefault(at, function.get("name") or "")
        choice.arguments.setdefault(at, []).append(function.get("arguments") or "")


def _search(text: str, tools: Any, length: int) -> Recovered | None:
    if not text or length > _LONGEST_SEARCHED:
        return None
    found = recover(text, tools)
    return found if found.calls else None


def _calls_and_marks(
    box: Toolbox, found: Recovered, new_id: Callable[[], str]
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The calls that may be run, in OpenAI's form, and what there is to say of each of those that were found."""
    calls, marks = [], []
    for position, call in enumerate(found.calls):
        complete = found.complete or position < len(found.calls) - 1
        mark: dict[str, Any] = {"name": call.name, "provenance": found.provenance, "complete": complete}
        if missing := box.missing(call.name, call.arguments):
            mark["missing_required"] = missing
        if complete:
            mark["id"] = new_id()
            function = {"name": call.name, "arguments": orjson.dumps(call.arguments, default=str).decode()}
            calls.append({"id": mark["id"], "type": "function", "function": function})
        marks.append(mark)
    return calls, marks


def _marks_of_given(box: Toolbox, given: list[tuple[Any, Any]]) -> list[dict[str, Any]]:
    """Marks for calls that the engine itself gave: only those that lack something."""
    marks = []
    for at, (name, arguments) in enumerate(given):
        missing = box.missing(name, arguments) if name in box and isinstance(arguments, dict) else []
        if missing:
            marks.append({"index": at, "name": name, "missing_required": missing})
    return marks


def _parsed(arguments: Any) -> Any:
    if not isinstance(arguments, str):
        return arguments
    try:
        return orjson.loads(arguments or "{}")
    except orjson.JSONDecodeError:
        return None


def _bare(chunk: dict[str, Any]) -> dict[str, Any]:
    """A chunk's own head, without what is said once at the end."""
    return {key: value for key, value in chunk.items() if key not in {"usage", "timings"}}
