"""What most others do, to compare with: first come, first served, and the least recently used engine goes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

import anyio

from bench.simulation.engines import SimulatedFleet, SimulatedInstance
from bench.simulation.models import plan_of
from engines.contract import LaunchPlan
from supervisor.broker.lease import Lease, LeaseRequest
from supervisor.models.catalog import ModelEntry


@dataclass(frozen=True, slots=True)
class Engine:
    """One, as the policy sees it; ``size`` and ``used`` (seconds of its last use), and whether it runs, or works."""

    model: str
    size: int
    runs: bool
    ready: bool
    free_slots: int
    busy: bool
    used: float


def decide(first: str, engines: Sequence[Engine], budget: int) -> tuple[str, str | None]:
    """What is done for the oldest request's model: ``grant``, ``start``, ``stop`` (and whom), or ``wait``. Pure."""
    wanted = next(engine for engine in engines if engine.model == first)
    if wanted.ready and wanted.free_slots:
        return "grant", None
    if wanted.runs:
        return "wait", None
    held = sum(engine.size for engine in engines if engine.runs)
    if held + wanted.size <= budget:
        return "start", None
    idle = [engine for engine in engines if engine.ready and not engine.busy]
    return ("stop", min(idle, key=lambda engine: engine.used).model) if idle else ("wait", None)


class Baseline:
    """Gives leases in the order of asking, by ``decide``; owns the engines like a broker."""

    def __init__(self, fleet: SimulatedFleet, budget: int) -> None:
        self.swaps = 0
        self._fleet = fleet
        self._budget = budget
        self._queue: list[tuple[LeaseRequest, anyio.Event, list[Lease]]] = []
        self._leases: dict[str, dict[int, Lease]] = {name: {} for name in fleet.instances}
        self._used: dict[str, float] = dict.fromkeys(fleet.instances, 0.0)

    @asynccontextmanager
    async def lease(self, request: LeaseRequest) -> AsyncIterator[Lease]:
        """Wait for a slot, in line with everybody."""
        place = (request, anyio.Event(), list[Lease]())
        self._queue.append(place)
        self._pump()
        try:
            await place[1].wait()
            yield place[2][0]
        finally:
            if place in self._queue:
                self._queue.remove(place)
            for lease in place[2]:
                if self._leases[request.model.id].get(lease.slot) is lease:
                    del self._leases[request.model.id][lease.slot]
            self._used[request.model.id] = anyio.current_time()
            self._pump()

    async def plan_for(self, entry: ModelEntry) -> LaunchPlan:
        """Always the same."""
        return plan_of(self._fleet.instances[entry.id].spec, {}, fits=True)

    def instance_changed(self, instance: SimulatedInstance) -> None:
        """Leases of an ended launch break."""
        if not instance.is_ready:
            for lease in self._leases[instance.model_id].values():
                lease.break_off()
            self._leases[instance.model_id].clear()
        self._pump()

    def memory_seen(self, _instance: str, _declared: Mapping[str, int], _observed: Mapping[str, int]) -> None:
        """It does not look."""

    def _engines(self) -> list[Engine]:
        return [
            Engine(
                name,
                instance.spec.size,
                runs=not instance.at_rest or instance.is_wanted,
                ready=instance.accepting,
                free_slots=instance.slots - len(self._leases[name]) if instance.accepting else 0,
                busy=bool(self._leases[name]),
                used=self._used[name],
            )
            for name, instance in self._fleet.instances.items()
        ]

    def _pump(self) -> None:
        while self._queue:
            request, event, given = self._queue[0]
            model = request.model.id
            instance, leases = self._fleet.instances[model], self._leases[model]
            what, whom = decide(model, self._engines(), self._budget)
            if what == "grant":
                slot = next(slot for slot in range(instance.slots) if slot not in leases)
                lease = Lease(request, instance.current_launch(), slot, waited=(0.0, 0.0), load_owner=False)
                leases[slot] = lease
                given.append(lease)
                self._queue.pop(0)
                event.set()
                continue
            if what == "start":
                instance.want()
            elif whom is not None:
                self.swaps += 1
                self._fleet.instances[whom].request_stop("least recently used")
            return
