"""The last hour in figures, one sample each ten seconds: lines of the status page, gauges of ``/metrics``."""

from __future__ import annotations

import traceback
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import anyio
import anyio.to_thread
from anyio.abc import TaskStatus

from supervisor.clock import Clock
from supervisor.events import EventBus, InternalError

EVERY_SECONDS = 10.0
_SAMPLES = 360


@dataclass(frozen=True, slots=True)
class PoolFigures:
    """Bytes of one pool; None: not known."""

    budget: int | None
    reserved: int
    foreign: int | None


@dataclass(frozen=True, slots=True)
class CpuFigures:
    """The CPU budget, and what the quota's group counted since it was made; None: not known, or no quota.

    Attributes:
        cpus: that may be used.
        quota: in CPUs.
        periods: of the quota, in which anything wanted to run; ``throttled`` of them stood still at their end.
        throttled_seconds: summed over CPUs.
    """

    cpus: float | None
    threads: int
    quota: float | None = None
    source: str | None = None
    why: str | None = None
    periods: int | None = None
    throttled: int | None = None
    throttled_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Work:
    """What the daemon has in hand: ``tokens`` is all that engines have written since it began."""

    tokens: int
    running: int
    waiting: int
    pools: Mapping[str, PoolFigures] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Sample:
    """One moment, in wall time; ``throttled``: share of the last periods, 0 to 1, None: not known."""

    at: float
    tokens_per_second: float
    work: Work
    throttled: float | None


class Pulse:
    """Takes the samples; ``run`` must be running.

    Attributes:
        samples: oldest first.
        cpu: as last read.
    """

    def __init__(
        self, work: Callable[[], Work], read_cpu: Callable[[], CpuFigures], clock: Clock, bus: EventBus
    ) -> None:
        """``work`` is asked on the loop; ``read_cpu`` blocks for a millisecond, and is called in a thread."""
        self._work = work
        self._read_cpu = read_cpu
        self._clock = clock
        self._bus = bus
        self.samples: deque[Sample] = deque(maxlen=_SAMPLES)
        self.cpu: CpuFigures | None = None
        self._before: tuple[float, int] | None = None

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Sample until cancelled; a fault of our own is told once, and the next sample is tried."""
        task_status.started()
        told = False
        while True:
            try:
                await self.take()
            except Exception as error:  # noqa: BLE001  see above
                if not told:
                    self._bus.publish(InternalError("the pulse", repr(error), traceback.format_exc()))
                told = True
            await anyio.sleep(EVERY_SECONDS)

    async def take(self) -> None:
        """Take one sample."""
        before = self.cpu
        self.cpu = await anyio.to_thread.run_sync(self._read_cpu, abandon_on_cancel=True)
        now, work = self._clock.monotonic(), self._work()
        rate = 0.0
        if self._before is not None and now > self._before[0]:
            rate = (work.tokens - self._before[1]) / (now - self._before[0])
        self._before = (now, work.tokens)
        self.samples.append(Sample(self._clock.wall(), rate, work, _throttled(before, self.cpu)))

    def document(self) -> dict[str, Any]:
        """The hour as columns, oldest first, all of one length; ``pools`` by name, null where a pool was not there."""
        samples = tuple(self.samples)
        names = sorted({name for sample in samples for name in sample.work.pools})
        return {
            "every_seconds": EVERY_SECONDS,
            "at": [round(sample.at) for sample in samples],
            "tokens_per_second": [round(sample.tokens_per_second, 1) for sample in samples],
            "running": [sample.work.running for sample in samples],
            "waiting": [sample.work.waiting for sample in samples],
            "throttled": [None if s.throttled is None else round(s.throttled, 3) for s in samples],
            "pools": {name: [_reserved(sample, name) for sample in samples] for name in names},
        }


def _reserved(sample: Sample, pool: str) -> int | None:
    found = sample.work.pools.get(pool)
    return None if found is None else found.reserved


def _throttled(before: CpuFigures | None, now: CpuFigures) -> float | None:
    if before is None or before.source != now.source or None in {before.periods, now.periods}:
        return None
    periods = (now.periods or 0) - (before.periods or 0)
    throttled = (now.throttled or 0) - (before.throttled or 0)
    return 0.0 if periods <= 0 else min(1.0, max(0.0, throttled / periods))
