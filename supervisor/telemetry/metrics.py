"""``/metrics``: Prometheus text made from events alone.

Counting is plain (``tally.py``); Prometheus' library is imported at the first scrape, in the thread that renders, so
that it costs a start nothing and a daemon that nobody scrapes no memory.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterable, Mapping
from itertools import accumulate
from typing import TYPE_CHECKING

import anyio.to_thread

from supervisor.events import EventBus
from supervisor.telemetry.counts import SECONDS, Counts, Histogram, Labels
from supervisor.telemetry.tally import Tally

if TYPE_CHECKING:
    from prometheus_client import Metric

# (name, help, label names, values)
_Counter = tuple[str, str, tuple[str, ...], Mapping[Labels, float]]
_Timing = tuple[str, str, Mapping[Labels, Histogram]]

_STATES = ("stopped", "starting", "ready", "unresponsive", "stopping", "backoff", "failed")


class Metrics:
    """Counts from its construction on; ``stop`` ends that."""

    def __init__(self, bus: EventBus, version: str) -> None:
        self._version = version
        self._tally = Tally()
        self.stop: Callable[[], None] = bus.listen(self._tally.count)

    async def render(self) -> tuple[bytes, str]:
        """The Prometheus text and its content type; thousands of series take half a second, so a thread does it."""
        counts = self._tally.counts.copy()
        return await anyio.to_thread.run_sync(_render, counts, self._version)


def _render(counts: Counts, version: str) -> tuple[bytes, str]:
    from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest  # noqa: PLC0415  at first use

    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Snapshot(counts, version))
    return generate_latest(registry), CONTENT_TYPE_LATEST


class _Snapshot:
    """A collector over one copy of the counts."""

    def __init__(self, counts: Counts, version: str) -> None:
        self._counts = counts
        self._version = version

    def describe(self) -> Iterable[Metric]:
        """Nothing: asked at registration, where collecting would do the work twice."""
        return ()

    def collect(self) -> Iterable[Metric]:
        """All families, each once per scrape."""
        from prometheus_client.core import (  # noqa: PLC0415  at first use
            CounterMetricFamily,
            GaugeMetricFamily,
            HistogramMetricFamily,
        )

        for name, text, labels, values in _counters(self._counts):
            counter = CounterMetricFamily(name, text, labels=labels)
            for key, value in sorted(values.items()):
                counter.add_metric(key, value)
            yield counter
        for name, text, histograms in _timings(self._counts):
            timing = HistogramMetricFamily(name, text, labels=["model"])
            for key, histogram in sorted(histograms.items()):
                timing.add_metric(key, _cumulative(histogram), histogram.total)
            yield timing
        for name, text, labels, values in (*_gauges(self._counts, self._version), *_process_gauges()):
            gauge = GaugeMetricFamily(name, text, labels=labels)
            for key, value in sorted(values.items()):
                gauge.add_metric(key, value)
            yield gauge
        yield CounterMetricFamily("process_cpu_seconds", "CPU time of the daemon itself.", value=_cpu_seconds())


def _counters(counts: Counts) -> tuple[_Counter, ...]:
    model = ("model",)
    return (
        ("enginehouse_requests", "HTTP requests that ended.", ("model", "status", "outcome"), counts.requests),
        ("enginehouse_launches", "Engine processes started.", model, counts.launches),
        ("enginehouse_launch_exits", "Engine processes ended.", ("model", "kind", "blames", "planned"), counts.exits),
        ("enginehouse_leases", "Requests that got a slot.", model, counts.leases),
        ("enginehouse_denials", "Requests refused.", ("model", "code"), counts.denials),
        ("enginehouse_stuck_slots", "Slots not idle in time after their client left.", model, counts.stuck_slots),
        ("enginehouse_events", "Events by name.", ("event",), counts.events),
    )


def _timings(counts: Counts) -> tuple[_Timing, ...]:
    return (
        ("enginehouse_request_seconds", "From a request's arrival to its end.", counts.request_seconds),
        ("enginehouse_first_byte_seconds", "From a request's arrival to its first byte.", counts.first_byte_seconds),
        ("enginehouse_queue_seconds", "Waited for a slot.", counts.queue_seconds),
        ("enginehouse_load_seconds", "From a launch's start to ready.", counts.load_seconds),
    )


def _gauges(counts: Counts, version: str) -> tuple[_Counter, ...]:
    states: dict[Labels, float] = {
        (model, state): float(state == now) for model, now in counts.states.items() for state in {*_STATES, now}
    }
    since_exec: dict[Labels, float] = {} if counts.listening_seconds is None else {(): counts.listening_seconds}
    return (
        ("enginehouse_instance_state", "1 for the state that a model's instance is in.", ("model", "state"), states),
        ("enginehouse_active_leases", "Requests that have a slot now.", ("model",), counts.active),
        ("enginehouse_build_usable", "1 if a build can be chosen.", ("build", "engine", "version"), counts.builds),
        ("enginehouse_listening_seconds", "From the daemon's exec to its open socket.", (), since_exec),
        ("enginehouse_info", "The daemon.", ("version", "python"), {(version, platform.python_version()): 1.0}),
    )


def _process_gauges() -> tuple[_Counter, ...]:
    import psutil  # noqa: PLC0415  not every command that counts renders

    me = psutil.Process()
    with me.oneshot():
        resident, started = float(me.memory_info().rss), me.create_time()
    return (
        ("process_resident_memory_bytes", "Resident memory of the daemon itself.", (), {(): resident}),
        ("process_start_time_seconds", "When the daemon started, in seconds since 1970.", (), {(): started}),
    )


def _cpu_seconds() -> float:
    import psutil  # noqa: PLC0415  as above

    times = psutil.Process().cpu_times()
    return float(times.user + times.system)


def _cumulative(histogram: Histogram) -> list[tuple[str, float]]:
    bounds = [*(str(bound) for bound in SECONDS), "+Inf"]
    return list(zip(bounds, accumulate(map(float, histogram.counts)), strict=True))
