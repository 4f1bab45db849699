"""How long an idle instance stays."""

from __future__ import annotations

import anyio
from hypothesis import given
from hypothesis import strategies as st

from supervisor.broker.admission import Policy
from supervisor.broker.broker import Broker
from supervisor.broker.keep_alive import FOREVER, IdleInstance, decide_idle, keep_alive_of
from supervisor.broker.lease import LeaseRequest
from supervisor.broker.tickets import QueueLimits
from supervisor.events import EventBus
from tests.fakes.clock import HandClock
from tests.fakes.instances import FakeFleet, FakePlanner, model_entry

ENTRY = model_entry()


def test_the_last_request_has_the_word_then_the_config_then_the_pin() -> None:
    """A request's keep-alive goes over the model's; a pinned model stays for ever unless a request says otherwise."""
    assert keep_alive_of(5.0, 600.0, pinned=True) == 5.0
    assert keep_alive_of(None, 600.0, pinned=False) == 600.0
    assert keep_alive_of(None, 600.0, pinned=True) == FOREVER
    assert keep_alive_of(None, None, pinned=False) == FOREVER
    assert keep_alive_of(0.0, 600.0, pinned=False) == 0.0


@given(st.lists(st.tuples(st.floats(0, 1e6), st.one_of(st.floats(0, 1e6), st.just(FOREVER))), max_size=8))
def test_each_is_due_now_or_later_and_never_forgotten(facts: list[tuple[float, float]]) -> None:
    """Whoever is over its time is stopped; the next look is no later than anybody's time, and not in the past."""
    now = 5e5
    idle = [IdleInstance(str(number), since, keep) for number, (since, keep) in enumerate(facts)]
    decision = decide_idle(idle, now)
    left = [one for one in idle if one not in decision.stop]
    assert all(one.since + one.keep_alive <= now for one in decision.stop)
    finite = [one.since + one.keep_alive for one in left if one.keep_alive < FOREVER]
    assert decision.next_look == (min(finite) if finite else None)
    assert decision.next_look is None or decision.next_look > now


class Bench:
    """A running broker over one fake instance that is ready."""

    def __init__(self) -> None:
        self.clock = HandClock()
        self.fleet = FakeFleet()
        self.broker = Broker(self.fleet, FakePlanner(), QueueLimits(), Policy(), self.clock, EventBus(self.clock))
        self.fleet.changed = self.broker.instance_changed

    async def use(self, keep_alive: float | None) -> None:
        """One request that says this keep-alive."""
        async with self.broker.lease(LeaseRequest("r", "a", ENTRY, keep_alive=keep_alive)):
            await anyio.lowlevel.checkpoint()

    @property
    def stopped(self) -> list[str]:
        """Why the instance was told to stop."""
        return self.fleet.instance(ENTRY).stopped


async def test_zero_stops_it_at_once_but_not_under_a_request() -> None:
    """With keep-alive 0 the instance is stopped when its last lease ends, not before."""
    bench = Bench()
    async with anyio.create_task_group() as tasks:
        await tasks.start(bench.broker.run)
        bench.broker.pin(ENTRY, pinned=False)
        bench.fleet.instance(ENTRY).becomes(ready=True)
        async with bench.broker.lease(LeaseRequest("r", "a", ENTRY, keep_alive=0.0)):
            await anyio.wait_all_tasks_blocked()
            assert bench.stopped == []
        await anyio.wait_all_tasks_blocked()
        assert len(bench.stopped) == 1
        tasks.cancel_scope.cancel()


async def test_each_use_starts_the_time_anew() -> None:
    """An instance is stopped after its keep-alive without use, counted from the last use."""
    bench = Bench()
    async with anyio.create_task_group() as tasks:
        await tasks.start(bench.broker.run)
        bench.broker.pin(ENTRY, pinned=False)
        bench.fleet.instance(ENTRY).becomes(ready=True)
        for _ in range(3):
            await bench.use(600.0)
            bench.clock.advance(599)
            await anyio.wait_all_tasks_blocked()
        assert bench.stopped == []
        bench.clock.advance(2)
        bench.broker.instance_changed(bench.fleet.instance(model_entry("other")))  # nobody's business
        assert bench.stopped == []
        tasks.cancel_scope.cancel()


async def test_a_model_loaded_by_hand_is_watched_too() -> None:
    """A load without a request counts as use: its idle time runs, and a short one ends."""
    bench = Bench()
    async with anyio.create_task_group() as tasks:
        await tasks.start(bench.broker.run)
        await bench_load(bench)
        await bench.use(0.01)
        bench.clock.advance(1)
        with anyio.fail_after(5):
            while not bench.stopped:
                await anyio.wait_all_tasks_blocked()
        assert "keep_alive is over" in bench.stopped[0]
        tasks.cancel_scope.cancel()


async def bench_load(bench: Bench) -> None:
    """Make the instance ready without a request."""
    bench.broker.pin(ENTRY, pinned=False)
    bench.fleet.instance(ENTRY).becomes(ready=True)
    await anyio.wait_all_tasks_blocked()
