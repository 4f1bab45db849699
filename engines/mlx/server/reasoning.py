"""Parts a model's thoughts from its answer, by the marks that its template uses. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from engines.mlx.server.stops import held_length

Kind = Literal["content", "reasoning"]


@dataclass(frozen=True, slots=True)
class Marks:
    """What begins and ends a model's thoughts, such as ``<think>`` and ``</think>``."""

    start: str
    end: str


class Splitter:
    """Takes text in pieces, and gives each part of it with its kind; the marks themselves are taken out.

    White space around the marks goes too: it belongs to the notation.

    Args:
        marks: of this model; None: it has none, and everything is content.
        inside: the prompt has already opened the thoughts.
    """

    __slots__ = ("_held", "_inside", "_marks", "_trim")

    def __init__(self, marks: Marks | None, *, inside: bool = False) -> None:
        self._marks = marks
        self._inside = inside and marks is not None
        self._held = ""
        self._trim = self._inside

    def feed(self, text: str) -> list[tuple[Kind, str]]:
        """The parts that are certain, in order."""
        if self._marks is None:
            return [("content", text)] if text else []
        return list(self._parts(self._held + text, self._marks))

    def finish(self) -> list[tuple[Kind, str]]:
        """What was held back, now that no more text comes."""
        rest, self._held = self._trimmed(self._held), ""
        return [(self._kind, rest)] if rest else []

    @property
    def _kind(self) -> Kind:
        return "reasoning" if self._inside else "content"

    def _parts(self, text: str, marks: Marks) -> Iterator[tuple[Kind, str]]:
        while True:
            mark = marks.end if self._inside else marks.start
            place = text.find(mark)
            if place < 0:
                break
            before = self._trimmed(text[:place]).rstrip()
            if before:
                yield self._kind, before
            self._inside = not self._inside
            self._trim = True
            text = text[place + len(mark) :]
        kept = held_length(text, (mark,))
        ready = text[: len(text) - kept]
        # White space at the end may stand before a mark.
        solid = ready.rstrip()
        self._held = text[len(solid) :]
        solid = self._trimmed(solid)
        if solid:
            self._trim = False
            yield self._kind, solid

    def _trimmed(self, text: str) -> str:
        return text.lstrip() if self._trim else text


def opens_thoughts(prompt: str, marks: Marks | None) -> bool:
    """Whether a rendered prompt ends inside the thoughts: its last opening mark is not closed."""
    if marks is None:
        return False
    return prompt.rfind(marks.start) > prompt.rfind(marks.end) and prompt.rstrip().endswith(marks.start)
