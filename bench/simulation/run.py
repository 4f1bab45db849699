"""One simulation of a real broker over simulated engines, from a trace and a seed, and what came of it."""

from __future__ import annotations

from dataclasses import dataclass

import anyio

from bench.simulation.baseline import Baseline
from bench.simulation.callers import Callers, Outcomes
from bench.simulation.engines import EngineWorld, SimulatedFleet
from bench.simulation.invariants import Invariants
from bench.simulation.planner import SimulatedPlanner
from bench.simulation.traces import Trace
from bench.simulation.virtual_time import VirtualClock, VirtualLoop, run_virtually
from supervisor.broker.admission import Policy
from supervisor.broker.broker import Broker
from supervisor.broker.fair_queue import jain
from supervisor.broker.tickets import QueueLimits
from supervisor.events import EventBus

# The outside repeats itself.
_ROUND = 600.0


@dataclass(frozen=True, slots=True)
class Result:
    """Figures of one simulation; ``seconds`` simulated, ``fairness`` is Jain's index of the trace's equal callers."""

    trace: str
    seconds: float
    outcomes: Outcomes
    swaps: int
    events: int
    checks: int
    fairness: float | None

    @property
    def per_minute(self) -> float:
        """Completed requests."""
        return 60 * self.outcomes.completed / max(1.0, self.seconds)


class Simulation:
    """A broker and its engines in a loop whose time jumps; ``policy`` of the broker, everything else by the trace."""

    def __init__(self, loop: VirtualLoop, trace: Trace, seed: int, policy: Policy | None = None) -> None:
        self.trace = trace
        self.loop = loop
        self.world = EngineWorld(loop, seed, trace.pool)
        specs = {spec.name: spec for spec in trace.models}
        self.fleet = SimulatedFleet(specs, self.world)
        self.planner = SimulatedPlanner(specs, self.world, self.fleet, trace.budget)
        clock = VirtualClock(loop)
        self.bus = EventBus(clock, keep=1)
        limits = QueueLimits(trace.per_caller, trace.total, trace.max_wait)
        policy = policy or Policy()
        self.broker = Broker(self.fleet, self.planner, limits, policy, clock, self.bus)
        self.world.owner = self.broker
        self.invariants = Invariants(self.broker, self.fleet, self.planner, self.world, self.bus)
        self.invariants.max_wait, self.invariants.min_idle = limits.max_wait, policy.min_idle
        self.callers = Callers(self.broker, self.fleet, self.world)
        self.callers.came = self.invariants.alive.add
        self.callers.left = self._left
        loop.turns.each_turn = self.invariants.each_turn

    def _left(self, request_id: str, model: str) -> None:
        self.invariants.alive.discard(request_id)
        # An abandoned lease is freed when the engine has noticed.
        self.invariants.touched[model] = self.world.now() + 5.0

    def set_outside(self, size: int) -> None:
        """Others hold so much of the pool from now on, and the daemon has seen it."""
        self.planner.outside = size
        self.broker.memory.use([self.planner.room()])
        self.broker.pump()

    async def run(self, events: int, seed: int) -> Result:
        """Until so many events have happened, or an invariant breaks.

        Raises:
            BrokenInvariantError: it did.
        """
        began = self.world.now()
        async with anyio.create_task_group() as tasks:
            await tasks.start(self.broker.run)
            tasks.start_soon(self._outside)
            for caller in self.trace.callers:
                for number in range(caller.at_once):
                    tasks.start_soon(self.callers.run, caller, number, seed, float("inf"))
            while self.invariants.events < events and self.invariants.broken is None:  # noqa: ASYNC110  costs nothing here
                await anyio.sleep(1.0)
            self.invariants.over = True
            tasks.cancel_scope.cancel()
        if self.invariants.broken is not None:
            raise self.invariants.broken
        return self._result(began, self.invariants.swaps)

    async def for_seconds(self, seconds: float, seed: int, baseline: Baseline | None) -> Result:
        """For so long, under the broker or, where one is given, under the baseline."""
        began = self.world.now()
        async with anyio.create_task_group() as tasks:
            await tasks.start(self.broker.run)
            for caller in self.trace.callers:
                for number in range(caller.at_once):
                    tasks.start_soon(self.callers.run, caller, number, seed, float("inf"))
            await anyio.sleep(seconds)
            self.invariants.over = True
            result = self._result(began, self.invariants.swaps if baseline is None else baseline.swaps)
            tasks.cancel_scope.cancel()
        return result

    def _result(self, began: float, swaps: int) -> Result:
        outcomes, equals = self.callers.outcomes, self.trace.equals
        return Result(
            self.trace.name,
            self.world.now() - began,
            outcomes,
            swaps,
            self.invariants.events,
            self.invariants.checks,
            jain(outcomes.served[name] for name in equals) if equals else None,
        )

    async def _outside(self) -> None:
        round_ = 0
        while self.trace.outside:
            for at, size in self.trace.outside:
                await anyio.sleep(max(0.0, round_ * _ROUND + at - self.world.now()))
                self.set_outside(size)
            round_ += 1


def simulate(trace: Trace, seed: int, events: int, policy: Policy | None = None) -> Result:
    """Run the trace in a loop of its own until so many events have happened.

    Raises:
        BrokenInvariantError: an invariant broke.
    """
    results: list[Result] = []

    async def main(loop: VirtualLoop) -> None:
        results.append(await Simulation(loop, trace, seed, policy).run(events, seed))

    run_virtually(main)
    return results[0]


def compare(trace: Trace, seed: int, seconds: float, *, ours: bool) -> Result:
    """Run the trace for so many seconds, under the broker or under what it is compared with; no invariants."""
    results: list[Result] = []

    async def main(loop: VirtualLoop) -> None:
        simulation = Simulation(loop, trace, seed)
        simulation.invariants.over = ours is False
        baseline = Baseline(simulation.fleet, trace.budget)
        if not ours:
            simulation.world.owner = baseline
            simulation.callers = Callers(baseline, simulation.fleet, simulation.world)
        results.append(await simulation.for_seconds(seconds, seed, baseline=None if ours else baseline))

    run_virtually(main)
    return results[0]
