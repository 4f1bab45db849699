from __future__ import annotations

import anyio
import pytest

from supervisor.events import EventBus, InternalError
from supervisor.telemetry.pulse import CpuFigures, PoolFigures, Pulse, Work
from tests.fakes.clock import HandClock


class Machine:
    """What the pulse is taken of."""

    def __init__(self) -> None:
        self.clock = HandClock()
        self.bus = EventBus(self.clock)
        self.work = Work(0, 0, 0)
        self.cpu = CpuFigures(1.5, 1, 1.5, "/cpu.max", "quota", 100, 10)
        self.fault: Exception | None = None
        self.pulse = Pulse(lambda: self.work, self.read_cpu, self.clock, self.bus)

    def read_cpu(self) -> CpuFigures:
        """As the test says."""
        if self.fault is not None:
            raise self.fault
        return self.cpu


async def test_a_rate_is_what_came_between_two_samples() -> None:
    """The first sample has nothing before it, and says 0 for that reason alone."""
    machine = Machine()
    await machine.pulse.take()
    machine.clock.advance(10)
    machine.work = Work(250, 2, 1, {"host": PoolFigures(100, 40, None)})
    machine.cpu = CpuFigures(1.5, 1, 1.5, "/cpu.max", "quota", 150, 35)
    await machine.pulse.take()
    document = machine.pulse.document()
    assert document["tokens_per_second"] == [0.0, 25.0]
    assert document["waiting"] == [0, 1]
    assert document["throttled"] == [None, 0.5]
    assert document["pools"] == {"host": [None, 40]}


async def test_a_quota_of_another_group_is_not_compared() -> None:
    """Counts of two groups have nothing to do with each other."""
    machine = Machine()
    await machine.pulse.take()
    machine.cpu = CpuFigures(2.0, 2, 2.0, "/other/cpu.max", "quota", 5, 5)
    await machine.pulse.take()
    assert machine.pulse.samples[-1].throttled is None


async def test_an_hour_is_kept() -> None:
    """And no more, however long the daemon runs."""
    machine = Machine()
    for _ in range(365):
        await machine.pulse.take()
    assert len(machine.pulse.document()["at"]) == 360


async def test_a_fault_of_our_own_is_told_once() -> None:
    """A file that can't be read must not end the daemon, nor fill its log."""
    machine = Machine()
    machine.fault = RuntimeError("no")
    told = anyio.Event()
    machine.bus.listen(lambda _record: told.set())
    async with anyio.create_task_group() as tasks:
        await tasks.start(machine.pulse.run)
        with anyio.fail_after(10):
            await told.wait()
        tasks.cancel_scope.cancel()
    [record] = machine.bus.since(0)
    assert isinstance(record.event, InternalError)
    assert record.event.error == repr(machine.fault)
    assert machine.pulse.cpu is None


@pytest.mark.parametrize("count", [1, 2])
async def test_columns_are_of_one_length(count: int) -> None:
    """The page draws them side by side."""
    machine = Machine()
    for _ in range(count):
        await machine.pulse.take()
    document = machine.pulse.document()
    lengths = {len(document[key]) for key in ("at", "tokens_per_second", "running", "waiting", "throttled")}
    assert lengths == {count}
