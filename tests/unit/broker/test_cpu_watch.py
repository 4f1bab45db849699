"""The watch over the CPUs: a changed quota and engines that stand still are seen, and nothing is done to who works."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace

import anyio
import pytest

from engines.contract import ALONE, Beside, LaunchPlan
from supervisor.broker.cpu_events import CpuBudgetChanged, CpuThrottled
from supervisor.broker.cpu_watch import CpuReading, CpuWatch, CpuWatchPorts, advice
from supervisor.broker.cpus import Cpus
from supervisor.errors import PlanError
from supervisor.events import Event, EventBus, InternalError
from supervisor.host.cpu import CpuBudget
from supervisor.host.throttling import Throttling
from supervisor.instances.lifecycle import InstanceState
from supervisor.models.catalog import ModelEntry
from tests.fakes.clock import HandClock
from tests.fakes.instances import model_entry
from tests.unit.planning.plans import plan_with


@dataclass(slots=True)
class _Instance:
    """An engine that notes what is asked of it."""

    entry: ModelEntry
    plan: LaunchPlan | None
    state: InstanceState = InstanceState.READY
    generation: int = 1
    asked: list[str] = field(default_factory=list)
    on_ask: Callable[[], None] = lambda: None

    @property
    def id(self) -> str:
        return f"{self.entry.id}-1"

    @property
    def model_id(self) -> str:
        return self.entry.id

    @property
    def accepting(self) -> bool:
        return self.state is InstanceState.READY

    def request_stop(self, reason: str) -> None:
        self.asked.append(reason)
        self.on_ask()


def _budget(cpus: float) -> CpuBudget:
    return CpuBudget(8, 8, None, cpus, cpus, max(1, int(cpus)), 8, "/cg/cpu.max", f"quota {cpus:g}")


class _Bench:
    """A watch over engines and a machine that a test sets by hand; each look is counted."""

    def __init__(self, *instances: _Instance) -> None:
        self.instances = list(instances)
        self.cpus_now = 4.0
        self.throttling: Throttling | None = None
        self.busy: set[str] = set()
        self.looks = 0
        self.lost = True
        self.loaded: list[str] = []
        self.planned: list[tuple[str, Beside]] = []
        self.fault: Exception | None = None
        self.heard: list[Event] = []
        self._news = anyio.Event()
        bus = EventBus(HandClock())
        bus.listen(lambda record: self._hear(record.event))
        self.cpus = Cpus(lambda: "split", lambda _: (), bus)
        ports = CpuWatchPorts(
            read=self._read,
            instances=lambda: self.instances,
            is_idle=lambda model_id: model_id not in self.busy,
            plan=self._plan,
            load=self._load,
            interval=lambda: 0.005,
        )
        self.watch = CpuWatch(ports, self.cpus, bus)
        for instance in instances:
            instance.on_ask = self._tell

    def _read(self) -> CpuReading:
        self.looks += 1
        anyio.from_thread.run_sync(self._tell)
        if self.fault is not None:
            raise self.fault
        return CpuReading(_budget(self.cpus_now), self.cpus_now, self.throttling)

    async def _plan(self, entry: ModelEntry, beside: Beside) -> LaunchPlan:
        self.planned.append((entry.id, beside))
        if self.lost and entry.id == "gone":
            raise PlanError("no_build", "there is none")
        return plan_with(threads=int(self.cpus_now), threads_batch=int(self.cpus_now))

    async def _load(self, entry: ModelEntry) -> None:
        self.loaded.append(entry.id)
        self._tell()
        if entry.id == "gone":
            raise PlanError("no_build", "there is none")

    def _hear(self, event: Event) -> None:
        self.heard.append(event)
        self._tell()

    def _tell(self) -> None:
        self._news.set()

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait for the watch to have done something."""
        with anyio.fail_after(30):
            while not condition():
                self._news = anyio.Event()
                await self._news.wait()

    async def looked(self, times: int = 2) -> None:
        """Until it has looked again, and acted on the look before."""
        goal = self.looks + times
        await self.until(lambda: self.looks >= goal)

    def of(self, kind: type[Event]) -> list[Event]:
        """The events of a kind so far."""
        return [event for event in self.heard if isinstance(event, kind)]

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """The watch at work."""
        async with anyio.create_task_group() as tasks:
            await tasks.start(self.watch.run)
            yield
            tasks.cancel_scope.cancel()


def _four(model_id: str = "m", beside: Beside = ALONE) -> _Instance:
    return _Instance(model_entry(model_id), plan_with(threads=4, threads_batch=4, beside=beside))


async def test_a_smaller_quota_is_told_and_an_idle_engine_is_launched_anew() -> None:
    """With the arithmetic, and with the share that it was planned with."""
    engine = _four(beside=Beside(cpu_resident=1))
    bench = _Bench(engine)
    async with bench.running():
        await bench.looked()
        bench.cpus_now = 2.0
        await bench.until(lambda: bool(engine.asked))

    (change,) = bench.of(CpuBudgetChanged)
    assert isinstance(change, CpuBudgetChanged)
    assert (change.old, change.new, change.threads) == (4.0, 2.0, 2)
    assert bench.planned == [("m", Beside(cpu_resident=1))]
    assert engine.asked[0].startswith("planned with 4 threads and 4 for batches; by the CPU budget it is 2 and 2 now")


async def test_a_pinned_model_is_loaded_again_at_once() -> None:
    """Its owner wants it there; one that can't be loaded now is told of by its own events."""
    entries = [replace(model_entry(name), pinned=name == "m", preload=name == "gone") for name in ("m", "gone", "x")]
    engines = [_Instance(entry, plan_with(threads=4, threads_batch=4)) for entry in entries]
    bench = _Bench(*engines)
    bench.lost = False
    async with bench.running():
        await bench.looked()
        bench.cpus_now = 2.0
        await bench.until(lambda: len(bench.loaded) == 2)

    assert sorted(bench.loaded) == ["gone", "m"]


async def test_who_works_goes_on_with_its_threads_until_it_is_idle() -> None:
    """A request in flight is never cut for a number of threads."""
    engine = _four()
    bench = _Bench(engine)
    bench.busy.add("m")
    async with bench.running():
        await bench.looked()
        bench.cpus_now = 2.0
        await bench.looked(4)
        assert engine.asked == []
        bench.busy.clear()
        await bench.until(lambda: bool(engine.asked))


async def test_a_quota_that_comes_back_leaves_the_engine_alone() -> None:
    """What was outdated while it worked is what would be planned again."""
    engine = _four()
    bench = _Bench(engine)
    bench.busy.add("m")
    async with bench.running():
        await bench.looked()
        bench.cpus_now = 2.0
        await bench.looked(3)
        bench.cpus_now = 4.0
        await bench.looked(3)
        bench.busy.clear()
        await bench.looked(3)

    assert engine.asked == []
    assert len(bench.of(CpuBudgetChanged)) == 2


async def test_a_launch_that_has_been_replaced_is_not_stopped() -> None:
    """Prevents: the new launch, planned for the new quota, is taken for the old one."""
    engine = _four()
    bench = _Bench(engine)
    bench.busy.add("m")
    async with bench.running():
        await bench.looked()
        bench.cpus_now = 2.0
        await bench.looked(3)
        engine.generation = 2
        bench.busy.clear()
        await bench.looked(3)

    assert engine.asked == []


async def test_a_model_that_can_not_be_planned_and_a_fault_do_not_end_the_watch() -> None:
    """The first is told when it is launched, the second as an internal error; the next look is tried."""
    lost, engine = _four("gone"), _four()
    bench = _Bench(lost, engine)
    async with bench.running():
        await bench.looked()
        bench.fault = OSError("no /proc")
        await bench.until(lambda: bool(bench.of(InternalError)))
        bench.fault = None
        bench.cpus_now = 2.0
        await bench.until(lambda: bool(engine.asked))

    assert lost.asked == []


async def test_nothing_is_read_while_nothing_runs() -> None:
    """An idle daemon does not look at its quota; the first start begins it."""
    engine = _four()
    engine.state = InstanceState.STOPPED
    bench = _Bench(engine)
    async with bench.running():
        await anyio.wait_all_tasks_blocked()
        assert bench.looks == 0
        engine.state = InstanceState.READY
        bench.watch.instance_changed(engine)
        await bench.looked()


async def test_an_engine_that_stands_still_is_told_once() -> None:
    """With the figures of the window and what helps; again only when other launches run or the quota is another."""
    engine = _four()
    bench = _Bench(engine)
    bench.cpus_now = 2.0
    bench.throttling = Throttling(1000, 0, 0.0, "/cg/cpu.stat")
    async with bench.running():
        await bench.looked()
        bench.throttling = Throttling(1100, 80, 6.5, "/cg/cpu.stat")
        await bench.until(lambda: len(bench.of(CpuThrottled)) == 1)
        bench.throttling = Throttling(1200, 160, 13.0, "/cg/cpu.stat")
        await bench.looked(3)
        assert len(bench.of(CpuThrottled)) == 1
        engine.generation = 2
        bench.throttling = Throttling(1300, 240, 20.0, "/cg/cpu.stat")
        await bench.until(lambda: len(bench.of(CpuThrottled)) == 2)

    told = bench.of(CpuThrottled)[0]
    assert isinstance(told, CpuThrottled)
    assert (told.instances, told.periods, told.throttled, told.seconds) == (("m-1",), 100, 80, 6.5)
    assert told.advice == "4 threads run under a quota of 2 CPUs, which holds 2: fewer are faster"


@pytest.mark.parametrize("after", [Throttling(1100, 20, 1.0, "s"), Throttling(1010, 10, 1.0, "s"), None])
async def test_a_little_throttling_is_not_worth_a_word(after: Throttling | None) -> None:
    """A fifth of the periods, or too few periods to tell, or no counts at all."""
    bench = _Bench(_four())
    bench.throttling = Throttling(1000, 0, 0.0, "s")
    async with bench.running():
        await bench.looked()
        bench.throttling = after
        await bench.looked(3)

    assert not bench.of(CpuThrottled)


async def test_a_load_is_not_work() -> None:
    """Throttled while it reads its model and warms up: the window is thrown away."""
    engine = _four()
    bench = _Bench(engine)
    bench.throttling = Throttling(1000, 0, 0.0, "s")
    async with bench.running():
        await bench.looked()
        bench.throttling = Throttling(1100, 100, 9.0, "s")
        bench.watch.instance_changed(engine)
        await bench.looked(3)

    assert not bench.of(CpuThrottled)


@pytest.mark.parametrize(
    ("quota", "threads", "words"),
    [
        (0.5, [1], "only a larger quota"),
        (1.5, [2], "only a larger quota"),
        (1.0, [1, 1], "fewer are faster"),
        (2.0, [2, None], "set launch.threads to 2"),
    ],
)
def test_the_advice_is_what_would_help(quota: float, threads: list[int | None], words: str) -> None:
    """Fewer threads where there are too many, a larger quota where there are not."""
    assert words in advice(quota, threads)
