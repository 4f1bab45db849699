"""The broker: nobody is lost, nothing is left behind, whatever happens to whom and when."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace

import anyio
import anyio.lowlevel
import pytest

from supervisor.broker.admission import Policy
from supervisor.broker.broker import Broker
from supervisor.broker.lease import Lease, LeaseRequest
from supervisor.broker.tickets import QueueLimits
from supervisor.errors import AdmissionError, InstanceError, ModelError, PlanError, SupervisorError
from supervisor.events import EventBus, RequestDenied, RequestLeased
from tests.fakes.clock import HandClock
from tests.fakes.instances import FakeFleet, FakeInstance, FakePlanner, model_entry

ENTRY = model_entry()


class Bench:
    """A broker over a fake fleet."""

    def __init__(self, slots: int = 2, *, max_wait: float = 60.0) -> None:
        self.clock = HandClock()
        self.bus = EventBus(self.clock)
        self.fleet = FakeFleet(slots)
        self.planner = FakePlanner()
        limits = QueueLimits(per_caller=4, total=6, max_wait=max_wait)
        self.broker = Broker(self.fleet, self.planner, limits, Policy(), self.clock, self.bus)
        self.fleet.changed = self.broker.instance_changed
        self.running = False
        self.outcomes: dict[str, Lease | SupervisorError] = {}
        self.leave: dict[str, anyio.Event] = {}

    @property
    def instance(self) -> FakeInstance:
        """The one model's instance."""
        return self.fleet.instance(ENTRY)

    def request(self, name: str, caller: str = "a") -> LeaseRequest:
        """A request called ``name``."""
        return LeaseRequest(name, caller, ENTRY)

    async def hold(self, name: str, caller: str = "a") -> None:
        """Take a lease and hold it until told to leave; the outcome is kept."""
        leave = self.leave[name] = anyio.Event()
        try:
            async with self.broker.lease(self.request(name, caller)) as lease:
                self.outcomes[name] = lease
                await leave.wait()
        except SupervisorError as error:
            self.outcomes[name] = error

    @asynccontextmanager
    async def waiting(self, *names: str) -> AsyncIterator[dict[str, anyio.CancelScope]]:
        """Requests that wait, in order, each with the scope that cancels it."""
        scopes: dict[str, anyio.CancelScope] = {}

        async def scoped(name: str) -> None:
            with anyio.CancelScope() as scope:
                scopes[name] = scope
                await self.hold(name)

        async with AsyncExitStack() as stack:
            tasks = await stack.enter_async_context(anyio.create_task_group())
            if not self.running:
                await tasks.start(self.broker.run)
            for name in names:
                tasks.start_soon(scoped, name)
                await anyio.wait_all_tasks_blocked()
            yield scopes
            tasks.cancel_scope.cancel()

    async def settle(self) -> None:
        """Let every task run until it waits."""
        await anyio.wait_all_tasks_blocked()

    def said(self, name: str) -> Lease | SupervisorError | None:
        """What became of a request so far."""
        return self.outcomes.get(name)

    def assert_clean(self) -> None:
        """Nothing waits and nothing is held."""
        assert self.broker.queue_view() == []
        assert self.broker.lease_count == 0


async def test_concurrent_first_requests_share_one_start() -> None:
    """Three come while it is down: it is wanted, the first one is the starter, and two get the two slots."""
    bench = Bench()
    async with bench.waiting("one", "two", "three"):
        assert bench.instance.wanted >= 1
        assert bench.outcomes == {}
        bench.instance.becomes(ready=True)
        await bench.settle()
        leases = [bench.said("one"), bench.said("two")]
        assert [lease.slot for lease in leases if isinstance(lease, Lease)] == [0, 1]
        assert [lease.load_owner for lease in leases if isinstance(lease, Lease)] == [True, False]
        assert bench.said("three") is None
        bench.leave["one"].set()
        await bench.settle()
        third = bench.said("three")
        assert isinstance(third, Lease)
        assert third.slot == 0
    bench.assert_clean()


async def test_a_request_that_leaves_the_queue_leaves_no_trace() -> None:
    """A cancelled waiter frees its place at once, and the next one moves up."""
    bench = Bench(slots=1)
    async with bench.waiting("one", "two", "three") as scopes:
        bench.instance.becomes(ready=True)
        await bench.settle()
        scopes["two"].cancel()
        await bench.settle()
        assert [ticket["request_id"] for ticket in bench.broker.queue_view()] == ["three"]
        bench.leave["one"].set()
        await bench.settle()
        assert isinstance(bench.said("three"), Lease)
    bench.assert_clean()


async def test_a_request_cancelled_in_the_step_of_its_grant_gives_the_slot_back() -> None:
    """Prevents a leaked slot: granted and cancelled before the waiter ran again."""
    bench = Bench(slots=1)
    async with bench.waiting("one", "two") as scopes:
        bench.instance.becomes(ready=True)
        scopes["one"].cancel()
        await bench.settle()
        assert isinstance(bench.said("two"), Lease)
        assert bench.broker.lease_count == 1
    bench.assert_clean()


async def test_all_who_wait_hear_why_it_can_not_start() -> None:
    """A failed start answers every waiter with the same reason, of the cause's own branch, and a time to come back."""
    bench = Bench()
    async with bench.waiting("one", "two"):
        bench.instance.becomes(ready=False, failure=InstanceError("start_failed", "no"), can_start=False)
        await bench.settle()
        for name in ("one", "two"):
            error = bench.said(name)
            assert isinstance(error, InstanceError)
            assert (error.code, error.facts["retry_after"]) == ("start_failed", 7.0)
    bench.assert_clean()


async def test_who_waited_for_a_failure_does_not_start_the_next_try() -> None:
    """Prevents an endless loop: a failure that may be tried again at once answers those who waited for it."""
    bench = Bench()
    async with bench.waiting("one"):
        wanted = bench.instance.wanted
        bench.instance.becomes(ready=False, failure=PlanError("no_build", "none"), can_start=True, failed=True)
        await bench.settle()
        assert isinstance(bench.said("one"), PlanError)
        assert bench.instance.wanted == wanted
    async with bench.waiting("two"):
        assert bench.instance.wanted == wanted + 1
    bench.assert_clean()


async def test_a_plan_that_fails_is_a_plan_error() -> None:
    """The branch of the cause survives, so that `does_not_fit` is not told as a failed start."""
    bench = Bench()
    async with bench.waiting("one"):
        bench.instance.becomes(ready=False, failure=PlanError("does_not_fit", "too big"), can_start=False)
        await bench.settle()
        assert isinstance(bench.said("one"), PlanError)


async def test_a_crash_breaks_the_leases_and_the_waiting_want_it_again() -> None:
    """When it leaves READY, leases are broken in the same step; who still waits asks for another start."""
    bench = Bench(slots=1)
    async with bench.waiting("one", "two"):
        bench.instance.becomes(ready=True)
        await bench.settle()
        lease = bench.said("one")
        assert isinstance(lease, Lease)
        wanted = bench.instance.wanted
        bench.instance.becomes(ready=False, failure=InstanceError("instance_failed", "died"))
        assert lease.broken
        assert bench.broker.lease_count == 0
        await bench.settle()
        assert bench.instance.wanted == wanted + 1
        bench.instance.becomes(ready=True)
        await bench.settle()
        assert isinstance(bench.said("two"), Lease)
        bench.leave["one"].set()  # a broken lease's end must not free the new launch's slot
        await bench.settle()
        assert bench.broker.lease_count == 1
    bench.assert_clean()


async def test_nothing_is_granted_while_draining() -> None:
    """A ready instance that drains takes nobody, though a slot is free."""
    bench = Bench()
    async with bench.waiting("one"):
        bench.instance.draining = True
        bench.instance.becomes(ready=True)
        await bench.settle()
        assert bench.said("one") is None


async def test_the_wait_is_bounded() -> None:
    """At `max_wait` a waiter is denied with how long it waited and for what."""
    bench = Bench(max_wait=0.05)
    with pytest.raises(AdmissionError) as caught:
        async with bench.broker.lease(bench.request("one")):
            pass
    assert caught.value.code == "queue_timeout"
    bench.assert_clean()


async def test_the_queue_is_full_for_one_caller_first() -> None:
    """The fifth waiter of a caller that may have four is refused at once; another caller is not."""
    bench = Bench()
    async with bench.waiting("1", "2", "3", "4"):
        with pytest.raises(AdmissionError) as caught:
            async with bench.broker.lease(bench.request("5")):
                pass
        assert caught.value.code == "queue_full"
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(bench.hold, "6", "b")
            await bench.settle()
            assert bench.said("6") is None
            tasks.cancel_scope.cancel()


async def test_stopping_refuses_whoever_waits_and_whoever_comes() -> None:
    """After `stop_admitting`, waiters hear `draining`, newcomers too, and held leases go on."""
    bench = Bench(slots=1)
    async with bench.waiting("one", "two"):
        bench.instance.becomes(ready=True)
        await bench.settle()
        bench.broker.stop_admitting()
        await bench.settle()
        error = bench.said("two")
        assert isinstance(error, AdmissionError)
        assert error.code == "draining"
        with pytest.raises(AdmissionError):
            async with bench.broker.lease(bench.request("three")):
                pass
        assert bench.broker.lease_count == 1
    bench.assert_clean()


async def test_every_ticket_ends_in_one_event() -> None:
    """Leased or denied, each is published once, with how long it waited."""
    bench = Bench(slots=1)
    async with bench.waiting("one", "two"):
        bench.clock.advance(3.0)
        bench.instance.becomes(ready=True)
        await bench.settle()
        bench.broker.stop_admitting()
        await bench.settle()
    ended = [r.event for r in bench.bus.since(0) if isinstance(r.event, RequestLeased | RequestDenied)]
    assert [event.request_id for event in ended] == ["one", "two"]
    assert isinstance(ended[0], RequestLeased)
    assert ended[0].queue_seconds == pytest.approx(3.0)


async def test_a_changed_model_finishes_what_runs_and_then_starts_anew() -> None:
    """A relaunch waits for the running lease; whoever comes meanwhile waits for the new launch."""
    bench = Bench()
    async with anyio.create_task_group() as tasks:
        await tasks.start(bench.broker.run)
        bench.running = True
        async with bench.waiting("one"):
            bench.instance.becomes(ready=True)
            await bench.settle()
            changed = replace(ENTRY, aliases=("x",))
            bench.broker.adopt(changed, "its config changed")
            assert bench.instance.entry is changed
            assert bench.instance.stopped == []
            async with bench.waiting("two"):
                assert bench.said("two") is None
                bench.leave["one"].set()
                await bench.settle()
                assert bench.instance.stopped == ["its config changed"]
                bench.instance.draining = False
                bench.instance.becomes(ready=True)
                await bench.settle()
                assert isinstance(bench.said("two"), Lease)
        tasks.cancel_scope.cancel()


async def test_a_change_that_needs_no_launch_touches_nothing() -> None:
    """New aliases or another keep-alive: the entry is replaced, the engine goes on."""
    bench = Bench()
    async with bench.waiting("one"):
        bench.instance.becomes(ready=True)
        bench.broker.adopt(replace(ENTRY, keep_alive=5.0), None)
        await bench.settle()
        assert bench.instance.stopped == []
        assert isinstance(bench.said("one"), Lease)


async def test_who_waits_for_a_model_that_is_taken_out_hears_so() -> None:
    """A removed model refuses its waiters by name and is stopped."""
    bench = Bench()
    async with bench.waiting("one"):
        bench.broker.drop(ENTRY.id)
        await bench.settle()
        error = bench.said("one")
        assert isinstance(error, ModelError)
        assert bench.instance.stopped == ["taken out of the config"]
    bench.assert_clean()
