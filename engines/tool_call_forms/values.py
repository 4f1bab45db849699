"""Reads one JSON-like value out of text that a model wrote: strictly where it can, with repairs where it must.

One reader serves JSON, Python literals and Gemma's notation, since models mix them. Every departure from JSON is noted
in ``Reader.repairs``, so that the caller can tell a clean value from a mended one. Reading is linear in the text.
"""

from __future__ import annotations

import re
from enum import Enum
from typing import Any, Final

MAX_DEPTH = 100
"""Containers inside each other; deeper text is nobody's arguments, and recursion has its price."""


class Lost(Enum):
    """The value that a cut text began and did not end."""

    LOST = "lost"


LOST: Final = Lost.LOST


class UnreadableError(Exception):
    """The text at this place is no value in any of the notations."""


class Repair(Enum):
    """A departure from JSON that was read anyway."""

    QUOTES = "quotes"
    LITERAL = "literal"
    COMMA = "comma"
    NEWLINE = "newline"
    ESCAPE = "escape"
    BARE_KEY = "bare_key"
    TOKEN_STRING = "token_string"  # noqa: S105 - the name of a repair, no secret
    CLOSING = "closing"


PYTHON = frozenset({Repair.QUOTES, Repair.LITERAL, Repair.COMMA, Repair.ESCAPE})
"""What is no repair in Python."""
GEMMA = frozenset({Repair.BARE_KEY, Repair.TOKEN_STRING})
"""What is no repair in Gemma's notation."""

_SPACE = re.compile(r"\s*")
_NUMBER = re.compile(r"-?(?:0|[1-9]\d*)(\.\d+)?([eE][+-]?\d+)?", re.ASCII)
_WORD = re.compile(r"[A-Za-z]+")
_KEY = re.compile(r"[^\W\d][\w.\-]*")
_PLAIN = {'"': re.compile(r'[^"\\\x00-\x1f]*'), "'": re.compile(r"[^'\\\x00-\x1f]*")}
_STRING_TOKENS = ("<escape>", '<|"|>')
_STOP = re.compile(r"</|<\||<｜|<end_|<tool_call|<invoke|<function|\[/?TOOL|\[END_TOOL|```|;|>>>")  # noqa: RUF001 - token
_LITERALS: dict[str, tuple[bool | None, bool]] = {
    "true": (True, False),
    "false": (False, False),
    "null": (None, False),
    "True": (True, True),
    "False": (False, True),
    "None": (None, True),
}
_ESCAPES = {
    '"': '"',
    "\\": "\\",
    "/": "/",
    "b": "\b",
    "f": "\f",
    "n": "\n",
    "r": "\r",
    "t": "\t",
}
_CODE_POINT = {"u": re.compile(r"[0-9a-fA-F]{4}"), "x": re.compile(r"[0-9a-fA-F]{2}")}
_SURROGATE = re.compile("[\ud800-\udfff]")


class Reader:
    """Reads values of ``text`` from ``pos`` on.

    Attributes:
        pos: where the next value is read; after an error, where it was met.
        keep: depth of the innermost container whose members are kept when the text is cut inside it; what is cut
            deeper down is lost as a whole.
        repairs: departures from JSON so far.
        ended: the text ended before the value did.
        quoted: a string stood between quotation marks.
        cut_depth: depth of the innermost container that the end of the text left open; -1 for none.
    """

    __slots__ = ("cut_depth", "ended", "keep", "pos", "quoted", "repairs", "text")

    def __init__(self, text: str, pos: int = 0, keep: int = -1) -> None:
        self.text = text
        self.pos = pos
        self.keep = keep
        self.repairs: set[Repair] = set()
        self.ended = False
        self.quoted = False
        self.cut_depth = -1

    def space(self) -> str:
        """Skips white space and gives the character after it; empty at the end."""
        match = _SPACE.match(self.text, self.pos)
        assert match is not None
        self.pos = match.end()
        return self.text[self.pos : self.pos + 1]

    def value(self, depth: int = 0) -> Any:
        """The next value, or ``LOST`` if the text ends inside it.

        Raises:
            UnreadableError: there is none.
        """
        char = self.space()
        if not char:
            return self._lose(depth - 1)
        if depth > MAX_DEPTH:
            raise UnreadableError
        if char == "{":
            return self._object(depth)
        if char == "[":
            return self._array(depth)
        if char in _PLAIN:
            return self._string(char, depth)
        if char == "<":
            return self._token_string(depth)
        return self._scalar(depth)

    def cut_here(self, depth: int) -> None:
        """Notes that the text ends inside the container at ``depth``."""
        self.ended = True
        self.cut_depth = max(self.cut_depth, depth)

    def stops_here(self) -> bool:
        """Whether a marker begins here that ends whatever is open."""
        return _STOP.match(self.text, self.pos) is not None

    def _lose(self, depth: int) -> Lost:
        self.cut_here(depth)
        self.pos = len(self.text)
        return LOST

    def _object(self, depth: int) -> dict[str, Any] | Lost:
        self.pos += 1
        result: dict[str, Any] = {}
        while True:
            char = self.space()
            if char == "}":
                self.pos += 1
                return result
            if not char:
                self.cut_here(depth)
                break
            if char == "]" or self.stops_here():
                self.repairs.add(Repair.CLOSING)
                return result
            key = self._key(char, depth)
            if key is LOST:
                break
            self._colon(depth)
            member = LOST if self.ended else self.value(depth + 1)
            if member is not LOST:
                result[key] = member
            if self.ended:
                break
            self._separator("}", depth)
        return result if depth <= self.keep else LOST

    def _array(self, depth: int) -> list[Any] | Lost:
        self.pos += 1
        result: list[Any] = []
        while True:
            char = self.space()
            if char == "]":
                self.pos += 1
                return result
            if not char:
                self.cut_here(depth)
                break
            if char == "}" or self.stops_here_in_array():
                self.repairs.add(Repair.CLOSING)
                return result
            member = self.value(depth + 1)
            if member is not LOST:
                result.append(member)
            if self.ended:
                break
            self._separator("]", depth)
        return result if depth <= self.keep else LOST

    def stops_here_in_array(self) -> bool:
        """As `stops_here`, but Gemma's strings begin like a marker."""
        return self.stops_here() and not self.text.startswith(_STRING_TOKENS, self.pos)

    def _key(self, char: str, depth: int) -> Any:
        if char in _PLAIN:
            return self._string(char, depth + 1)
        if self.text.startswith(_STRING_TOKENS, self.pos):
            return self._token_string(depth + 1)
        match = _KEY.match(self.text, self.pos)
        if match is None:
            raise UnreadableError
        self.pos = match.end()
        if self.pos == len(self.text):
            return self._lose(depth)
        self.repairs.add(Repair.BARE_KEY)
        return match.group()

    def _colon(self, depth: int) -> None:
        char = self.space()
        if not char:
            self.cut_here(depth)
        elif char == ":":
            self.pos += 1
        else:
            raise UnreadableError

    def _separator(self, closing: str, depth: int) -> None:
        """Passes the comma after a member; leaves everything that may end the container to its loop."""
        char = self.space()
        if char == ",":
            self.pos += 1
            if self.space() == closing:
                self.repairs.add(Repair.COMMA)
        elif not char:
            self.cut_here(depth)
        elif char not in "]}" and not self.stops_here():
            raise UnreadableError

    def _string(self, quote: str, depth: int) -> str | Lost:
        self.quoted = True
        if quote == "'":
            self.repairs.add(Repair.QUOTES)
        text, pos, plain = self.text, self.pos + 1, _PLAIN[quote]
        parts: list[str] = []
        while True:
            match = plain.match(text, pos)
            assert match is not None
            parts.append(match.group())
            pos = match.end()
            char = text[pos : pos + 1]
            if char == quote:
                self.pos = pos + 1
                return whole_pairs("".join(parts))
            if not char:
                return self._lose(depth - 1)
            if char == "\\":
                part, pos = self._escape(pos + 1, quote)
                parts.append(part)
            else:  # a control character as it stands
                self.repairs.add(Repair.NEWLINE)
                parts.append(char)
                pos += 1

    def _escape(self, pos: int, quote: str) -> tuple[str, int]:
        char = self.text[pos : pos + 1]
        if char in _ESCAPES:
            return _ESCAPES[char], pos + 1
        code = _CODE_POINT[char].match(self.text, pos + 1) if char in _CODE_POINT else None
        if code is not None:
            if char == "x":
                self.repairs.add(Repair.ESCAPE)
            return chr(int(code.group(), 16)), code.end()
        self.repairs.add(Repair.ESCAPE)
        if char == quote:
            return quote, pos + 1
        return ("", pos + 1) if char == "\n" else ("\\", pos)

    def _token_string(self, depth: int) -> str | Lost:
        for token in _STRING_TOKENS:
            if self.text.startswith(token, self.pos):
                self.repairs.add(Repair.TOKEN_STRING)
                start = self.pos + len(token)
                end = self.text.find(token, start)
                if end < 0:
                    return self._lose(depth - 1)
                self.pos = end + len(token)
                return self.text[start:end]
            if token.startswith(self.text[self.pos :]):
                return self._lose(depth - 1)
        raise UnreadableError

    def _scalar(self, depth: int) -> Any:
        match = _NUMBER.match(self.text, self.pos)
        if match is not None:
            if match.end() == len(self.text):  # there may have been more digits
                return self._lose(depth - 1)
            self.pos = match.end()
            return number(match.group())
        word = _WORD.match(self.text, self.pos)
        if word is None:
            if self.text[self.pos :] == "-":
                return self._lose(depth - 1)
            raise UnreadableError
        if word.group() in _LITERALS:
            value, python = _LITERALS[word.group()]
            self.pos = word.end()
            if python:
                self.repairs.add(Repair.LITERAL)
            return value
        if word.end() == len(self.text) and any(known.startswith(word.group()) for known in _LITERALS):
            return self._lose(depth - 1)
        raise UnreadableError


def number(digits: str) -> int | float | str:
    """The number that JSON text stands for; the text itself where Python or JSON could not hold it without loss."""
    try:
        if not any(char in digits for char in ".eE"):
            return int(digits)
        value = float(digits)
    except ValueError:  # more digits than Python converts
        return digits
    return value if abs(value) != float("inf") else digits


def whole_pairs(text: str) -> str:
    """Joins surrogate pairs that came as two escapes; a half alone becomes U+FFFD, since UTF-8 can't hold it."""
    if _SURROGATE.search(text) is None:
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def read_whole(text: str) -> Any:
    """The value that ``text`` holds from end to end, or ``LOST`` if it is none."""
    reader = Reader(text)
    try:
        value = reader.value()
    except UnreadableError:
        return LOST
    return LOST if reader.ended or reader.space() else value
