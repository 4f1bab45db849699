"""What the readers of the forms share: a place in the text, and the block of calls that they found there."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

_SPACE = re.compile(r"\s*")
_WORD = re.compile(r"[^\s<>{(\[]{0,256}")


@dataclass(slots=True)
class Found:
    """One call as it was written; whether its tool is offered is not looked at here.

    Attributes:
        as_text: values are text for any type, as between XML-like tags.
    """

    name: str
    arguments: dict[str, Any]
    as_text: bool = False


@dataclass(slots=True)
class Block:
    """Calls that stand together inside the markers of one form.

    Attributes:
        end: where the text after the block begins.
        native: the block is strictly as its format says.
        complete: nothing of the last call was lost.
        prose: the calls were written as prose.
    """

    calls: list[Found]
    end: int
    native: bool = True
    complete: bool = True
    prose: bool = False


@dataclass(slots=True)
class Cursor:
    """A place in a text.

    Attributes:
        pos: the place.
        far: the furthest place that any decision looked at. Nothing that stands well behind it can change what was
            decided, so a decision on a part of a text holds for the whole text.
        memo: pairs of tags in this text by pattern; found once.
    """

    text: str
    pos: int = 0
    far: int = 0
    memo: dict[str, dict[int, int]] = field(default_factory=dict)

    def goto(self, pos: int) -> None:
        """Moves to ``pos``, which was looked at."""
        self.pos = pos
        self.far = max(self.far, pos)

    def looks(self, word: str) -> bool:
        """Whether ``word`` stands here."""
        self.far = max(self.far, self.pos)
        return self.text.startswith(word, self.pos)

    def take(self, words: Iterable[str]) -> str | None:
        """Passes the first of the words that stands here."""
        for word in words:
            if self.looks(word):
                self.goto(self.pos + len(word))
                return word
        return None

    def match(self, pattern: re.Pattern[str], reach: int = 0) -> re.Match[str] | None:
        """Passes what ``pattern`` matches here.

        Args:
            pattern: what should stand here.
            reach: characters that the pattern may look at before it fails, if they are more than one word and the
                longest marker.
        """
        found = pattern.match(self.text, self.pos)
        if found is not None:
            self.goto(found.end())
        else:
            word = _WORD.match(self.text, self.pos)
            assert word is not None
            self.far = max(self.far, word.end(), self.pos + reach)
        return found

    def space(self) -> None:
        """Passes white space."""
        self.match(_SPACE)

    def find(self, word: str, start: int) -> int:
        """First place of ``word`` from ``start`` on; -1 if there is none up to the end of the text."""
        found = self.text.find(word, start)
        self.far = max(self.far, len(self.text) if found < 0 else found + len(word))
        return found

    def search(self, pattern: re.Pattern[str], start: int) -> re.Match[str] | None:
        """First match of ``pattern`` from ``start`` on."""
        found = pattern.search(self.text, start)
        self.far = max(self.far, len(self.text) if found is None else found.end())
        return found

    @property
    def at_end(self) -> bool:
        """Whether nothing follows."""
        self.far = max(self.far, self.pos)
        return self.pos >= len(self.text)

    def take_half(self, words: Iterable[str]) -> bool:
        """Passes the rest of the text if one of the words begins with it: a marker that was cut."""
        self.far = max(self.far, self.pos)
        rest = self.text[self.pos : self.pos + 64]
        if 0 < len(rest) == len(self.text) - self.pos and any(word.startswith(rest) and word != rest for word in words):
            self.goto(len(self.text))
            return True
        return False


def pairs(cursor: Cursor, pattern: re.Pattern[str]) -> dict[int, int]:
    """Matching closing tag of each opening tag, over the whole text: end of the opening → start of the closing.

    Args:
        cursor: the text; the answer is kept in its memo.
        pattern: matches both tags; group 1 is not empty in the closing one.
    """
    known = cursor.memo.get(pattern.pattern)
    if known is None:
        known = {}
        stack: list[int] = []
        for tag in pattern.finditer(cursor.text):
            if not tag[1]:
                stack.append(tag.end())
            elif stack:
                known[stack.pop()] = tag.start()
        cursor.memo[pattern.pattern] = known
    return known
