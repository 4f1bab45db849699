"""The fleet: who is told of its instances, and what it starts when it closes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import cast

import anyio

from engines.contract import LaunchPlan
from engines.llama_cpp.adapter import LlamaCppAdapter
from supervisor.errors import PlanError
from supervisor.events import EventBus, InternalError
from supervisor.instances.fleet import Fleet
from supervisor.instances.instance import Instance
from supervisor.instances.lifecycle import InstanceState
from supervisor.instances.tools import InstanceLimits, InstanceTools
from supervisor.models.catalog import ModelEntry
from supervisor.processes.log_file import LogFile
from tests.fakes.clock import HandClock
from tests.fakes.instances import model_entry


class Yard:
    """A fleet whose launches end before there is a process: there is no build."""

    def __init__(self) -> None:
        self.clock = HandClock()
        self.bus = EventBus(self.clock)
        self.fleet = Fleet(self._tools, InstanceLimits())
        self.states: list[InstanceState] = []

    def note(self, instance: Instance) -> None:
        """Observer: its state."""
        self.states.append(instance.state)

    def _tools(self, _entry: ModelEntry, changed: Callable[[Instance], None]) -> InstanceTools:
        return InstanceTools(
            adapter=LlamaCppAdapter(),
            prepare=_no_build,
            environment=lambda _adapter, _plan, _key: {},
            forget_key=lambda _key: None,
            clean=str,
            runtime_dir=Path("/nowhere"),
            clock=self.clock,
            bus=self.bus,
            changed=changed,
            log=cast("LogFile", None),
        )


async def _no_build(_entry: ModelEntry) -> LaunchPlan:
    raise PlanError("no_build", "there is none")


def _broken(_instance: Instance) -> None:
    raise AssertionError("a bug of ours")


async def test_a_fault_of_an_observer_is_told_and_ends_nothing() -> None:
    """Regression: it ended the instance's task, with that the fleet, and with that the daemon."""
    yard = Yard()
    yard.fleet.observe(_broken)
    yard.fleet.observe(yard.note)
    async with anyio.create_task_group() as tasks:
        await tasks.start(yard.fleet.run)
        instance = yard.fleet.instance(model_entry("a"))
        for _ in range(2):
            assert instance.want()
            await instance.next(InstanceState.FAILED)
        tasks.cancel_scope.cancel()
    assert yard.states == [InstanceState.STARTING, InstanceState.FAILED] * 2
    told = [record.event for record in yard.bus.since(0) if isinstance(record.event, InternalError)]
    assert len(told) == 4


async def test_a_wish_that_has_just_come_starts_nothing_when_the_fleet_closes() -> None:
    """Regression: an instance that rested was still started, after everybody had been said to be stopped."""
    yard = Yard()
    yard.fleet.observe(yard.note)
    async with anyio.create_task_group() as tasks:
        await tasks.start(yard.fleet.run)
        instance = yard.fleet.instance(model_entry("a"))
        await anyio.wait_all_tasks_blocked()
        assert instance.want()
        await yard.fleet.stop_all("the daemon stops")
        await anyio.wait_all_tasks_blocked()
        tasks.cancel_scope.cancel()
    assert yard.states == []
