"""Plain counts behind the metrics: dictionaries and integers, cheap enough for every event, and bounded.

Prometheus' own classes come in only when somebody asks for ``/metrics`` (see ``metrics.py``).
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from dataclasses import dataclass, field

from supervisor.telemetry.families import FAMILIES, Kind

OTHER = "other"

# Seconds. A first byte within a second feels prompt; generations and loads go on for minutes.
SECONDS = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
# Seconds between two tokens: from 400 a second to one, which is slower than anybody reads.
TOKEN_SECONDS = (0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1.0)

Labels = tuple[str, ...]


class Vocabulary:
    """The values that one label may have: the first ``limit`` that were allowed in; the rest become ``other``."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._known: set[str] = set()

    def learn(self, value: str) -> str:
        """Allow a value in while there is room, and give the label to use for it."""
        if value not in self._known and len(self._known) < self._limit:
            self._known.add(value)
        return self.label(value)

    def label(self, value: str) -> str:
        """The label to use for a value that may come from a client: never a new one."""
        return value if value in self._known else OTHER


@dataclass(slots=True)
class Histogram:
    """How many durations fell into each bucket (not cumulative), and their sum in seconds."""

    bounds: tuple[float, ...] = SECONDS
    counts: list[int] = field(default_factory=list)
    total: float = 0.0

    def __post_init__(self) -> None:
        self.counts = self.counts or [0] * (len(self.bounds) + 1)

    def observe(self, seconds: float, times: int = 1) -> None:
        """Count a duration, or several that are equal."""
        self.counts[bisect_left(self.bounds, seconds)] += times
        self.total += seconds * times

    def copy(self) -> Histogram:
        """A value of its own, for another thread."""
        return Histogram(self.bounds, self.counts.copy(), self.total)


def _named(kind: Kind) -> tuple[str, ...]:
    return tuple(family.name for family in FAMILIES if family.kind == kind)


@dataclass(slots=True)
class Counts:
    """Everything that events say, by a family's name and then by its labels, in the order of ``families.py``.

    Attributes:
        gauges: what holds now; a family or labels that aren't there have no series.
    """

    counters: dict[str, Counter[Labels]] = field(default_factory=lambda: {n: Counter() for n in _named("counter")})
    histograms: dict[str, dict[Labels, Histogram]] = field(default_factory=lambda: {n: {} for n in _named("histogram")})
    gauges: dict[str, dict[Labels, float]] = field(default_factory=lambda: defaultdict(dict))

    def add(self, name: str, *labels: str, by: int = 1) -> None:
        """Count up."""
        self.counters[name][labels] += by

    def observe(self, name: str, *labels: str, seconds: float, times: int = 1) -> None:
        """Count a duration, or several that are equal."""
        series = self.histograms[name]
        if labels not in series:
            series[labels] = Histogram(TOKEN_SECONDS if name == "token_seconds" else SECONDS)
        series[labels].observe(seconds, times)

    def copy(self) -> Counts:
        """A value of its own, for another thread; to be called where the events arrive."""
        return Counts(
            {name: values.copy() for name, values in self.counters.items()},
            {name: {key: one.copy() for key, one in values.items()} for name, values in self.histograms.items()},
            {name: values.copy() for name, values in self.gauges.items()},
        )
