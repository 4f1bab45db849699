"""While an engine runs: is the CPU budget still what it was planned for, and is it throttled?

Looks seldom, and not at all while nothing runs. A launch keeps its threads while it works; once idle, one whose
threads are no longer what would be planned is stopped: the next request launches it anew, and a pinned or preloaded
model is at once.
"""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import anyio
import anyio.to_thread
from anyio.abc import TaskStatus

from engines.contract import Beside, LaunchPlan
from supervisor.broker.cpu_events import CpuThrottled
from supervisor.broker.cpus import Cpus
from supervisor.errors import SupervisorError
from supervisor.events import EventBus, InternalError
from supervisor.host.cpu import CpuBudget
from supervisor.host.throttling import Throttling
from supervisor.instances.lifecycle import InstanceState
from supervisor.models.catalog import ModelEntry
from supervisor.planning.threads import threads_under_quota

# Throttled in more of its periods than this, an engine spends its time so; and of fewer periods nothing is said.
_MUCH = 0.25
_FEWEST_PERIODS = 20
# Between two looks at an outdated launch that works.
_IDLE_PAUSE = 1.0
_RUNNING = (InstanceState.STARTING, InstanceState.READY, InstanceState.UNRESPONSIVE)


@dataclass(frozen=True, slots=True)
class CpuReading:
    """One look at the machine: the budget with what the config says of it, and the group's own throttling."""

    cpu: CpuBudget
    quota: float | None
    throttling: Throttling | None


class WatchedInstance(Protocol):
    """See ``instances.instance.Instance``."""

    entry: ModelEntry
    generation: int
    plan: LaunchPlan | None
    state: InstanceState

    @property
    def id(self) -> str: ...  # noqa: D102  said in the class

    @property
    def model_id(self) -> str: ...  # noqa: D102  said in the class

    @property
    def accepting(self) -> bool: ...  # noqa: D102  said in the class

    def request_stop(self, reason: str) -> None:
        """Stop it, without waiting for the end."""
        ...


@dataclass(frozen=True, slots=True)
class CpuWatchPorts:
    """What the watch looks at and through.

    Attributes:
        read: one look at the machine; blocks for a millisecond.
        instances: every instance.
        is_idle: whether nobody uses a model's instance, or waits for it.
        plan: as it would be made now, beside what it was planned beside.
        load: makes a model ready by hand.
        interval: seconds between two looks.
    """

    read: Callable[[], CpuReading]
    instances: Callable[[], Sequence[WatchedInstance]]
    is_idle: Callable[[str], bool]
    plan: Callable[[ModelEntry, Beside], Awaitable[LaunchPlan]]
    load: Callable[[ModelEntry], Awaitable[None]]
    interval: Callable[[], float]


class CpuWatch:
    """See the module; ``run`` must be running, and ``instance_changed`` observe the fleet."""

    def __init__(self, ports: CpuWatchPorts, cpus: Cpus, bus: EventBus) -> None:
        self._ports = ports
        self._cpus = cpus
        self._bus = bus
        self._changed = anyio.Event()
        self._epoch = 0
        self._before: CpuReading | None = None
        self._loads = 0
        self._outdated: dict[tuple[str, int], str] = {}
        self._said: tuple[frozenset[tuple[str, int]], float] | None = None

    def instance_changed(self, instance: WatchedInstance) -> None:
        """Observer of every instance: a load's throttling is not an engine's at work."""
        if instance.state is not InstanceState.UNRESPONSIVE:
            self._before = None
            self._loads += 1
        self._changed.set()

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Watch until cancelled; a fault of our own is told, and the next look is tried."""
        task_status.started()
        while True:
            self._changed = anyio.Event()
            if not self._running():
                await self._changed.wait()
                continue
            await self._pause()
            try:
                await self._look()
            except Exception as error:  # noqa: BLE001  see above
                self._bus.publish(InternalError("the watch over the CPUs", repr(error), traceback.format_exc()))

    async def _pause(self) -> None:
        """Until the next look; meanwhile outdated launches go when they are idle."""
        end = anyio.current_time() + self._ports.interval()
        while (left := end - anyio.current_time()) > 0:
            await self._relaunch_idle()
            await anyio.sleep(min(left, _IDLE_PAUSE) if self._outdated else left)

    async def _look(self) -> None:
        loads = self._loads
        reading = await anyio.to_thread.run_sync(self._ports.read, abandon_on_cancel=True)
        self._cpus.saw(reading.cpu)
        if loads == self._loads:  # else the reading may be older than the change
            self._judge_throttling(reading)
        if self._epoch != self._cpus.epoch:
            self._epoch = self._cpus.epoch
            await self._plan_again()
        await self._relaunch_idle()

    async def _plan_again(self) -> None:
        """Which launches would get other threads now, with the share that they were given."""
        outdated: dict[tuple[str, int], str] = {}
        for instance in self._running():
            old, key = instance.plan, (instance.id, instance.generation)
            if old is None:
                continue
            try:
                new = await self._ports.plan(instance.entry, old.beside)
            except SupervisorError:
                continue  # told when it is launched
            if (new.threads, new.threads_batch) != (old.threads, old.threads_batch):
                outdated[key] = (
                    f"planned with {old.threads} threads and {old.threads_batch} for batches; "
                    f"by the CPU budget it is {new.threads} and {new.threads_batch} now"
                )
        self._outdated = outdated

    async def _relaunch_idle(self) -> None:
        """Stop what is outdated and idle; forget what has ended by itself."""
        again: list[ModelEntry] = []
        launches = {(instance.id, instance.generation): instance for instance in self._running()}
        for key, why in tuple(self._outdated.items()):
            instance = launches.get(key)
            if instance is None:
                del self._outdated[key]
            elif instance.accepting and self._ports.is_idle(instance.model_id):
                del self._outdated[key]
                instance.request_stop(why)
                again += [instance.entry] if instance.entry.pinned or instance.entry.preload else []
        for entry in again:
            with contextlib.suppress(SupervisorError):  # told by its events
                await self._ports.load(entry)

    def _judge_throttling(self, reading: CpuReading) -> None:
        before, self._before = self._before, reading
        running = self._running()
        if before is None or reading.throttling is None or reading.quota is None:
            return
        window = reading.throttling.since(before.throttling)
        if window is None or window.periods < _FEWEST_PERIODS or window.share <= _MUCH:
            return
        case = (frozenset((instance.id, instance.generation) for instance in running), reading.quota)
        if case == self._said:
            return
        self._said = case
        plans = [instance.plan for instance in running if instance.plan is not None]
        self._bus.publish(
            CpuThrottled(
                instances=tuple(instance.id for instance in running),
                quota=reading.quota,
                periods=window.periods,
                throttled=window.throttled,
                seconds=window.seconds,
                advice=advice(reading.quota, [plan.threads for plan in plans]),
            )
        )

    def _running(self) -> list[WatchedInstance]:
        return [instance for instance in self._ports.instances() if instance.state in _RUNNING]


def advice(quota: float, threads: Sequence[int | None]) -> str:
    """What helps an engine that is throttled; ``threads`` of each that runs, None: by its own choice."""
    held = threads_under_quota(quota)
    if None in threads:
        return f"an engine chose its threads itself: set launch.threads to {held} for a quota of {quota:g} CPUs"
    total = sum(count or 0 for count in threads)
    if total > held:
        return f"{total} threads run under a quota of {quota:g} CPUs, which holds {held}: fewer are faster"
    return f"{total} threads are what a quota of {quota:g} CPUs holds: only a larger quota makes it faster"
