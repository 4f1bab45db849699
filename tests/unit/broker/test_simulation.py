"""The real broker over simulated engines in virtual time: after every event the broker's invariants hold."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bench.simulation.invariants import BrokenInvariantError
from bench.simulation.models import ModelSpec
from bench.simulation.planner import SimulatedPlanner
from bench.simulation.run import simulate
from bench.simulation.traces import ALTERNATING, GPU, GREEDY, MIXED, PRESSURE, TRACES, CallerSpec, Trace
from supervisor.broker.ledger import Ledger
from supervisor.errors import PlanError
from supervisor.host.pools import PoolRoom
from supervisor.models.catalog import ModelEntry

# A hundred thousand in all, which take about 30 s of one core; the slow test is ten times as long.
EVENTS = 16_700
ALL = (*TRACES, MIXED)


def _name(trace: Trace) -> str:
    return trace.name


@pytest.mark.parametrize("trace", ALL, ids=_name)
def test_the_invariants_hold_after_every_event(trace: Trace) -> None:
    """Slow loads, lies about memory, leaks, crashes, hangs, impatient clients, a budget that moves: nothing breaks."""
    result = simulate(trace, seed=7, events=EVENTS)
    assert result.events >= EVENTS
    assert result.outcomes.completed > 50
    assert result.outcomes.worst_wait <= trace.max_wait + 0.01


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("trace", ALL, ids=_name)
def test_the_invariants_hold_for_long(trace: Trace) -> None:
    """The same for a million events in all, by ten seeds."""
    for seed in range(10):
        simulate(trace, seed=seed, events=1_000_000 // len(ALL) // 10 + 1)


def test_a_run_can_be_repeated() -> None:
    """The same seed gives the same run, another one another: what is found can be found again."""
    first, again, other = (simulate(PRESSURE, seed, 800) for seed in (1, 1, 2))
    assert first == again
    assert first != other


def test_equal_callers_are_served_alike() -> None:
    """Jain's index of the work done for each, also when one of them asks for seven times as much at once."""
    for trace in (ALTERNATING, GREEDY):
        fairness = simulate(trace, seed=3, events=4000).fairness
        assert fairness is not None
        assert fairness >= 0.95


def test_two_models_in_turn_do_not_thrash() -> None:
    """Room for one of two models that are both wanted all the time: a swap takes both waiting and loading, not more."""
    result = simulate(ALTERNATING, seed=5, events=3000)
    assert 0 < 60 * result.swaps / result.seconds <= 6
    assert not result.outcomes.denied
    assert result.outcomes.worst_wait < 120


def test_the_simulation_notices_a_broken_book(monkeypatch: pytest.MonkeyPatch) -> None:
    """A ledger that lets everybody in breaks the first invariant: the proof could fail."""
    monkeypatch.setattr(Ledger, "shortfalls", lambda *_arguments: ())
    with pytest.raises(BrokenInvariantError, match="1: "):
        simulate(replace(ALTERNATING, budget=70), seed=1, events=2000)


def test_an_engine_starts_only_when_the_bytes_of_the_one_before_are_back() -> None:
    """A driver that takes seconds to free a dead process's memory: room for two of three, and never a third's bytes."""
    models = tuple(ModelSpec(name, 40, lags=3.0, crashes=0.05) for name in "abc")
    callers = tuple(CallerSpec(f"c{n}", ("a", "b", "c"), pause=5.0) for n in range(4))
    result = simulate(Trace("lags", models, callers, pool=GPU), seed=1, events=2500)
    assert result.swaps > 10


def test_no_build_to_ask_for_the_rooms_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A build set aside by the crash that ends its engine can't be asked for free memory: the broker goes on."""

    async def rooms(_planner: SimulatedPlanner, _entry: ModelEntry) -> tuple[PoolRoom, ...]:
        raise PlanError("no_build", "all are set aside")

    monkeypatch.setattr(SimulatedPlanner, "rooms", rooms)
    trace = Trace("crashes", (ModelSpec("a", 40, crashes=0.3),), (CallerSpec("c", ("a",)),), pool=GPU)
    assert simulate(trace, seed=1, events=300).outcomes.broken > 0
