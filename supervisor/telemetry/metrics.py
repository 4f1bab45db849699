"""``/metrics``: Prometheus text of what events said, of what the machine shows, and of what engines say of themselves.

Counting is plain (``tally.py``); Prometheus' library is imported at the first scrape, in the thread that renders, so
that it costs a start nothing and a daemon that nobody scrapes no memory.
"""

from __future__ import annotations

import platform
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING

import anyio.to_thread

from supervisor.events import EventBus
from supervisor.telemetry.counts import Counts, Histogram, Labels
from supervisor.telemetry.engine_text import merge
from supervisor.telemetry.families import FAMILIES, PREFIX, Family
from supervisor.telemetry.pulse import CpuFigures, Work
from supervisor.telemetry.tally import Tally

if TYPE_CHECKING:
    from prometheus_client import Metric

Texts = Sequence[tuple[str, str]]
"""What engines say of themselves: model, Prometheus text."""


@dataclass(frozen=True, slots=True)
class Vitals:
    """What no event says: the work in hand, and the CPUs as last looked at."""

    work: Work
    cpu: CpuFigures | None


async def _no_texts() -> Texts:
    return ()


class Metrics:
    """Counts from its construction on; ``stop`` ends that."""

    def __init__(
        self,
        bus: EventBus,
        version: str,
        vitals: Callable[[], Vitals | None] = lambda: None,
        texts: Callable[[], Awaitable[Texts]] = _no_texts,
    ) -> None:
        """``vitals`` and ``texts`` are asked at each scrape; ``texts`` within a deadline of its own."""
        self._version = version
        self._vitals = vitals
        self._texts = texts
        self._tally = Tally()
        self.stop: Callable[[], None] = bus.listen(self._tally.count)

    async def render(self) -> tuple[bytes, str]:
        """The Prometheus text and its content type; thousands of series take half a second, so a thread does it."""
        texts = await self._texts()
        counts = self._tally.counts.copy()
        counts.gauges["info"] = {(self._version, platform.python_version()): 1.0}
        vitals = self._vitals()
        if vitals is not None:
            _add_vitals(counts, vitals)
        return await anyio.to_thread.run_sync(_render, counts, texts)


def _add_vitals(counts: Counts, vitals: Vitals) -> None:
    work, cpu = vitals.work, vitals.cpu
    gauges: dict[str, dict[Labels, float | None]] = {
        "waiting_requests": {(): work.waiting},
        "pool_budget_bytes": {(name,): pool.budget for name, pool in work.pools.items()},
        "pool_reserved_bytes": {(name,): pool.reserved for name, pool in work.pools.items()},
        "pool_foreign_bytes": {(name,): pool.foreign for name, pool in work.pools.items()},
    }
    if cpu is not None:
        gauges |= {"cpu_budget_cpus": {(): cpu.cpus}, "cpu_quota_cpus": {(): cpu.quota}}
    for name, rows in gauges.items():
        counts.gauges[name] = {labels: float(value) for labels, value in rows.items() if value is not None}
    totals = {
        "cpu_periods": cpu.periods if cpu else None,
        "cpu_throttled_periods": cpu.throttled if cpu else None,
        "cpu_throttled_seconds": cpu.throttled_seconds if cpu else None,
    }
    for name, total in totals.items():
        # A count of the machine's own is told as it is; the plain counts are whole, this one may have a fraction.
        if total is not None:
            counts.gauges[name] = {(): float(total)}


def _render(counts: Counts, texts: Texts) -> tuple[bytes, str]:
    from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest  # noqa: PLC0415  at first use

    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Snapshot(counts))
    return generate_latest(registry) + merge(texts), CONTENT_TYPE_LATEST


class _Snapshot:
    """A collector over one copy of the counts."""

    def __init__(self, counts: Counts) -> None:
        self._counts = counts

    def describe(self) -> Iterable[Metric]:
        """Nothing: asked at registration, where collecting would do the work twice."""
        return ()

    def collect(self) -> Iterable[Metric]:
        """All families, each once per scrape."""
        for family in FAMILIES:
            yield _metric(family, self._counts)
        yield from _process()


def _metric(family: Family, counts: Counts) -> Metric:
    from prometheus_client.core import (  # noqa: PLC0415  at first use
        CounterMetricFamily,
        GaugeMetricFamily,
        HistogramMetricFamily,
    )

    name = PREFIX + family.name
    if family.kind == "histogram":
        timing = HistogramMetricFamily(name, family.text, labels=family.labels)
        for labels, histogram in sorted(counts.histograms[family.name].items()):
            timing.add_metric(labels, _cumulative(histogram), histogram.total)
        return timing
    made: CounterMetricFamily | GaugeMetricFamily
    if family.kind == "counter":
        made = CounterMetricFamily(name, family.text, labels=family.labels)
    else:
        made = GaugeMetricFamily(name, family.text, labels=family.labels)
    for labels, value in sorted(_rows(family, counts).items()):
        made.add_metric(labels, value)
    return made


def _rows(family: Family, counts: Counts) -> Mapping[Labels, float]:
    found = counts.gauges.get(family.name)
    return found if found is not None else counts.counters.get(family.name, {})


def _process() -> Iterable[Metric]:
    import psutil  # noqa: PLC0415  not every command that counts renders
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily  # noqa: PLC0415  at first use

    me = psutil.Process()
    with me.oneshot():
        resident, started, times = float(me.memory_info().rss), me.create_time(), me.cpu_times()
    yield GaugeMetricFamily("process_resident_memory_bytes", "Resident memory of the daemon itself.", resident)
    since = "When the daemon started, in seconds since 1970."
    yield GaugeMetricFamily("process_start_time_seconds", since, started)
    cpu = float(times.user + times.system)
    yield CounterMetricFamily("process_cpu_seconds", "CPU time of the daemon itself.", cpu)


def _cumulative(histogram: Histogram) -> list[tuple[str, float]]:
    bounds = [*(str(bound) for bound in histogram.bounds), "+Inf"]
    return list(zip(bounds, accumulate(map(float, histogram.counts)), strict=True))
