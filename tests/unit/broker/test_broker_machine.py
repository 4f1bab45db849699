"""The real broker, driven in virtual time by whatever hypothesis thinks of."""

from __future__ import annotations

import asyncio
import contextlib
import random
from itertools import count

import sniffio
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from bench.simulation.models import ModelSpec
from bench.simulation.run import Simulation
from bench.simulation.traces import GPU, CallerSpec, Trace
from bench.simulation.virtual_time import VirtualLoop
from supervisor.errors import SupervisorError

MODELS = st.sampled_from("abcd")
TRACE = Trace(
    "by hypothesis",
    (
        ModelSpec("a", 40, crashes=0.2, lags=2.0),
        ModelSpec("b", 60, lies=5, leaks=2, fails=0.3),
        ModelSpec("c", 30, slots=1, hangs=0.2),
        ModelSpec("d", 80, load=20.0, lags=4.0),
    ),
    (),
    pool=GPU,
    per_caller=4,
    total=8,
    max_wait=60.0,
)


class BrokerMachine(RuleBasedStateMachine):
    """Callers come and leave, operators load, unload and pin, the outside takes and gives, and time passes."""

    def __init__(self) -> None:
        super().__init__()
        # Timers' callbacks run outside of tasks: anyio asks this for the library that it is in.
        self.token = sniffio.current_async_library_cvar.set("asyncio")
        self.runner = asyncio.Runner(loop_factory=VirtualLoop)
        loop = self.runner.get_loop()
        assert isinstance(loop, VirtualLoop)
        self.loop = loop
        self.simulation = Simulation(loop, TRACE, seed=1)
        self.tasks = [loop.create_task(self.simulation.broker.run())]
        self.asked: list[asyncio.Task[float]] = []
        self.names = count()
        self.dice = random.Random(1)

    @rule(model=MODELS, caller=st.sampled_from(["x", "y"]), service=st.floats(0.5, 30.0))
    def ask(self, model: str, caller: str, service: float) -> None:
        """A request comes."""
        spec = CallerSpec(caller, (model,), service=service)
        name = f"{caller}-{next(self.names)}"
        self.asked.append(self.loop.create_task(self.simulation.callers.ask(spec, model, name, self.dice)))
        self.sleep(0.0)

    @rule(which=st.integers(0, 30))
    def leave(self, which: int) -> None:
        """A caller leaves, in whatever phase."""
        if which < len(self.asked):
            self.asked[which].cancel()
            self.sleep(0.0)

    @rule(seconds=st.sampled_from([0.1, 1.0, 5.0, 12.0, 61.0]))
    def sleep(self, seconds: float) -> None:
        """Time passes."""
        self.runner.run(asyncio.sleep(seconds))

    @rule(size=st.sampled_from([0, 20, 50, 90]))
    def outside(self, size: int) -> None:
        """Others take of the pool, or give back."""
        self.loop.call_soon(self.simulation.set_outside, size)
        self.sleep(0.0)

    @rule(model=MODELS)
    def load(self, model: str) -> None:
        """By hand."""

        async def loading() -> None:
            with contextlib.suppress(SupervisorError):
                await self.simulation.broker.load(self.simulation.fleet.instances[model].entry)

        self.simulation.invariants.alive.add(f"load {model}")
        self.simulation.invariants.touched[model] = self.loop.time() + 1.0
        self.tasks.append(self.loop.create_task(loading()))
        self.sleep(0.0)

    @rule(model=MODELS)
    def unload(self, model: str) -> None:
        """By hand."""
        self.loop.call_soon(self.simulation.broker.unload, self.simulation.fleet.instances[model])
        self.sleep(0.0)

    @invariant()
    def holds(self) -> None:
        """What the simulation has looked at after every turn of its loop; and the broker still runs."""
        if self.simulation.invariants.broken is not None:
            raise self.simulation.invariants.broken
        assert not self.tasks[0].done()

    def teardown(self) -> None:
        """Whoever waits is leased or refused in the end; then nothing of a request is left."""
        try:
            self.outside(0)
            self.sleep(400.0)
            self.holds()
            assert self.simulation.broker.queue_view() == []
            assert self.simulation.broker.lease_count == 0
        finally:
            self.simulation.invariants.over = True
            for task in (*self.asked, *self.tasks):
                task.cancel()
            self.runner.run(asyncio.sleep(1.0))
            self.runner.close()
            sniffio.current_async_library_cvar.reset(self.token)


TestBrokerMachine = BrokerMachine.TestCase
TestBrokerMachine.settings = settings(
    max_examples=20, stateful_step_count=25, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck)
)
