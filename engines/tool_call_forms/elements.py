"""XML-like elements: ``<function=name>``, ``<invoke name="name">``, and GLM's name with keys and values.

The text of an open parameter is data, whatever stands in it: a parameter ends at the closing tag that belongs to it,
and only if there is none, where the next parameter or a closing tag around it says that one was forgotten.
"""

from __future__ import annotations

import re
from typing import Any

from engines.tool_call_forms.cursor import Cursor, Found, pairs
from engines.tool_call_forms.payloads import NAME_LIMIT, Payload, arguments_object

_SPACE_NAMED = r"(?:\w{1,16}:|｜DSML｜)?"  # noqa: RUF001 - the token is written so
_FUNCTION = re.compile(rf"([^\s<>{{}}\"']{{1,{NAME_LIMIT}}})[ \t]{{0,4}}>?")
_INVOKE = re.compile(rf"\s{{0,4}}name\s?=\s?[\"']?([^\s\"'<>]{{1,{NAME_LIMIT}}})[\"']?\s{{0,4}}>")
_KEY_LIMIT = 64
_PARAMETER_TAG = re.compile(rf"<(/?){_SPACE_NAMED}parameter(?:=[^<>]{{0,{NAME_LIMIT}}}|\s[^<>]{{1,{NAME_LIMIT}}})?>")
_PARAMETER_OPEN = re.compile(
    rf"<{_SPACE_NAMED}parameter(?:=|\s{{1,4}}name\s?=\s?)[\"']?([^\"'<>\n]{{1,{_KEY_LIMIT}}}?)[\"']?"
    r"(?:\s{1,4}string=\"\w{1,8}\")?\s{0,4}>"
)
_PARAMETER_CLOSE = re.compile(rf"</{_SPACE_NAMED}parameter>")
_PARAMETER_FORGOTTEN = re.compile(
    rf"\n[ \t]{{0,32}}(?=<{_SPACE_NAMED}parameter[=\s])|</parameter>|</function>|(?=</{_SPACE_NAMED}invoke>)|"
    rf"(?=</{_SPACE_NAMED}(?:tool_call|function_calls)>)"
)
_PARAMETER_BEGINNINGS = ("<parameter=", "<parameter name=")
_FUNCTION_CLOSE = re.compile(r"</function>")
_INVOKE_CLOSE = re.compile(rf"</{_SPACE_NAMED}invoke>")

_GLM_NAME = re.compile(rf"([^\s()<>{{}}\[\]\"'`]{{1,{NAME_LIMIT}}})(\s{{0,16}})")
_GLM_KEY = re.compile(rf"<arg_key>\s{{0,8}}([^<>\n]{{1,{_KEY_LIMIT}}})\s{{0,8}}(</arg_key>)?\s{{0,16}}")
_GLM_VALUE_TAG = re.compile(r"<(/?)arg_value>")
_GLM_FORGOTTEN = re.compile(r"</arg_value>|(?=<arg_key>|</tool_call>)")


def function_element(cursor: Cursor) -> Payload | None:
    """A function element, from behind ``<function=``: parameters or one JSON object inside."""
    head = cursor.match(_FUNCTION)
    if head is None:
        return None
    name, tidy = head[1], head.group().endswith(">")
    if cursor.at_end and not tidy:
        return None
    cursor.space()
    if cursor.looks("{"):
        found = arguments_object(cursor)
        if found is None:
            return None
        payload = Payload([Found(name, found[0])], "function_json", found[1], found[2])
    else:
        body = _parameters(cursor, "qwen", name)
        if body is None:
            return None
        payload = body
    payload.clean = _closed(cursor, _FUNCTION_CLOSE, "</function>") and payload.clean and tidy
    return payload


def invoke_element(cursor: Cursor) -> Payload | None:
    """An invoke element, from behind ``<invoke``."""
    head = cursor.match(_INVOKE, NAME_LIMIT)
    if head is None:
        return None
    payload = _parameters(cursor, "invoke", head[1])
    if payload is not None:
        payload.clean = _closed(cursor, _INVOKE_CLOSE, "</invoke>") and payload.clean
    return payload


def _closed(cursor: Cursor, closing: re.Pattern[str], word: str) -> bool:
    before = cursor.pos
    cursor.space()
    if cursor.match(closing):
        return True
    if not cursor.take_half((word,)):
        cursor.pos = before
    return False


def _parameters(cursor: Cursor, kind: str, name: str) -> Payload | None:
    """Parameter elements up to something else; None if there are none and the element does not end here either."""
    arguments: dict[str, Any] = {}
    payload = Payload([Found(name, arguments, as_text=True)], kind)
    while True:
        before = cursor.pos
        cursor.space()
        head = cursor.match(_PARAMETER_OPEN)
        if head is None:
            break
        value, clean = _parameter_value(cursor)
        payload.clean = payload.clean and clean
        if value is None:
            payload.complete = False
            return payload
        arguments[head[1]] = _without_frame(value) if kind == "qwen" else value
    if cursor.take_half(_PARAMETER_BEGINNINGS) or (_cut_in_tag(cursor)):
        payload.clean = payload.complete = False
    elif cursor.at_end:
        payload.clean = False
        payload.complete = bool(arguments)
    elif not arguments and not cursor.looks("</"):
        return None
    else:
        cursor.pos = before
    return payload


def _cut_in_tag(cursor: Cursor) -> bool:
    """Passes an opening tag that the text ends in."""
    rest = cursor.text[cursor.pos : cursor.pos + NAME_LIMIT]
    if cursor.pos + len(rest) == len(cursor.text) and rest.startswith(_PARAMETER_BEGINNINGS) and "\n" not in rest:
        cursor.goto(len(cursor.text))
        return True
    return False


def _parameter_value(cursor: Cursor) -> tuple[str | None, bool]:
    """Text of the parameter that was opened, and whether it was closed as it should; None if it was cut."""
    start = cursor.pos
    end = pairs(cursor, _PARAMETER_TAG).get(start)
    if end is not None:
        cursor.goto(end)
        cursor.match(_PARAMETER_CLOSE)
        return cursor.text[start:end], True
    return _unpaired(cursor, start, _PARAMETER_FORGOTTEN, "</parameter>")


def _unpaired(cursor: Cursor, start: int, forgotten: re.Pattern[str], closing: str) -> tuple[str | None, bool]:
    """A value without a closing tag of its own."""
    cursor.far = len(cursor.text)
    sign = cursor.search(forgotten, start)
    if sign is not None:
        cursor.goto(sign.end() if sign.group() == closing else sign.start())
        return cursor.text[start : sign.start()], sign.group() == closing
    half = cursor.text.rfind("</", max(start, len(cursor.text) - len(closing)))
    cursor.goto(len(cursor.text))
    if half >= 0 and closing.startswith(cursor.text[half:]):
        return cursor.text[start:half], False
    return None, False


def _without_frame(value: str) -> str:
    """Qwen writes a line break behind the opening tag and before the closing one."""
    return value.removeprefix("\n").removesuffix("\n")


def glm_call(cursor: Cursor) -> Payload | None:
    """A name with ``<arg_key>`` and ``<arg_value>`` elements, or with nothing before the closing tag."""
    head = cursor.match(_GLM_NAME)
    if head is None:
        return None
    if cursor.looks("{"):
        found = arguments_object(cursor)
        return None if found is None else Payload([Found(head[1], found[0])], "name_json", found[1], found[2])
    arguments: dict[str, Any] = {}
    payload = Payload([Found(head[1], arguments, as_text=True)], "glm")
    while payload.complete and (key := cursor.match(_GLM_KEY)):
        value, clean = (None, False) if cursor.take_half(("</arg_key>",)) else _glm_value(cursor)
        payload.clean = payload.clean and clean and key[2] is not None
        if value is None:
            payload.complete = False
        else:
            arguments[key[1].strip()] = value
            cursor.space()
    if payload.complete and cursor.at_end:
        payload.clean, payload.complete = False, bool(arguments)
        return payload if arguments or head[2] else None
    if payload.complete and _glm_cut(cursor):
        payload.clean = payload.complete = False
    ended = arguments or not payload.complete or cursor.looks("</tool_call>") or cursor.take_half(("</tool_call>",))
    return payload if ended else None


def _glm_value(cursor: Cursor) -> tuple[str | None, bool]:
    opened = cursor.take(("<arg_value>",))
    start = cursor.pos
    if opened is None:
        if cursor.take_half(("<arg_value>",)):
            return None, False
        value, _ = _unpaired(cursor, start, _GLM_FORGOTTEN, "</arg_value>")
        return value, False
    end = pairs(cursor, _GLM_VALUE_TAG).get(start)
    if end is not None:
        cursor.goto(end + len("</arg_value>"))
        return cursor.text[start:end], True
    value, clean = _unpaired(cursor, start, _GLM_FORGOTTEN, "</arg_value>")
    return (value.rstrip("\n") if value and not clean else value), clean


def _glm_cut(cursor: Cursor) -> bool:
    """Passes a key that the text ends in."""
    rest = cursor.text[cursor.pos : cursor.pos + NAME_LIMIT]
    inside = rest.startswith("<arg_key>") and "\n" not in rest.strip()
    if cursor.pos + len(rest) == len(cursor.text) and (inside or "<arg_key>".startswith(rest)):
        cursor.goto(len(cursor.text))
        return True
    return False
