"""Memory that is on its way back: of a device, which frees it a moment after the process has ended."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import anyio
import anyio.lowlevel
import pytest

from engines.contract import LaunchPlan, MemoryEstimate
from supervisor.broker.admission import Policy
from supervisor.broker.broker import Broker
from supervisor.broker.lease import Lease, LeaseRequest
from supervisor.broker.ledger import Ledger, Stage
from supervisor.broker.ports import Options
from supervisor.broker.tickets import QueueLimits
from supervisor.errors import PlanError, SupervisorError
from supervisor.events import EventBus, InternalError
from supervisor.host.pools import PoolRoom
from supervisor.models.catalog import ModelEntry
from tests.fakes.clock import HandClock
from tests.fakes.instances import FakeFleet, FakeInstance, FakePlanner, model_entry

CARD = "gpu:0"


class CardPlanner(FakePlanner):
    """Plans for a card.

    Attributes:
        seen: its room when it is looked whether memory is back.
        fault: raised then instead.
    """

    def __init__(self, budget: int) -> None:
        super().__init__(budget)
        self.seen = budget
        self.fault: Exception | None = None

    async def options(self, entry: ModelEntry, ledger: Ledger) -> Options:
        """Plans are made for the whole card."""
        room = PoolRoom(CARD, self.budget, self.budget, "by the test")
        return replace(await super().options(entry, ledger), rooms=(room,))

    async def rooms(self, _entry: ModelEntry) -> tuple[PoolRoom, ...]:
        """The card's, as it is seen."""
        if self.fault is not None:
            raise self.fault
        return (PoolRoom(CARD, self.seen, self.seen, "by the test"),)

    def plan(self, entry: ModelEntry, size: int | None) -> LaunchPlan:
        """All of it is on the card."""
        plan = super().plan(entry, size)
        return replace(plan, memory={CARD: MemoryEstimate(other=size)}, pools={CARD: CARD})


class Card:
    """A card of 100 bytes, and models that need 60 each."""

    def __init__(self) -> None:
        self.clock = HandClock()
        self.bus = EventBus(self.clock)
        self.fleet = FakeFleet(slots=1)
        self.planner = CardPlanner(100)
        self.planner.sizes.update(a=60, b=60, c=10)
        self.broker = Broker(self.fleet, self.planner, QueueLimits(), Policy(5.0, 10.0), self.clock, self.bus)
        self.fleet.changed = self.broker.instance_changed
        self.outcomes: dict[str, Lease | SupervisorError] = {}

    def instance(self, model: str) -> FakeInstance:
        """The model's instance."""
        return self.fleet.instance(model_entry(model))

    @property
    def stages(self) -> dict[str, Stage]:
        """Of the book's entries."""
        return {name: entry.stage for name, entry in self.broker.memory.ledger.entries.items()}

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Card]:
        """With the broker at work."""
        async with anyio.create_task_group() as tasks:
            await tasks.start(self.broker.run)
            yield self
            tasks.cancel_scope.cancel()

    @asynccontextmanager
    async def asking(self, model: str) -> AsyncIterator[None]:
        """A request that holds its lease within the block."""

        async def hold() -> None:
            try:
                async with self.broker.lease(LeaseRequest(f"r-{model}", "a", model_entry(model))) as lease:
                    self.outcomes[model] = lease
                    await anyio.sleep_forever()
            except SupervisorError as error:
                self.outcomes[model] = error

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(hold)
            await anyio.wait_all_tasks_blocked()
            yield
            tasks.cancel_scope.cancel()

    async def make_resident(self, model: str) -> None:
        """It was asked for, is ready, and idle."""
        async with self.asking(model):
            self.instance(model).becomes(ready=True)
            await anyio.wait_all_tasks_blocked()
        self.clock.advance(6)


async def test_who_waits_for_a_card_is_not_refused_while_its_memory_comes_back() -> None:
    """Regression: in the step in which the evicted engine ended, the one that it had gone for was told `no_room`."""
    async with Card().running() as card:
        await card.make_resident("a")
        async with card.asking("b"):
            assert len(card.instance("a").stopped) == 1
            card.instance("a").becomes(ready=False)
            assert card.stages == {"a-1": Stage.RELEASING}
            await anyio.wait_all_tasks_blocked()
            assert card.outcomes.get("b") is None
            assert card.instance("b").wanted == 1


async def test_a_model_is_not_started_into_its_own_memory_that_is_not_back_yet() -> None:
    """Regression: two of it fit, so it was started at once, and its entry was in the book still: a fault of ours."""
    async with Card().running() as card:
        await card.make_resident("c")
        card.planner.seen = 0
        card.instance("c").becomes(ready=False)
        async with card.asking("c"):
            assert card.stages == {"c-1": Stage.RELEASING}
            assert card.instance("c").wanted == 1
            card.planner.seen = 100
            with anyio.fail_after(30):
                while card.instance("c").wanted == 1:
                    await anyio.lowlevel.checkpoint()
            assert card.stages == {"c-1": Stage.PREDICTED}


@pytest.mark.parametrize("fault", [PlanError("build_unusable", "set aside"), OSError("no driver")])
async def test_memory_that_can_not_be_looked_at_counts_as_given_back(fault: Exception) -> None:
    """Regression: a build that was set aside by the same crash ended the broker, and the daemon with it."""
    async with Card().running() as card:
        await card.make_resident("a")
        card.planner.fault = fault
        card.instance("a").becomes(ready=False)
        await anyio.wait_all_tasks_blocked()
        assert card.stages == {}
        card.planner.fault = None
        async with card.asking("b"):
            assert card.instance("b").wanted == 1
    told = [record.event for record in card.bus.since(0) if isinstance(record.event, InternalError)]
    assert len(told) == (0 if isinstance(fault, SupervisorError) else 1)


async def test_an_end_that_is_heard_of_twice_gives_back_once() -> None:
    """Regression: a crash is heard of as BACKOFF and as STOPPED; the second look took the next launch's entry away."""
    async with Card().running() as card:
        await card.make_resident("a")
        card.instance("a").becomes(ready=False)
        assert not card.broker.memory.ended("a-1")
        await anyio.wait_all_tasks_blocked()
        async with card.asking("a"):
            assert card.stages == {"a-1": Stage.PREDICTED}
            card.broker.memory.is_back("a-1")
            assert card.stages == {"a-1": Stage.PREDICTED}
