"""Plain counts behind the metrics: dictionaries and integers, cheap enough for every event, and bounded.

Prometheus' own classes come in only when somebody asks for ``/metrics`` (see ``metrics.py``).
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from dataclasses import dataclass, field

OTHER = "other"

# Seconds. A first byte within a second feels prompt; generations and loads go on for minutes.
SECONDS = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)


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

    counts: list[int] = field(default_factory=lambda: [0] * (len(SECONDS) + 1))
    total: float = 0.0

    def observe(self, seconds: float) -> None:
        """Count one duration."""
        self.counts[bisect_left(SECONDS, seconds)] += 1
        self.total += seconds

    def copy(self) -> Histogram:
        """A value of its own, for another thread."""
        return Histogram(self.counts.copy(), self.total)


Labels = tuple[str, ...]


@dataclass(slots=True)
class Counts:
    """Everything that the metrics say, by label values in the order that ``metrics.py`` names them."""

    requests: Counter[Labels] = field(default_factory=Counter)
    launches: Counter[Labels] = field(default_factory=Counter)
    exits: Counter[Labels] = field(default_factory=Counter)
    leases: Counter[Labels] = field(default_factory=Counter)
    denials: Counter[Labels] = field(default_factory=Counter)
    stuck_slots: Counter[Labels] = field(default_factory=Counter)
    events: Counter[Labels] = field(default_factory=Counter)
    request_seconds: dict[Labels, Histogram] = field(default_factory=dict)
    first_byte_seconds: dict[Labels, Histogram] = field(default_factory=dict)
    queue_seconds: dict[Labels, Histogram] = field(default_factory=dict)
    load_seconds: dict[Labels, Histogram] = field(default_factory=dict)
    states: dict[str, str] = field(default_factory=dict)
    active: Counter[Labels] = field(default_factory=Counter)
    builds: dict[Labels, int] = field(default_factory=dict)
    listening_seconds: float | None = None

    def copy(self) -> Counts:
        """A value of its own, for another thread; to be called where the events arrive."""

        def copied(histograms: dict[Labels, Histogram]) -> dict[Labels, Histogram]:
            return {labels: histogram.copy() for labels, histogram in histograms.items()}

        return Counts(
            requests=self.requests.copy(),
            launches=self.launches.copy(),
            exits=self.exits.copy(),
            leases=self.leases.copy(),
            denials=self.denials.copy(),
            stuck_slots=self.stuck_slots.copy(),
            events=self.events.copy(),
            request_seconds=copied(self.request_seconds),
            first_byte_seconds=copied(self.first_byte_seconds),
            queue_seconds=copied(self.queue_seconds),
            load_seconds=copied(self.load_seconds),
            states=self.states.copy(),
            active=self.active.copy(),
            builds=self.builds.copy(),
            listening_seconds=self.listening_seconds,
        )
