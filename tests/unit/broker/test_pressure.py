"""Pressure from outside: when idle engines are let go, and which."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from engines.contract import EngineKind
from supervisor.broker.admission import Policy
from supervisor.broker.broker import Broker
from supervisor.broker.eviction import Resident
from supervisor.broker.ledger import Claim, Entry, Ledger, Pool
from supervisor.broker.pressure import PressureReading, choose_let_go, free_bound, short_of_memory
from supervisor.broker.pressure_watch import PressurePorts, PressureWatch
from supervisor.broker.tickets import QueueLimits
from supervisor.errors import PlanError
from supervisor.events import EventBus
from supervisor.host.pools import PoolRoom
from supervisor.memory_events import Evicted, HostPressure, OverCommitted
from supervisor.models.catalog import ModelEntry
from tests.fakes.clock import HandClock
from tests.fakes.instances import FakeFleet, FakePlanner, model_entry

GIB = 2**30
EASY = PressureReading(20 * GIB, 32 * GIB, 0.0)
SHORT = PressureReading(GIB, 32 * GIB, 0.0)
# A machine of 32 GiB that fills up, looked at every 15 s; made up, with the precision that the kernel has.
FILLING = [
    EASY,
    PressureReading(4 * GIB, 32 * GIB, 0.4),
    PressureReading(2 * GIB, 32 * GIB, 3.1),
    PressureReading(GIB, 32 * GIB, 28.0),
    PressureReading(GIB // 2, 32 * GIB, 61.5),
]


@pytest.mark.parametrize(
    ("reading", "said"),
    [
        (EASY, None),
        (PressureReading(2 * GIB, 32 * GIB, None), "2.0 GiB of 32.0 GiB is available"),
        (PressureReading(3 * GIB, 32 * GIB, 12.5), "12.5 %"),
        (PressureReading(GIB, 4 * GIB, 0.0), None),
        (PressureReading(GIB // 2, 4 * GIB, 0.0), "512.0 MiB of 4.0 GiB"),
        (PressureReading(None, None, None), None),
        (PressureReading(None, 32 * GIB, 9.9), None),
    ],
)
def test_short_is_little_left_or_tasks_that_wait(reading: PressureReading, said: str | None) -> None:
    """By the machine's size; what is not known is no shortage, and a small machine is not always short."""
    found = short_of_memory(reading)
    assert (found is None) == (said is None)
    assert (said or "") in (found or "")


@pytest.mark.parametrize(("whole", "bound"), [(128, 128 * 0.08), (32, 2.56), (8, 1), (2, 0.25)])
def test_the_bound_follows_the_size(whole: int, bound: float) -> None:
    """8 % of a large machine, 1 GiB of a usual one, an eighth of a small one."""
    assert free_bound(whole * GIB) == pytest.approx(bound * GIB, rel=0.001)


def _resident(model: str, idle: float | None, **more: object) -> Resident:
    return Resident(f"{model}-1", model, None if idle is None else 100.0 - idle, **more)  # type: ignore[arg-type]


def _ledger(*models: str) -> Ledger:
    return Ledger({"host": Pool(100)}, {f"{m}-1": Entry(f"{m}-1", m, {"host": Claim(10)}) for m in models})


def _chosen(residents: Sequence[Resident], since: float = 50.0) -> str | None:
    found = choose_let_go("why", since, 100.0, 30.0, residents, _ledger("a", "b"))
    return None if found is None else found.model


def test_it_must_have_lasted_and_the_engine_been_idle_for_as_long() -> None:
    """A moment's shortage costs nobody a model, and one that was just used stays."""
    assert _chosen([_resident("a", 40.0)]) == "a"
    assert _chosen([_resident("a", 40.0)], since=80.0) is None
    assert _chosen([_resident("a", 20.0)]) is None


def test_never_one_that_works_or_is_pinned_and_the_least_missed_first() -> None:
    """Of two idle ones that hold as much, the one that is asked for less goes."""
    assert _chosen([_resident("a", None), _resident("b", 40.0, pinned=True)]) is None
    assert _chosen([_resident("a", 40.0, demand=2.0), _resident("b", 40.0, demand=1.0)]) == "b"


class _Machine:
    """A broker with one idle engine that is ready, and a machine whose readings a test says."""

    def __init__(self) -> None:
        self.clock = HandClock()
        self.bus = EventBus(self.clock)
        self.fleet = FakeFleet()
        self.broker = Broker(self.fleet, FakePlanner(), QueueLimits(), Policy(), self.clock, self.bus)
        self.fleet.changed = self.broker.instance_changed
        self.instance = self.fleet.instance(model_entry())
        self.broker.pin(model_entry(), pinned=False)
        self.broker.memory.use([PoolRoom("host", 100, None, "")])
        self.broker.memory.reserve(self.instance.id, "m", {"host": Claim(60)})
        self.instance.is_ready = True
        self.budget: int | None = 100
        self.reading = EASY
        ports = PressurePorts(lambda: self.reading, self._rooms, lambda: 30.0)
        self.watch = PressureWatch(ports, self.broker, self.clock, self.bus)

    async def _rooms(self, entry: ModelEntry) -> tuple[PoolRoom, ...]:
        assert entry.engine is EngineKind.LLAMA_CPP
        if self.budget is None:
            raise PlanError("no_build", "there is none")
        return (PoolRoom("host", self.budget, None, "said by the test"),)

    async def look(self, reading: PressureReading) -> None:
        """Fifteen seconds later."""
        self.clock.advance(15.0)
        self.reading = reading
        await self.watch.look()

    def heard(self, *kinds: type) -> list[object]:
        """Events so far."""
        return [record.event for record in self.bus.since(0) if isinstance(record.event, kinds)]


async def test_a_machine_that_fills_up_gets_the_idle_engine_back_once_it_stays_so() -> None:
    """Not at the first reading that is short; then once, with the figures, and the engine goes."""
    machine = _Machine()
    for reading in FILLING[:4]:
        await machine.look(reading)
    assert (machine.instance.stopped, machine.heard(HostPressure)) == ([], [])
    await machine.look(FILLING[4])
    (told,) = machine.heard(HostPressure)
    assert isinstance(told, HostPressure)
    assert (told.lasted_seconds, told.available_bytes, told.some_percent) == (30.0, GIB // 2, 61.5)
    (gone,) = machine.heard(Evicted)
    assert isinstance(gone, Evicted)
    assert (gone.model, gone.beneficiary, gone.drained) == ("m", None, False)
    assert "short of memory for 30 s" in machine.instance.stopped[0]


async def test_a_shortage_that_ends_in_between_starts_anew() -> None:
    """Two short ones are no long one."""
    machine = _Machine()
    for reading in (SHORT, SHORT, EASY, SHORT, SHORT):
        await machine.look(reading)
    assert machine.instance.stopped == []


async def test_a_smaller_budget_is_seen_while_nothing_starts() -> None:
    """Others took memory, or a limit was lowered: told, and the idle engine goes; a budget that can't be read stays."""
    machine = _Machine()
    machine.budget = None
    await machine.look(EASY)
    assert machine.heard(OverCommitted) == []
    machine.budget = 50
    await machine.look(EASY)
    (over,) = machine.heard(OverCommitted)
    assert isinstance(over, OverCommitted)
    assert (over.budget_bytes, over.reserved_bytes) == (50, 60)
    assert len(machine.instance.stopped) == 1


async def test_budgets_are_not_read_while_an_engine_loads() -> None:
    """What it holds and what all hold are read a moment apart: the difference would count as others'."""
    machine = _Machine()
    machine.instance.is_ready, machine.instance.is_starting = False, True
    machine.budget = 50
    await machine.look(EASY)
    assert machine.heard(OverCommitted) == []
