"""Stop strings, matched on text: no part of one is ever given out, wherever tokens begin and end. Pure."""

from __future__ import annotations

from collections.abc import Iterable


class StopFilter:
    """Lets text through up to the first stop string, however the text is cut into pieces.

    Of several stops the one that is complete first counts; of two that end together, the longer.

    Attributes:
        matched: the stop string that was found; None until then.
    """

    __slots__ = ("_held", "_stops", "matched")

    def __init__(self, stops: Iterable[str]) -> None:
        self._stops = tuple(stop for stop in stops if stop)
        self._held = ""
        self.matched: str | None = None

    def feed(self, text: str) -> str:
        """What may be given out now: what can no longer be the beginning of a stop."""
        if not self._stops or self.matched is not None:
            return "" if self.matched is not None else text
        whole = self._held + text
        found = [(place + len(stop), place, stop) for stop in self._stops if (place := whole.find(stop)) >= 0]
        if found:
            _, place, self.matched = min(found)
            self._held = ""
            return whole[:place]
        kept = held_length(whole, self._stops)
        self._held = whole[len(whole) - kept :]
        return whole[: len(whole) - kept]

    def finish(self) -> str:
        """What was held back, now that no more text comes."""
        rest, self._held = self._held, ""
        return rest


def held_length(text: str, marks: Iterable[str]) -> int:
    """Characters at the end of ``text`` that may be the beginning of one of ``marks``."""
    longest = 0
    for mark in marks:
        for length in range(min(len(mark) - 1, len(text)), longest, -1):
            if text.endswith(mark[:length]):
                longest = length
                break
    return longest
