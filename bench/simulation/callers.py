"""Callers who ask, wait for answers, pause, lose patience and leave; and what became of their requests."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Literal, Protocol, cast

import anyio

from bench.simulation.engines import EngineWorld, SimulatedFleet
from bench.simulation.traces import CallerSpec
from supervisor.broker.lease import Lease, LeaseRequest
from supervisor.errors import SupervisorError

# A client that is refused asks again after the time it was told, at the latest after this long.
_LONGEST_PAUSE = 20.0


class Leasing(Protocol):
    """Who gives leases."""

    def lease(self, request: LeaseRequest) -> AbstractAsyncContextManager[Lease]:
        """Wait for a slot and hold it."""
        ...


@dataclass(slots=True)
class Outcomes:
    """What became of all requests; ``waits`` in seconds, of those that were leased or denied; ``served`` by caller."""

    completed: int = 0
    cancelled: int = 0
    broken: int = 0
    denied: Counter[str] = field(default_factory=Counter)
    waits: list[float] = field(default_factory=list)
    served: Counter[str] = field(default_factory=Counter)

    @property
    def worst_wait(self) -> float:
        """Of all."""
        return max(self.waits, default=0.0)


class Callers:
    """Runs callers' requests against whoever gives leases.

    Attributes:
        came: called with a request's id before it asks; ``left`` with its id and its model after its end.
    """

    def __init__(self, leasing: Leasing, fleet: SimulatedFleet, world: EngineWorld) -> None:
        self.outcomes = Outcomes()
        self.came: Callable[[str], None] = lambda _request_id: None
        self.left: Callable[[str, str], None] = lambda _request_id, _model: None
        self._leasing = leasing
        self._fleet = fleet
        self._world = world

    async def run(self, caller: CallerSpec, number: int, seed: int, until: float) -> None:
        """One of the caller's threads of work."""
        dice = random.Random(f"{seed} {caller.name} {number}")
        count = number
        await anyio.sleep(dice.uniform(0.0, caller.pause))
        while self._world.now() < until:
            model = caller.models[count % len(caller.models)]
            count += 1
            pause = await self.ask(caller, model, f"{caller.name}-{number}-{count}", dice)
            await anyio.sleep(pause + dice.expovariate(1 / caller.pause))

    async def ask(self, caller: CallerSpec, model: str, name: str, dice: random.Random) -> float:
        """One request; seconds that it was told to stay away."""
        instance = self._fleet.instances[model]
        lane = cast("Literal['interactive', 'background']", caller.lane)
        request = LeaseRequest(name, caller.name, instance.entry, lane, caller.weight)
        service = min(60.0, dice.expovariate(1 / caller.service))
        patience = None if caller.patience is None else dice.uniform(0.0, 2 * caller.patience)
        asked = self._world.now()
        self.came(name)
        finished = False
        try:
            with anyio.move_on_after(patience):
                async with self._leasing.lease(request) as lease:
                    self.outcomes.waits.append(self._world.now() - asked)
                    await self._use(lease, model, service)
                    self._count(caller, lease, service / max(1, instance.slots))
                finished = True
        except SupervisorError as error:
            self.outcomes.denied[error.code] += 1
            self.outcomes.waits.append(self._world.now() - asked)
            return min(_LONGEST_PAUSE, float(error.facts.get("retry_after", 1.0)))
        finally:
            self.left(name, model)
        if not finished:
            self.outcomes.cancelled += 1
        return 0.0

    async def _use(self, lease: Lease, model: str, service: float) -> None:
        """Have the engine work on it, until it is done, or dead, or the client leaves."""
        instance = self._fleet.instances[model]
        timer = instance.work(service, lease.done)
        try:
            while not lease.engine_done and not lease.broken:
                await lease.broke(service)
        except anyio.get_cancelled_exc_class():
            if not lease.engine_done and not lease.broken:
                lease.abandon()
                instance.cut(timer)
            raise

    def _count(self, caller: CallerSpec, lease: Lease, served: float) -> None:
        if lease.engine_done:
            self.outcomes.completed += 1
            self.outcomes.served[caller.name] += served  # type: ignore[assignment]  # seconds, not a count
        else:
            self.outcomes.broken += 1
