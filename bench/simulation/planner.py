"""A planner for simulated engines: it takes a moment, and reads a budget that the outside changes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import anyio

from bench.simulation.engines import EngineWorld, SimulatedFleet
from bench.simulation.models import ModelSpec, plan_of
from engines.contract import Choice, LaunchPlan, MemoryEstimate
from supervisor.broker.ledger import Ledger
from supervisor.broker.ports import Options
from supervisor.host.pools import HOST_POOL, PoolRoom
from supervisor.models.catalog import ModelEntry

_PLANNING = 0.05


class SimulatedPlanner:
    """Implements ``broker.ports.Planner``.

    Attributes:
        whole: bytes of the pool; ``outside``: of them, held by others.
    """

    def __init__(self, specs: Mapping[str, ModelSpec], world: EngineWorld, fleet: SimulatedFleet, whole: int) -> None:
        self.whole = whole
        self.outside = 0
        self._specs = specs
        self._pool = world.pool
        self._fleet = fleet

    @property
    def budget(self) -> int:
        """Bytes that our engines may hold: what ended processes have not given back yet looks like somebody's."""
        lagging = sum(instance.lagging for instance in self._fleet.instances.values())
        return max(0, self.whole - self.outside - lagging)

    async def options(self, entry: ModelEntry, _ledger: Ledger) -> Options:
        """Read, then think."""
        rooms = (self.room(),)
        await anyio.sleep(_PLANNING)
        budget = rooms[0].budget or 0
        size = self._specs[entry.id].size
        plan = plan_of(self._specs[entry.id], {self._pool: MemoryEstimate(other=size)}, fits=size <= budget)
        told = (Choice("memory", size, f"{size} of {budget}"),)
        serial = frozenset() if self._pool == HOST_POOL else frozenset({self._pool})
        return Options(replace(plan, rationale=told), None, rooms, serial)

    async def rooms(self, _entry: ModelEntry) -> tuple[PoolRoom, ...]:
        """As they are now."""
        return (self.room(),)

    def room(self) -> PoolRoom:
        """The pool."""
        return PoolRoom(self._pool, self.budget, self.whole, "simulated")

    def announce(self, _entry: ModelEntry, _plan: LaunchPlan) -> None:
        """Nobody listens."""
