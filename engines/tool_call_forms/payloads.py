"""What stands between markers: JSON objects, Python calls, Gemma's calls. Elements have a file of their own.

Each reader takes a cursor at the first character. It gives the calls with the cursor behind them, or None with the
cursor anywhere; either way the cursor remembers how far it looked.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from engines.tool_call_forms.cursor import Cursor, Found
from engines.tool_call_forms.values import GEMMA, LOST, PYTHON, Reader, Repair, UnreadableError

NAME_LIMIT = 256
"""Characters that a tool's name may have where it is not known which tools there are."""
_NAME = rf"[^\s()\[\]{{}}<>\"'`,;:=]{{1,{NAME_LIMIT}}}"
_PYTHON_CALL = re.compile(rf"({_NAME}?)(\.call)?[ \t]{{0,4}}\(")
_KEYWORD = re.compile(r"([^\W\d][\w\-]{0,255})[ \t]*=[ \t]*")
_GEMMA_CALL = re.compile(rf"call:[ \t]{{0,4}}({_NAME})[ \t]{{0,4}}(?=\{{)")
_SURPLUS = re.compile(r"(?:\s{0,16}[}\]]){1,8}")
_DOUBLED = re.compile(r"\{\s{0,8}(?=\{)")
_NAME_KEYS = ("name", "tool_name", "function")
_ARGUMENT_KEYS = ("arguments", "parameters", "args", "input")
_CLEAN_KEYS = ({"name", "arguments"}, {"name", "parameters"}, {"tool_name", "parameters"})
_IDS = {"id", "call_id", "tool_call_id"}


@dataclass(slots=True)
class Payload:
    """Calls that were read, the notation they came in, and whether it was kept to.

    Attributes:
        kind: name of the notation, for the table of what is native inside which marker.
        clean: written without any slip.
        complete: nothing of the last call was lost.
    """

    calls: list[Found]
    kind: str
    clean: bool = True
    complete: bool = True


def json_calls(cursor: Cursor) -> Payload | None:
    """One JSON object that names its tool, or a list of such objects, with repairs."""
    doubled = cursor.match(_DOUBLED)
    is_list = cursor.looks("[")
    keep = 2 if is_list else 1
    reader = Reader(cursor.text, cursor.pos, keep)
    value = read(cursor, reader)
    members = value if isinstance(value, list) else [value]
    calls: list[Found] = []
    clean = not (reader.repairs or reader.ended or doubled)
    for at, member in enumerate(members):
        call = _named(member)
        if call is None:
            if reader.ended and calls and at == len(members) - 1:
                break
            return None
        calls.append(call[0])
        clean = clean and call[1]
    if not calls:
        return None
    complete = not reader.ended or (reader.cut_depth < keep and has_arguments(members[-1]))
    if not reader.ended and cursor.match(_SURPLUS):
        clean = False
    return Payload(calls, "list" if is_list else "object", clean, complete)


def python_calls(cursor: Cursor) -> Payload | None:
    """``name(key=value)``, ``name.call(key=value)``, or a bracketed list of the former."""
    if not cursor.take(("[",)):
        return python_call(cursor)
    calls: list[Found] = []
    result = Payload(calls, "python_list")
    while True:
        cursor.space()
        if calls and cursor.take(("]",)):
            return result
        if cursor.at_end:
            result.clean = False
            return result if calls else None
        one = python_call(cursor)
        if one is None:
            if not calls:
                return None
            result.clean = False  # the bracket is missing
            return result
        calls += one.calls
        result.clean, result.complete = result.clean and one.clean, one.complete
        cursor.space()
        cursor.take((",",))


def python_call(cursor: Cursor) -> Payload | None:
    """One call in Python's notation with keywords, or with one object as its only argument."""
    head = cursor.match(_PYTHON_CALL)
    if head is None:
        return None
    reader = Reader(cursor.text, cursor.pos)
    arguments = _python_arguments(cursor, reader)
    if arguments is None:
        return None
    clean = not (reader.repairs - PYTHON or reader.ended)
    kind = "python_dot_call" if head[2] else "python_call"
    return Payload([Found(head[1], arguments)], kind, clean, complete=not reader.ended)


def _python_arguments(cursor: Cursor, reader: Reader) -> dict[str, Any] | None:
    arguments: dict[str, Any] = {}
    cursor.space()
    if cursor.looks("{"):
        reader.pos, reader.keep = cursor.pos, 0
        value = read(cursor, reader)
        if not isinstance(value, dict):
            return None
        arguments = value
    while True:
        cursor.space()
        if cursor.at_end:
            reader.cut_here(0)
        if reader.ended or cursor.take((")",)):
            return arguments
        keyword = cursor.match(_KEYWORD)
        if keyword is None:
            return _broken_off(cursor, reader, arguments)
        reader.pos = cursor.pos
        value = read(cursor, reader)
        if value is LOST:
            return arguments if _was_cut(reader) else None
        arguments[keyword[1]] = value
        cursor.space()
        cursor.take((",",))


def _was_cut(reader: Reader) -> bool:
    return reader.ended


def _broken_off(cursor: Cursor, reader: Reader, arguments: dict[str, Any]) -> dict[str, Any] | None:
    """Arguments that a marker or half a keyword ends instead of a parenthesis; None if it is something else."""
    rest = cursor.text[cursor.pos : cursor.pos + 64]
    if rest.isidentifier() and cursor.pos + len(rest) == len(cursor.text):
        cursor.goto(len(cursor.text))
        reader.cut_here(0)
        return arguments
    reader.pos = cursor.pos
    if arguments and reader.stops_here():
        reader.repairs.add(Repair.CLOSING)
        return arguments
    return None


def gemma_call(cursor: Cursor) -> Payload | None:
    """``call:name{key:value}`` with strings between tokens."""
    head = cursor.match(_GEMMA_CALL)
    if head is None:
        return None
    reader = Reader(cursor.text, cursor.pos, keep=0)
    arguments = read(cursor, reader)
    if not isinstance(arguments, dict):
        return None
    clean = not (reader.repairs - GEMMA or reader.quoted or reader.ended)
    return Payload([Found(head[1], arguments)], "gemma", clean, complete=not reader.ended)


def arguments_object(cursor: Cursor) -> tuple[dict[str, Any], bool, bool] | None:
    """A JSON object that holds arguments alone: the arguments, whether it is clean, and whether it is complete."""
    if cursor.at_end:
        return {}, False, False
    if not cursor.looks("{"):
        return None
    reader = Reader(cursor.text, cursor.pos, keep=0)
    arguments = read(cursor, reader)
    if not isinstance(arguments, dict):
        return None
    clean = not (reader.repairs or reader.ended)
    if not reader.ended and cursor.match(_SURPLUS):
        clean = False
    return arguments, clean, not reader.ended


def read(cursor: Cursor, reader: Reader) -> Any:
    """The reader's value with the cursor behind it; ``LOST`` if it is none or does not end."""
    try:
        value = reader.value()
    except UnreadableError:
        value = LOST
        reader.ended = False
    cursor.goto(reader.pos)
    return value


def has_arguments(member: object) -> bool:
    """Whether an object that names a tool also says with what."""
    return isinstance(member, Mapping) and any(key in member for key in (*_ARGUMENT_KEYS, "function"))


def _named(member: object) -> tuple[Found, bool] | None:
    """The call that an object stands for, and whether it has exactly the usual keys."""
    if not isinstance(member, dict):
        return None
    inner = member.get("function")
    if isinstance(inner, dict):
        call = _named(inner)
        return None if call is None else (call[0], False)
    name = next((member[key] for key in _NAME_KEYS if isinstance(member.get(key), str)), None)
    if name is None:
        return _single_key(member)
    written = next((member[key] for key in _ARGUMENT_KEYS if key in member), None)
    clean = set(member) - _IDS in _CLEAN_KEYS and isinstance(written, dict)
    if isinstance(written, str):
        written = _arguments_in_string(written)
    if written is None:
        written = {}
    return (Found(name, written), clean) if isinstance(written, dict) else None


def _single_key(member: dict[str, Any]) -> tuple[Found, bool] | None:
    """``{"name": {…arguments…}}`` with the tool's name as the only key."""
    if len(member) != 1:
        return None
    name, arguments = next(iter(member.items()))
    return (Found(name, arguments), False) if isinstance(arguments, dict) else None


def _arguments_in_string(text: str) -> Any:
    reader = Reader(text, keep=-1)
    if not reader.space():
        return {}
    try:
        value = reader.value()
    except UnreadableError:
        return text
    return text if reader.ended or reader.space() else value
