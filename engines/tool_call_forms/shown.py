"""Text that is shown rather than meant: lines that close a fence, inline code, and JSON that is an answer."""

from __future__ import annotations

import re

_TICKS_OR_BLANK_LINE = re.compile(r"`+|\n[ \t]*\n")
_OUTSIDE = re.compile(r"[\s\d,:.+\-eEtrufalsn]*")
_INSIDE = re.compile(r"(?:[^\"\\\n]+|\\[^\n])*")
_INDENT = re.compile(r"[ \t]*")


def fence_line(text: str, pos: int, fence: str, *, final: bool) -> int | None:
    """End of the line at ``pos`` if it closes the fence, ``pos`` if it does not, None if it is not known yet."""
    indent = _INDENT.match(text, pos)
    assert indent is not None
    end = indent.end()
    while text.startswith(fence[0], end):
        end += 1
    run = end - indent.end()
    rest = _INDENT.match(text, end)
    assert rest is not None
    if rest.end() == len(text):
        return len(text) if final and run >= len(fence) else pos if final else None
    return rest.end() if run >= len(fence) and text[rest.end()] == "\n" else pos


def code_span_end(text: str, pos: int, ticks: int, *, final: bool) -> int | None:
    """End of the inline code around ``pos``; ``pos`` if its backticks never close, None if it is not known yet."""
    for match in _TICKS_OR_BLANK_LINE.finditer(text, pos):
        if match.group()[0] == "\n":
            return pos
        if match.end() == len(text) and not final:
            return None
        if match.end() - match.start() == ticks:
            return match.end()
    return pos if final else None


class JsonAnswer:
    """Follows a JSON value through a text, so that markers inside its strings stay data."""

    __slots__ = ("_depth", "_inside")

    def __init__(self) -> None:
        self._depth = 0
        self._inside = False

    def walk(self, text: str, pos: int) -> tuple[int, bool]:
        """How far the value reaches in ``text``, and whether it is over: closed, or no JSON after all."""
        while pos < len(text):
            run = (_INSIDE if self._inside else _OUTSIDE).match(text, pos)
            assert run is not None
            pos = run.end()
            char = text[pos : pos + 1]
            if not char or (self._inside and char == "\\" and pos + 1 == len(text)):
                break
            if char == '"':
                self._inside = not self._inside
            elif self._inside or char not in "{[}]":
                return pos, True
            else:
                self._depth += 1 if char in "{[" else -1
                if not self._depth:
                    return pos + 1, True
            pos += 1
        return pos, False
