"""Calls without markers of their own: they count only where they end the message, or are the whole of it.

Each reader takes a cursor at the first character of a line. `Tail` says how far the attempt got: a block if the
message ends there, else how much of the text is now known to be no call.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from engines.tool_call_forms import marks
from engines.tool_call_forms.cursor import Block, Cursor, Found
from engines.tool_call_forms.elements import glm_call
from engines.tool_call_forms.payloads import (
    NAME_LIMIT,
    Payload,
    arguments_object,
    gemma_call,
    json_calls,
    python_call,
    python_calls,
    read,
)
from engines.tool_call_forms.toolbox import Toolbox
from engines.tool_call_forms.values import LOST, Reader
from engines.tool_call_forms.wrapped import mistral_block, token_block

_TURN_ENDS = marks.one_of(marks.END_OF_TURN)
_FIRST_MEMBER = re.compile(r"\s{0,64}\"(\w{0,16})\"\s{0,16}:\s{0,16}(?:\"([^\"\\\n]{0,256})\")?")
_KEYS = {"name", "arguments", "parameters"}
_SHAPES = ({"name", "arguments"}, {"name", "parameters"})
FENCE = re.compile(r"(`{3,64}|~{3,64})[ \t]{0,16}([^\n`]{0,200})(?:\n|\Z)")
_SCHEMA_KEYS = frozenset({"type", "properties"})
CALL_LABELS = {"", "json", "tool_call", "tool_code"}
_ACTION = re.compile(r"Action:\s{0,4}(```(?:json)?\s{0,8})?(?=[\[{])")
_ARGS_NAME = re.compile(rf"([^\s\[\]{{}}()<>]{{1,{NAME_LIMIT}}})\[ARGS\]")
_NAME_LINE = re.compile(rf"([^\s()<>{{}}\[\]]{{1,{NAME_LIMIT}}})[ \t]{{0,4}}\n\s{{0,8}}(?=\{{)")
_PRINTED = re.compile(r"print\(\s{0,8}")
_CLOSERS = marks.one_of(marks.CLOSERS)


@dataclass(slots=True)
class Tail:
    """Outcome of an attempt: the calls, or the end of the text that holds none."""

    block: Block | None
    end: int


def ends_message(cursor: Cursor) -> bool:
    """Passes what may stand behind the last call: white space and end-of-turn tokens."""
    while True:
        cursor.space()
        if cursor.at_end:
            return True
        if cursor.match(_TURN_ENDS) is None:
            return cursor.take_half(marks.END_OF_TURN)


def _known(calls: list[Found], tools: Toolbox) -> bool:
    return bool(calls) and all(call.name in tools for call in calls)


def bare_json(cursor: Cursor, tools: Toolbox) -> Tail:
    """JSON objects with exactly a name and arguments, one or several, or a list of them."""
    start = cursor.pos
    calls = rule_json(cursor, tools)
    if not calls:
        return Tail(None, start)
    block = Block(calls, cursor.pos, native=False)
    if ends_message(cursor):
        block.end = cursor.pos
        return Tail(block, block.end)
    cursor.pos = block.end
    if _closed(cursor):
        block.end = cursor.pos
        return Tail(block, block.end)
    return Tail(None, block.end)


def rule_json(cursor: Cursor, tools: Toolbox) -> list[Found]:
    """Strict JSON that can be nothing but calls of offered tools; empty if any of it is something else."""
    calls: list[Found] = []
    while True:
        before = cursor.pos
        cursor.space()
        if calls and cursor.take((";",)):
            cursor.space()
        if not (cursor.looks("{") or cursor.looks("[")):
            cursor.pos = before
            return calls
        if not _may_be_call(cursor, tools):
            return []
        reader = Reader(cursor.text, cursor.pos)
        value = read(cursor, reader)
        if reader.ended:
            cursor.far = len(cursor.text)
        members = value if isinstance(value, list) else [value]
        if value is LOST or reader.repairs or not members:
            return []
        for member in members:
            call = _exact_call(member, tools)
            if call is None:
                return []
            calls.append(call)


def _may_be_call(cursor: Cursor, tools: Toolbox) -> bool:
    """A look at the first member, so that an answer in JSON is not held back until it ends."""
    before = cursor.pos
    if cursor.take(("[",)):
        cursor.space()
    opened = cursor.take(("{",))
    member = cursor.match(_FIRST_MEMBER) if opened else None
    cursor.pos = before
    if not opened or member is None:
        return False
    return member[1] in _KEYS and (member[1] != "name" or member[2] is None or member[2] in tools)


def _exact_call(member: object, tools: Toolbox) -> Found | None:
    if not isinstance(member, dict) or set(member) not in _SHAPES:
        return None
    arguments = member.get("arguments", member.get("parameters"))
    if not isinstance(arguments, dict) or member["name"] not in tools:
        return None
    if _SCHEMA_KEYS.issubset(arguments) and not tools.declares(member["name"], _SCHEMA_KEYS):
        return None  # the tool's definition, repeated
    return Found(member["name"], arguments)


def fenced(cursor: Cursor, tools: Toolbox) -> Tail:
    """Code fences that hold calls and nothing else, up to the end of the message."""
    start = cursor.pos
    calls: list[Found] = []
    end = start
    while (head := cursor.match(FENCE)) is not None:
        label = head[2].strip().lower()
        found = _inside_fence(cursor, tools, label) if label in CALL_LABELS else []
        cursor.space()
        closed = found and (cursor.take((head[1],)) or cursor.at_end or cursor.take_half((head[1],)))
        if not closed:
            return Tail(None, end)
        calls += found
        end = cursor.pos
        cursor.space()
    cursor.pos = end
    if calls and ends_message(cursor):
        return Tail(Block(calls, cursor.pos, native=False), cursor.pos)
    return Tail(None, end)


def _inside_fence(cursor: Cursor, tools: Toolbox, label: str) -> list[Found]:
    cursor.space()
    if label != "tool_code" or cursor.looks("{"):
        return rule_json(cursor, tools)
    if cursor.looks("["):
        payload = python_calls(cursor)
        return payload.calls if payload and _sound(payload) and _known(payload.calls, tools) else []
    calls: list[Found] = []
    while True:
        cursor.space()
        before = cursor.pos
        printed = cursor.match(_PRINTED)
        payload = python_call(cursor)
        if payload is None or not _sound(payload) or not _known(payload.calls, tools):
            cursor.pos = before
            return calls
        cursor.space()
        if printed and not cursor.take((")",)):
            return []
        calls += payload.calls


def _sound(payload: Payload) -> bool:
    return payload.clean and payload.complete


def prose(cursor: Cursor, tools: Toolbox) -> Tail:
    """Lines of ``name({…})``, ``name(key=value)`` or ``name()``."""
    calls: list[Found] = []
    end = cursor.pos
    while True:
        payload = python_call(cursor)
        if payload is None or not _sound(payload) or payload.kind != "python_call":
            return Tail(None, end)
        if not _known(payload.calls, tools):
            return Tail(None, end)
        calls += payload.calls
        end = cursor.pos
        if ends_message(cursor):
            return Tail(Block(calls, cursor.pos, native=False, prose=True), cursor.pos)
        cursor.pos = end
        cursor.space()
        if "\n" not in cursor.text[end : cursor.pos]:
            return Tail(None, end)


def action(cursor: Cursor) -> Block | None:
    """Command-R's ``Action:`` with a fence that holds a list."""
    head = cursor.match(_ACTION)
    if head is None:
        return None
    payload = json_calls(cursor)
    if payload is None:
        return None
    block = Block(payload.calls, cursor.pos, payload.clean and payload.kind == "list", payload.complete)
    cursor.space()
    closed = head[1] is not None and cursor.take(("```",)) is not None
    if closed or (head[1] and cursor.take_half(("```",))):
        block.end = cursor.pos
    block.native = block.native and closed
    return block


def unmarked(cursor: Cursor, tools: Toolbox, *, whole: bool) -> Tail:
    """Forms whose markers were lost on the way: the whole message, or with a closing marker left behind them."""
    start = cursor.pos
    block = _without_markers(cursor)
    if block is None or not _known(block.calls, tools):
        return Tail(None, start)
    block.native = False
    cursor.pos = block.end
    if cursor.text.endswith(marks.CLOSERS, start, block.end) or _closed(cursor):
        block.end = cursor.pos
    elif not whole or not (cursor.looks(marks.RECIPIENT) or ends_message(cursor)):
        return Tail(None, start)
    else:
        block.end = cursor.pos
    return Tail(block, block.end)


def _closed(cursor: Cursor) -> bool:
    """Passes a closing marker, or half of one, of which the opening one was lost."""
    before = cursor.pos
    cursor.space()
    if cursor.match(_CLOSERS) or cursor.take_half(marks.CLOSERS):
        return True
    cursor.pos = before
    return False


def _without_markers(cursor: Cursor) -> Block | None:
    start = cursor.pos
    if cursor.looks("["):
        payload = python_calls(cursor)
        return Block(payload.calls, cursor.pos, complete=payload.complete) if payload and payload.clean else None
    named = cursor.match(_NAME_LINE)
    if named is not None:
        found = arguments_object(cursor)
        return Block([Found(named[1], found[0])], cursor.pos, complete=found[2]) if found and found[1] else None
    if cursor.match(_ARGS_NAME) is not None:
        cursor.pos = start
        return mistral_block(cursor, native=False)
    if cursor.looks("call:"):
        payload = gemma_call(cursor)
        return Block(payload.calls, cursor.pos, complete=payload.complete) if payload else None
    cursor.pos = start
    return token_block(cursor, None)


def unopened_glm(cursor: Cursor) -> Block | None:
    """GLM's form without its opening tag."""
    payload = glm_call(cursor)
    if payload is None or payload.kind != "glm" or not payload.calls[0].arguments:
        return None
    return Block(payload.calls, cursor.pos, native=False, complete=payload.complete)
