"""Samples, medians, and ratios between things that were measured in turn."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence


class Samples:
    """Seconds of one thing, by round; rounds of different things stand side by side and are compared in pairs."""

    def __init__(self, rounds: Iterable[Sequence[float]] = ()) -> None:
        self.rounds: list[list[float]] = [list(values) for values in rounds]

    def add(self, values: Iterable[float]) -> None:
        """One more round."""
        self.rounds.append(list(values))

    @property
    def values(self) -> list[float]:
        """All of them."""
        return [value for values in self.rounds for value in values]

    @property
    def count(self) -> int:
        """How many there are."""
        return sum(len(values) for values in self.rounds)

    @property
    def median(self) -> float:
        """Of all values."""
        return statistics.median(self.values)

    @property
    def p99(self) -> float:
        """Value that 99 % do not exceed (nearest rank: the largest one of fewer than 100)."""
        return percentile(self.values, 0.99)

    def ratios(self, baseline: Samples) -> list[float]:
        """Median by median, round by round: what drifts between rounds cancels out."""
        pairs = zip(self.rounds, baseline.rounds, strict=False)
        return [statistics.median(own) / statistics.median(other) for own, other in pairs if own and other]


def percentile(values: Sequence[float], share: float) -> float:
    """Nearest-rank percentile of at least one value."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def show_ratio(ratios: Sequence[float]) -> str:
    """The median of the rounds' ratios, and their range: ``1.04 (1.01-1.09)``."""
    if not ratios:
        return "-"
    middle = statistics.median(ratios)
    return f"{middle:.3g}" if len(ratios) == 1 else f"{middle:.2f} ({min(ratios):.2f}-{max(ratios):.2f})"


def verdict(value: float, limit: float) -> str:
    """Whether a value keeps its limit, in a word."""
    return "met" if value <= limit else "MISSED"
