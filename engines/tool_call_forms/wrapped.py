"""Blocks that begin with a marker of their own: wrappers, elements, and the token forms of several families."""

from __future__ import annotations

import re

from engines.tool_call_forms import marks
from engines.tool_call_forms.cursor import Block, Cursor, Found
from engines.tool_call_forms.elements import function_element, glm_call, invoke_element
from engines.tool_call_forms.payloads import (
    NAME_LIMIT,
    Payload,
    arguments_object,
    gemma_call,
    json_calls,
    python_calls,
)

_NATIVE: dict[str, frozenset[str]] = {
    "<tool_call>": frozenset({"object", "list", "qwen", "glm"}),
    "<tool_calls>": frozenset({"list"}),
    "<|tool_call|>": frozenset({"object", "list"}),
    "<function_call>": frozenset({"object"}),
    "<|tool_call_start|>": frozenset({"python_list"}),
    "<|tool_call>": frozenset({"gemma"}),
    "<start_function_call>": frozenset({"gemma"}),
    "<|python_tag|>": frozenset({"object", "python_dot_call"}),
    "functools": frozenset({"list"}),
    "<|START_ACTION|>": frozenset({"list"}),
    "<function_calls>": frozenset({"invoke", "python_call"}),
    "<minimax:tool_call>": frozenset({"invoke"}),
    "<seed:tool_call>": frozenset({"qwen"}),
    "<｜DSML｜function_calls>": frozenset({"invoke"}),  # noqa: RUF001 - the token is written so
    "<TOOLCALL>": frozenset({"list"}),
    "<|tools_prefix|>": frozenset({"list"}),
    "[TOOL_REQUEST]": frozenset({"object"}),
    "<functioncall>": frozenset({"object"}),
}
_OPEN_ENDED = {
    ("<|tool_call|>", "list"),
    ("<tool_call>", "list"),
    ("<function_call>", "object"),
    ("<|python_tag|>", "object"),
    ("<|python_tag|>", "python_dot_call"),
    ("functools", "list"),
}
"""Forms of which no closing marker is known, or not always."""
_SEVERAL = {"invoke", "python_dot_call", "python_call"}
_FENCE = re.compile(r"```[ \t]{0,4}(?:json|tool_call|tool_code)?[ \t]{0,4}\n?")
_FENCE_END = re.compile(r"```")

_MISTRAL_CALL = re.compile(
    rf"([^\s\[\]{{}}()<>]{{1,{NAME_LIMIT}}})\s{{0,4}}(?:\[CALL_ID\]([^\s\[\]]{{1,64}})\s{{0,4}})?(\[ARGS\])?\s{{0,4}}(?=\{{|\Z)"
)
_KIMI_CALL = re.compile(
    rf"(functions\.)?([^\s<>{{}}]{{1,{NAME_LIMIT}}}?)(:\d{{1,9}})?\s{{0,8}}<\|tool_call_argument_begin\|>"
)
_KIMI_NAME = re.compile(rf"functions\.([^\s<>{{}}]{{1,{NAME_LIMIT}}}?):\d{{1,9}}\s{{0,8}}")
_SEPARATOR = marks.one_of(marks.DEEPSEEK_SEPARATOR).pattern
_DEEPSEEK_CALL = re.compile(
    rf"(?:(function)\s{{0,4}}({_SEPARATOR})(?!\s{{0,8}}\{{))?([^\s<>{{}}｜|]{{1,{NAME_LIMIT}}})"  # noqa: RUF001 - token
    rf"(?:\s{{0,4}}({_SEPARATOR}))?\s{{0,8}}(```(?:json)?\s{{0,8}})?(?=[{{`]|\Z)"
)


def marked_block(cursor: Cursor, marker: str) -> Block | None:
    """The block that ``marker``, which was just passed, begins; None if nothing callable follows it."""
    if marker in marks.WRAPPERS:
        return _wrapper(cursor, marker)
    if marker in marks.ELEMENTS:
        payload = function_element(cursor) if marker == "<function=" else invoke_element(cursor)
        if payload is None:
            return None
        native = payload.clean and payload.kind == "function_json"
        return Block(payload.calls, cursor.pos, native, payload.complete)
    if marker == marks.MISTRAL:
        return mistral_block(cursor, native=True)
    return token_block(cursor, marker)


def _wrapper(cursor: Cursor, marker: str) -> Block | None:
    block = Block([], cursor.pos)
    kinds: list[str] = []
    closed = False
    while block.complete:
        payload, tidy = _payload(cursor, marker)
        if payload is None:
            break
        kinds.append(payload.kind)
        block.calls += payload.calls
        block.end = cursor.pos
        block.complete = payload.complete
        block.native = block.native and payload.clean and tidy
        cursor.space()
        if cursor.take((";", ",")):
            block.native = block.native and marker == "<|python_tag|>"
        cursor.space()
        if cursor.take(marks.WRAPPERS[marker]):
            closed = True
            block.end = cursor.pos
            break
        if marker == "functools" or (payload.kind == "list" and marker in {"<|tool_call|>", "<tool_call>"}):
            break
        if marker != "<|python_tag|>" and payload.kind in {"object", "glm"} and cursor.looks(marker):
            break
    if not block.calls:
        return None
    usual = _NATIVE[marker].issuperset(kinds)
    several = len(kinds) == 1 or _SEVERAL.issuperset(kinds) or marker == "<|python_tag|>"
    ended = closed or (marker, kinds[0]) in _OPEN_ENDED
    block.native = block.native and usual and several and ended
    return block


def _payload(cursor: Cursor, marker: str) -> tuple[Payload | None, bool]:
    """The next thing inside a wrapper, and whether it stands there bare."""
    if marker == "functools":
        cursor.space()
        return (json_calls(cursor) if cursor.looks("[") else None), True
    tidy = True
    cursor.space()
    while cursor.take((marker,)) or cursor.match(_FENCE):
        tidy = False
        cursor.space()
    start = cursor.pos
    payload = _shape(cursor)
    if payload is None:
        cursor.pos = start
        return None, tidy
    if not tidy:
        cursor.space()
        cursor.match(_FENCE_END)
    return payload, tidy


def _shape(cursor: Cursor) -> Payload | None:
    start = cursor.pos
    if cursor.take(("<function=",)):
        return function_element(cursor)
    if cursor.take(("<invoke", "<｜DSML｜invoke")):  # noqa: RUF001 - the token is written so
        return invoke_element(cursor)
    if cursor.looks("call:"):
        return gemma_call(cursor)
    if cursor.looks("{"):
        return json_calls(cursor)
    readers = (json_calls, python_calls) if cursor.looks("[") else (python_calls, glm_call)
    for reader in readers:
        cursor.pos = start
        payload = reader(cursor)
        if payload is not None:
            return payload
    return None


def mistral_block(cursor: Cursor, *, native: bool) -> Block | None:
    """From behind ``[TOOL_CALLS]``: a list of objects, or names with ``[ARGS]`` and an object."""
    cursor.space()
    if cursor.looks("[") or cursor.looks("{"):
        payload = json_calls(cursor)
        if payload is None:
            return None
        clean = native and payload.clean and payload.kind == "list"
        return Block(payload.calls, cursor.pos, clean, payload.complete)
    block = Block([], cursor.pos, native)
    while block.complete:
        head = cursor.match(_MISTRAL_CALL)
        if head is None or (head[3] is None and (block.calls or not native or cursor.at_end)):
            break
        found = arguments_object(cursor)
        if found is None:
            break
        block.calls.append(Found(head[1], found[0]))
        block.native = block.native and found[1] and head[3] is not None
        block.complete = found[2]
        block.end = cursor.pos
        cursor.space()
    return block if block.calls else None


def token_block(cursor: Cursor, marker: str | None) -> Block | None:
    """DeepSeek's and Kimi's calls, which share a look-alike; ``marker`` is None where the first one is missing."""
    block = Block([], cursor.pos, native=marker is not None)
    section = marker in marks.DEEPSEEK_SECTION or marker in marks.KIMI_SECTION
    opened = marker is not None and not section
    written = {marker} if marker else set()
    while block.complete:
        cursor.space()
        if not opened:
            opener = cursor.take(marks.DEEPSEEK_CALL)
            block.native = block.native and (opener is not None or bool(block.calls))
            written |= {opener} if opener else set()
            opened = opener is not None
        item = _token_call(cursor, written)
        if item is None:
            break
        block.native = block.native and item.clean and opened
        block.complete = item.complete
        block.calls += item.calls
        block.end = cursor.pos
        cursor.space()
        closer = cursor.take((*marks.DEEPSEEK_CALL_END, marks.KIMI_CALL_END))
        written |= {closer} if closer else set()
        block.native = block.native and closer is not None
        block.end = cursor.pos if closer else block.end
        opened = False
    if not block.calls:
        return None
    _section_end(cursor, block, written, section=section)
    return block


def _section_end(cursor: Cursor, block: Block, written: set[str], *, section: bool) -> None:
    cursor.pos = block.end
    cursor.space()
    closer = cursor.take((*marks.DEEPSEEK_SECTION_END, *marks.KIMI_SECTION_END))
    if closer:
        block.end = cursor.pos
        written.add(closer)
    block.native = block.native and section and closer is not None and _one_spelling(written)


def _one_spelling(written: set[str]) -> bool:
    own = {words[0] for words in (marks.DEEPSEEK_SECTION, marks.DEEPSEEK_SECTION_END, marks.DEEPSEEK_CALL)}
    own |= {marks.DEEPSEEK_CALL_END[0], marks.DEEPSEEK_SEPARATOR[0]}
    kimi = {marks.KIMI_SECTION[0], marks.KIMI_SECTION_END[0], marks.KIMI_CALL, marks.KIMI_CALL_END, marks.KIMI_ARGUMENT}
    return written <= own or written <= kimi


def _token_call(cursor: Cursor, written: set[str]) -> Payload | None:
    start = cursor.pos
    payload = _kimi_call(cursor, written)
    if payload is None:
        cursor.pos = start
        payload = _deepseek_call(cursor, written)
    return payload


def _kimi_call(cursor: Cursor, written: set[str]) -> Payload | None:
    start = cursor.pos
    head = cursor.match(_KIMI_CALL)
    if head is None:
        cursor.pos = start
        named = cursor.match(_KIMI_NAME)
        if named is None or not cursor.take_half((marks.KIMI_ARGUMENT,)):
            return None
        return Payload([Found(named[1], {})], "kimi", clean=False, complete=False)
    cursor.space()
    found = arguments_object(cursor)
    if found is None:
        return None
    written.add(marks.KIMI_ARGUMENT)
    clean = found[1] and head[1] is not None and head[3] is not None
    return Payload([Found(head[2], found[0])], "kimi", clean, found[2])


def _deepseek_call(cursor: Cursor, written: set[str]) -> Payload | None:
    head = cursor.match(_DEEPSEEK_CALL)
    if head is None or not (head[2] or head[4]):
        return None
    if cursor.take_half(("```json\n",)):
        return Payload([Found(head[3], {})], "deepseek", clean=False, complete=False)
    found = arguments_object(cursor)
    if found is None:
        return None
    written.update(mark for mark in (head[2], head[4]) if mark)
    clean = found[1] and (head[5] is not None if head[1] else head[5] is None and head[4] is not None)
    if head[5]:
        cursor.space()
        clean = bool(cursor.take(("```",))) and clean
        cursor.take_half(("```",))
    return Payload([Found(head[3], found[0])], "deepseek", clean, found[2])
