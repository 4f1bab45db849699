"""Forms in which every message has a header: gpt-oss's harmony, and Functionary's recipients.

A header says whether what follows is a call, reasoning or content. Headers are markers only in a text that holds a
call, so they come back as `Header` and the caller decides when it knows.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from engines.tool_call_forms import marks
from engines.tool_call_forms.cursor import Block, Cursor, Found
from engines.tool_call_forms.payloads import NAME_LIMIT, arguments_object

_RECIPIENT = rf"to=([^\s<>]{{1,{NAME_LIMIT}}})"
_HARMONY = re.compile(
    rf"(?:<\|start\|>)?(?:assistant)?\s?(?:{_RECIPIENT}\s?)?(?P<opening><\|channel\|>)?"
    rf"(?P<channel>analysis|commentary|final)\s{{0,4}}(?:{_RECIPIENT})?\s{{0,4}}"
    r"(?P<constrain>(?:<\|constrain\|>)?\s?json)?\s{0,4}(?P<message><\|message\|>)?"
)
_MESSAGE_END = re.compile(r"<\|end\|>|<\|call\|>|(?=<\|start\|>)|(?=<\|channel\|>)")
_ARROWS = re.compile(rf">>>[ \t]{{0,2}}([^\s()<>{{}}\[\]]{{1,{NAME_LIMIT}}})\n")
_FUNCTIONARY = re.compile(
    rf"(?:<\|from\|>\s?assistant\s{{0,4}})?<\|recipient\|>\s?([^\s<>]{{1,{NAME_LIMIT}}})\s{{0,4}}<\|content\|>\s?"
)
_PREFIX = "functions."
_REACH = NAME_LIMIT + 64
_CUT_HEADER = ("<|constrain|>json<|message|>", "<|message|>", "<|channel|>commentary")


@dataclass(slots=True)
class Header:
    """Text that is no content in a message with calls: a header, or a whole message of reasoning."""

    end: int


def harmony(cursor: Cursor) -> Block | Header | None:
    """A harmony message, from the first token of its header."""
    unopened = not cursor.looks("<")
    head = cursor.match(_HARMONY, _REACH)
    if head is None:
        return None
    recipient = head[1] or head[4]
    if recipient is not None:
        return _harmony_call(cursor, head, recipient, unopened=unopened)
    if head["message"] is None or head["opening"] is None:
        return None
    if head["channel"] == "analysis":
        end = cursor.search(_MESSAGE_END, cursor.pos)
        cursor.goto(len(cursor.text) if end is None else end.end())
    return Header(cursor.pos)


def _harmony_call(cursor: Cursor, head: re.Match[str], recipient: str, *, unopened: bool) -> Block | None:
    native = not unopened and head["message"] is not None and head["channel"] != "final"
    native = native and recipient.startswith(_PREFIX)
    cursor.space()
    if cursor.take_half(_CUT_HEADER):
        return Block([Found(recipient.removeprefix(_PREFIX), {})], cursor.pos, native=False, complete=False)
    found = arguments_object(cursor)
    if found is None:
        return None
    block = Block([Found(recipient.removeprefix(_PREFIX), found[0])], cursor.pos, native and found[1], found[2])
    if found[2]:
        cursor.space()
        if cursor.take(("<|call|>", "<|end|>")):
            block.end = cursor.pos
    return block


def functionary(cursor: Cursor) -> Block | Header | None:
    """A Functionary message, from the first token of its header."""
    head = cursor.match(_ARROWS if cursor.looks(marks.RECIPIENT) else _FUNCTIONARY, _REACH)
    if head is None:
        return None
    if head[1] == "all":
        return Header(cursor.pos)
    cursor.space()
    found = arguments_object(cursor)
    if found is None:
        return None
    return Block([Found(head[1], found[0])], cursor.pos, found[1], found[2])
