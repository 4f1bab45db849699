"""Memory in the broker: reserved before a launch, given back after it, and made free by stopping who is idle."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace

import anyio
import pytest

from supervisor.broker.admission import Policy
from supervisor.broker.broker import Broker
from supervisor.broker.lease import Lease, LeaseRequest
from supervisor.broker.tickets import QueueLimits
from supervisor.errors import AdmissionError, InstanceError, PlanError, SupervisorError
from supervisor.events import EventBus, InternalError
from supervisor.memory_events import Evicted, OverCommitted, RequestWaits
from tests.fakes.clock import HandClock
from tests.fakes.instances import FakeFleet, FakeInstance, FakePlanner, model_entry


class Machine:
    """A host of 100 bytes, and models that need what a test says; 60 each unless it does."""

    def __init__(self, **sizes: int) -> None:
        self.clock = HandClock()
        self.bus = EventBus(self.clock)
        self.fleet = FakeFleet(slots=1)
        self.planner = FakePlanner(budget=100)
        self.planner.sizes.update(sizes)
        policy = Policy(min_idle=5.0, swap_after=10.0)
        self.broker = Broker(self.fleet, self.planner, QueueLimits(), policy, self.clock, self.bus)
        self.fleet.changed = self.broker.instance_changed
        self.outcomes: dict[str, Lease | SupervisorError] = {}

    def instance(self, model: str) -> FakeInstance:
        """The model's instance."""
        return self.fleet.instance(model_entry(model))

    def reserved(self) -> int:
        """Bytes promised of the host."""
        return self.broker.memory.ledger.reserved("host")

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Machine]:
        """With the broker at work."""
        async with anyio.create_task_group() as tasks:
            await tasks.start(self.broker.run)
            yield self
            tasks.cancel_scope.cancel()

    @asynccontextmanager
    async def asking(self, model: str) -> AsyncIterator[anyio.CancelScope]:
        """A request that holds its lease within the block, or until its scope is cancelled."""
        async with AsyncExitStack() as stack:
            tasks = await stack.enter_async_context(anyio.create_task_group())

            async def hold() -> None:
                try:
                    async with self.broker.lease(LeaseRequest(f"r-{model}", "a", model_entry(model))) as lease:
                        self.outcomes[model] = lease
                        await anyio.sleep_forever()
                except SupervisorError as error:
                    self.outcomes[model] = error

            tasks.start_soon(hold)
            await anyio.wait_all_tasks_blocked()
            yield tasks.cancel_scope
            tasks.cancel_scope.cancel()
        await anyio.wait_all_tasks_blocked()

    async def becomes(self, model: str, *, ready: bool, failure: SupervisorError | None = None) -> None:
        """The instance's engine is ready, or gone."""
        self.instance(model).becomes(ready=ready, failure=failure)
        await anyio.wait_all_tasks_blocked()

    async def make_resident(self, model: str) -> None:
        """It was asked for, is ready, and idle."""
        async with self.asking(model):
            await self.becomes(model, ready=True)
            assert isinstance(self.outcomes[model], Lease)


async def test_memory_is_reserved_before_the_launch_and_given_back_after_it() -> None:
    """The book holds the entry from the wish to the end of the process."""
    async with Machine(a=60).running() as machine:
        async with machine.asking("a"):
            assert machine.reserved() == 60
            assert machine.instance("a").wanted == 1
            await machine.becomes("a", ready=True)
        assert machine.reserved() == 60
        await machine.becomes("a", ready=False)
        assert machine.reserved() == 0


async def test_an_idle_engine_is_stopped_for_another_which_starts_when_its_bytes_are_back() -> None:
    """A resident, B asked for: A is told to stop, B is not wanted before A has ended, and is then."""
    async with Machine(a=60, b=60).running() as machine:
        await machine.make_resident("a")
        machine.clock.advance(6)
        async with machine.asking("b"):
            assert [why.startswith("evicted: b needs 60 B") for why in machine.instance("a").stopped] == [True]
            assert machine.instance("b").wanted == 0
            await machine.becomes("a", ready=False)
            assert machine.instance("b").wanted == 1
            await machine.becomes("b", ready=True)
            assert isinstance(machine.outcomes["b"], Lease)
            assert machine.reserved() == 60
    evicted = [record.event for record in machine.bus.since(0) if isinstance(record.event, Evicted)]
    assert [(event.model, event.beneficiary) for event in evicted] == [("a", "b")]


async def test_an_engine_that_generates_is_never_cut() -> None:
    """B waits while A works, then A takes nobody new, ends what it does, and only then is stopped."""
    async with Machine(a=60, b=60).running() as machine, machine.asking("a") as a:
        await machine.becomes("a", ready=True)
        async with machine.asking("b"):
            assert machine.instance("a").stopped == []
            assert not machine.instance("a").draining
            machine.clock.advance(11)
            async with machine.asking("c"):  # any change is decided on anew
                assert machine.instance("a").draining
                assert machine.instance("a").stopped == []
                a.cancel()
                await anyio.wait_all_tasks_blocked()
                assert len(machine.instance("a").stopped) == 1
                await machine.becomes("a", ready=False)
                assert machine.instance("b").wanted == 1


async def test_what_never_fits_is_refused_before_anything_is_stopped() -> None:
    """More than the whole machine: a plan error with the arithmetic, and the resident stays."""
    async with Machine(a=60, b=101).running() as machine:
        await machine.make_resident("a")
        machine.clock.advance(6)
        async with machine.asking("b"):
            error = machine.outcomes["b"]
            assert isinstance(error, PlanError)
            assert error.code == "does_not_fit"
        assert machine.instance("a").stopped == []


async def test_a_load_that_fails_leaves_the_budget_whole() -> None:
    """Its reservation goes with it, and the next one fits."""
    async with Machine(a=60, b=60).running() as machine:
        async with machine.asking("a"):
            machine.instance("a").becomes(
                ready=False, failure=InstanceError("start_failed", "no"), can_start=False, failed=True
            )
            await anyio.wait_all_tasks_blocked()
            assert isinstance(machine.outcomes["a"], InstanceError)
        assert machine.reserved() == 0
        async with machine.asking("b"):
            assert machine.instance("b").wanted == 1


async def test_a_load_that_nobody_waits_for_any_more_is_stopped() -> None:
    """Its memory is for others; while a second one waits it goes on."""
    async with Machine(a=60).running() as machine, machine.asking("a") as first:
        machine.instance("a").is_starting = True
        async with machine.asking("a") as second:
            first.cancel()
            await anyio.wait_all_tasks_blocked()
            assert machine.instance("a").stopped == []
            second.cancel()
            await anyio.wait_all_tasks_blocked()
            assert machine.instance("a").stopped == ["nobody waits for it any more"]


async def test_a_load_by_hand_goes_on_without_anybody() -> None:
    """An operator who leaves after asking still wants it."""
    async with Machine(a=60).running() as machine:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(machine.broker.load, model_entry("a"))
            await anyio.wait_all_tasks_blocked()
            machine.instance("a").is_starting = True
            tasks.cancel_scope.cancel()
        await anyio.wait_all_tasks_blocked()
        assert machine.instance("a").stopped == []


async def test_a_load_by_hand_is_admitted_like_any_other() -> None:
    """It waits for room, and returns when the model is ready."""
    async with Machine(a=60, b=60).running() as machine:
        await machine.make_resident("a")
        machine.clock.advance(6)
        done = anyio.Event()

        async def load() -> None:
            await machine.broker.load(model_entry("b"))
            done.set()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(load)
            await anyio.wait_all_tasks_blocked()
            await machine.becomes("a", ready=False)
            assert not done.is_set()
            await machine.becomes("b", ready=True)
            assert done.is_set()


async def test_pinned_models_are_not_evicted_and_that_is_said() -> None:
    """Nothing that could go: refused at once, with who holds the memory."""
    async with Machine(a=60, b=60).running() as machine:
        await machine.make_resident("a")
        machine.broker.pin(model_entry("a"), pinned=True)
        machine.clock.advance(6)
        async with machine.asking("b"):
            error = machine.outcomes["b"]
            assert isinstance(error, AdmissionError)
            assert error.code == "no_room"
            assert "a" in error.message
        machine.broker.pin(model_entry("a"), pinned=False)
        machine.clock.advance(6)
        async with machine.asking("b"):
            assert len(machine.instance("a").stopped) == 1


async def test_growth_beyond_the_budget_is_told_and_idle_engines_go() -> None:
    """What the system shows may exceed what was promised: an event with the numbers, and the idle one is stopped."""
    async with Machine(a=40, b=40).running() as machine:
        await machine.make_resident("a")
        machine.clock.advance(6)
        async with machine.asking("b"):
            await machine.becomes("b", ready=True)
            machine.broker.memory_seen("b-1", {}, {"host": 75})
            assert len(machine.instance("a").stopped) == 1
            assert machine.instance("b").stopped == []
    told = [record.event for record in machine.bus.since(0) if isinstance(record.event, OverCommitted)]
    assert [event.over_bytes for event in told] == [15]


async def test_who_waits_is_told_for_what() -> None:
    """In the status, and as an event with the arithmetic."""
    async with Machine(a=60, b=60).running() as machine, machine.asking("a"):
        await machine.becomes("a", ready=True)
        async with machine.asking("b"):
            (row,) = machine.broker.queue_view()
            assert "b needs 60 B in host, where 40 B of 100 B is free (held by a 60 B)" in row["why"]
    told = [record.event for record in machine.bus.since(0) if isinstance(record.event, RequestWaits)]
    assert any(event.model == "b" and "in use" in event.why for event in told)


async def test_a_fault_in_the_planner_refuses_its_requests_only() -> None:
    """A bug of ours in planning is an error for who asked, and the broker goes on."""
    async with Machine(a=60).running() as machine:
        machine.planner.error = PlanError("no_build", "there is none")
        async with machine.asking("a"):
            assert isinstance(machine.outcomes["a"], PlanError)
        machine.planner.error = None
        machine.clock.advance(20)
        async with machine.asking("a"):
            assert machine.instance("a").wanted == 1


@pytest.mark.parametrize("state", ["waiting", "loading", "leased"])
async def test_a_request_that_leaves_in_any_phase_leaves_nothing(state: str) -> None:
    """Queue and leases are empty afterwards; the memory is the engine's, or nobody's."""
    async with Machine(a=60).running() as machine:
        async with machine.asking("a"):
            if state == "leased":
                await machine.becomes("a", ready=True)
            elif state == "loading":
                machine.instance("a").is_starting = True
        assert machine.broker.queue_view() == []
        assert machine.broker.lease_count == 0


async def test_who_loads_by_hand_hears_of_an_unload_by_hand() -> None:
    """The loader is told, and the model is not started again by its waiting; a request would have it started anew."""
    async with Machine(a=60).running() as machine, anyio.create_task_group() as tasks:
        heard: list[str] = []

        async def load() -> None:
            try:
                await machine.broker.load(model_entry("a"))
            except InstanceError as error:
                heard.append(error.code)

        tasks.start_soon(load)
        await anyio.wait_all_tasks_blocked()
        machine.instance("a").is_starting = True
        machine.broker.unload(machine.instance("a"))
        await anyio.wait_all_tasks_blocked()
        assert heard == ["instance_stopping"]
        assert machine.instance("a").stopped[-1] == "unloaded by hand"
        machine.instance("a").is_starting = False
        await machine.becomes("a", ready=False)
        assert machine.instance("a").wanted == 1
        assert machine.reserved() == 0


async def test_a_request_that_waits_survives_an_unload_by_hand() -> None:
    """It is still wanted: the engine is started anew once it has ended."""
    async with Machine(a=60).running() as machine, machine.asking("a"):
        machine.instance("a").is_starting = True
        machine.broker.unload(machine.instance("a"))
        machine.instance("a").is_starting = False
        await machine.becomes("a", ready=False)
        assert machine.instance("a").wanted == 2


async def test_a_load_by_hand_may_take_longer_than_a_request_waits() -> None:
    """Prevents that a slow disk's load was given up after `queue.max_wait`, which bounds requests only."""
    machine = Machine(a=60)
    machine.broker.use(QueueLimits(max_wait=0.01), Policy())
    async with machine.running(), anyio.create_task_group() as tasks:
        done = anyio.Event()

        async def load() -> None:
            await machine.broker.load(model_entry("a"))
            done.set()

        tasks.start_soon(load)
        await anyio.sleep(0.05)  # the time itself is the subject
        assert not done.is_set()
        await machine.becomes("a", ready=True)
        with anyio.fail_after(5):
            await done.wait()


async def test_who_waits_through_a_change_of_the_config_is_launched_by_the_new_one() -> None:
    """Regression: the plan was made by the entry that the request had come with, and the old settings then ran."""
    async with Machine(a=60, b=60).running() as machine, machine.asking("a"):
        await machine.becomes("a", ready=True)
        async with machine.asking("b"):
            assert machine.instance("b").wanted == 0
            changed = replace(model_entry("b"), aliases=("new",))
            machine.broker.adopt(changed, "its settings have changed")
            await machine.becomes("a", ready=False)
            assert machine.instance("b").wanted == 1
            assert machine.planner.entries[-1] is changed


async def test_a_change_of_the_config_while_a_start_is_thought_about_has_it_thought_anew() -> None:
    """Regression: what was worked out by the old config was kept, and launched."""
    async with Machine(a=60).running() as machine:
        machine.planner.gate = anyio.Event()
        async with machine.asking("a"):
            changed = replace(model_entry("a"), aliases=("new",))
            machine.broker.adopt(changed, None)
            machine.planner.gate.set()
            await anyio.wait_all_tasks_blocked()
            assert machine.planner.entries[-1] is changed
            assert machine.instance("a").wanted == 1


async def test_a_start_that_waits_out_its_delay_is_given_up_with_the_last_who_waits() -> None:
    """Regression: after a crash the memory stayed reserved for up to a minute, and then it was loaded for nobody."""
    async with Machine(a=60).running() as machine:
        async with machine.asking("a"):
            assert machine.instance("a").at_rest
            assert machine.reserved() == 60
        assert machine.instance("a").stopped == ["nobody waits for it any more"]


async def test_a_load_by_hand_of_what_is_ready_has_its_idle_time_counted_from_then_on() -> None:
    """Regression: a model about to be stopped was stopped a moment after it had been loaded again."""
    async with Machine(a=60).running() as machine:
        await machine.make_resident("a")
        machine.clock.advance(50)
        await machine.broker.load(model_entry("a"))
        assert machine.broker.books["a"].idle_since == machine.clock.monotonic()


async def test_a_fall_back_that_needs_more_is_admitted_anew() -> None:
    """The next build's plan does not fit beside the others: it is not refused for that, an idle engine goes for it."""
    async with Machine(a=60, b=40).running() as machine:
        await machine.make_resident("a")
        machine.clock.advance(6)
        async with machine.asking("b"):
            assert (machine.instance("b").wanted, machine.instance("a").stopped) == (1, [])
            b = machine.instance("b")
            await machine.broker.plan_for(model_entry("b"))
            b.is_starting = True
            machine.planner.sizes["b"] = 70
            with pytest.raises(AdmissionError) as caught:
                await machine.broker.plan_for(model_entry("b"))
            assert caught.value.facts["admit_anew"]
            b.is_starting, b.backing_off, b.wanted = False, True, 0
            await machine.becomes("b", ready=False)
            assert machine.outcomes.get("b") is None
            assert machine.reserved() == 60
            b.backing_off = False
            await machine.becomes("b", ready=False)
            assert len(machine.instance("a").stopped) == 1
            await machine.becomes("a", ready=False)
            assert (b.wanted, machine.reserved()) == (1, 70)
            await machine.becomes("b", ready=True)
            assert isinstance(machine.outcomes["b"], Lease)


async def test_a_refusal_is_worked_out_anew_when_builds_have_changed() -> None:
    """Regression: what had been cleared or pinned by an operator was felt only when the old refusal had grown old."""
    async with Machine(a=60).running() as machine:
        machine.planner.error = PlanError("build_unusable", "set aside")
        async with machine.asking("a"):
            assert isinstance(machine.outcomes["a"], PlanError)
        machine.planner.error = None
        async with machine.asking("a"):
            assert isinstance(machine.outcomes["a"], PlanError)
        machine.broker.rethink()
        async with machine.asking("a"):
            assert machine.instance("a").wanted == 1


async def test_a_fault_in_a_decision_ends_nothing_else() -> None:
    """It is told, whoever told of the change goes on, and the next change is decided on."""
    async with Machine(a=60, b=60).running() as machine:
        start = machine.instance("a").want
        machine.instance("a").want = _broken  # type: ignore[method-assign]  # a fault of our own
        async with machine.asking("a"):
            assert machine.outcomes == {}
        machine.instance("a").want = start  # type: ignore[method-assign]  # as it was
        told = [record.event for record in machine.bus.since(0) if isinstance(record.event, InternalError)]
        assert [(event.where, "no such thing" in event.error) for event in told] == [("admission", True)]
        await machine.becomes("a", ready=False)
        await machine.make_resident("b")


def _broken() -> bool:
    raise LookupError("no such thing")
