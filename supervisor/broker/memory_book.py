"""The owner of the ledger: every change of it goes through here, and is told."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from engines.contract import LaunchPlan, MemoryEstimate
from supervisor.broker.ledger import Claim, Entry, Ledger, OverCommit, Pool, Stage
from supervisor.events import EventBus
from supervisor.host.pools import HOST_POOL, PoolRoom
from supervisor.memory_events import MemoryReleased, MemoryReserved, OverCommitted


def claims_of(plan: LaunchPlan, files: Sequence[Path], *, paging: bool) -> dict[str, Claim]:
    """What a launch by this plan will hold, by pool.

    Args:
        plan: its memory is the prediction.
        files: what it maps; launches of the same files share their pages.
        paging: its mapped weights are not insisted on.
    """
    name = str(files[0]) if files else plan.model_id

    def claim(estimate: MemoryEstimate) -> Claim:
        mapped = {} if paging or not estimate.mapped else {name: estimate.mapped}
        return Claim(estimate.anonymous, estimate.upper or 0, estimate.other or 0, mapped)

    return {pool: claim(estimate) for pool, estimate in plan.memory.items()}


def declared_by_pool(plan: LaunchPlan, places: Mapping[str, MemoryEstimate]) -> dict[str, int]:
    """What the engine's log says of its own memory, in bytes by pool; ``places`` by the build's device names."""
    found: dict[str, int] = {}
    for place, part in places.items():
        if part.anonymous is not None:
            pool = plan.pools.get(place, place)
            found[pool] = found.get(pool, 0) + part.anonymous
    return found


class MemoryBook:
    """Holds the ledger; sync, so that a decision and its reservation are one step."""

    def __init__(self, bus: EventBus) -> None:
        self.ledger = Ledger()
        self._bus = bus
        self._told: dict[str, int] = {}
        self._rooms: dict[str, PoolRoom] = {}

    def use(self, rooms: Iterable[PoolRoom]) -> None:
        """Promise by these rooms from now on: budgets with nothing of ours taken off."""
        rooms = tuple(rooms)
        pools = {room.pool: Pool(room.budget, room.reserve, room.foreign) for room in rooms}
        self._rooms.update({room.pool: room for room in rooms})
        self.ledger = self.ledger.with_pools(pools or self.ledger.pools)
        self._tell_over_commits()

    def reserve(
        self, instance: str, model: str, claims: Mapping[str, Claim], serial: frozenset[str] = frozenset()
    ) -> None:
        """Before a launch; ``serial``: pools in which nobody else may load meanwhile.

        Raises:
            DoesNotFitError: admission did not look.
        """
        self.ledger = self.ledger.reserve(Entry(instance, model, claims, serial=serial))
        for pool, claim in claims.items():
            self._bus.publish(
                MemoryReserved(instance, model, pool, claim.anonymous, sum(claim.mapped.values()), self._free(pool))
            )

    def seen(self, instance: str, declared: Mapping[str, int], observed: Mapping[str, int]) -> None:
        """Its own bytes by pool, as the engine says and as the system shows; what is not known is left out."""
        self.ledger = self.ledger.declare(instance, declared).observe(instance, observed)
        self._tell_over_commits()

    def work(self, instance: str, slot: int, working: Mapping[str, int]) -> None:
        """A lease adds so many bytes by pool while it runs; none when it has ended."""
        self.ledger = self.ledger.work(instance, slot, working)

    def held(self, pool: str) -> int:
        """Bytes that our engines are believed to hold of a pool themselves."""
        # What an ended one has not given back yet must show as somebody else's, or it would be promised again.
        entries = [entry for entry in self.ledger.entries.values() if entry.stage is not Stage.RELEASING]
        return sum(_believed(entry, entry.claims[pool], pool) for entry in entries if pool in entry.claims)

    def ended(self, instance: str) -> bool:
        """Its process has ended: host memory is back with it; true when other pools must still be looked at.

        Once a launch: one whose memory is on its way back already is being looked after.
        """
        entry = self.ledger.entries.get(instance)
        if entry is None or entry.stage is Stage.RELEASING:
            return False
        if set(entry.claims) <= {HOST_POOL}:
            self.release(instance)
            return False
        self.ledger = self.ledger.releasing(instance)
        return True

    def is_back(self, instance: str, rooms: Iterable[PoolRoom] = ()) -> None:
        """What an ended launch held is back, or as much of it as these rooms say; a launch begun since stays."""
        entry = self.ledger.entries.get(instance)
        if entry is not None and entry.stage is Stage.RELEASING:
            self.release(instance)
            self.use(rooms)

    def release(self, instance: str) -> None:
        """Its memory is back."""
        entry = self.ledger.entries.get(instance)
        if entry is None:
            return
        self.ledger = self.ledger.release(instance)
        for pool in entry.claims:
            self._bus.publish(MemoryReleased(instance, entry.model, pool, self._free(pool)))
        self._tell_over_commits()

    def over_commits(self) -> tuple[OverCommit, ...]:
        """Pools that have promised more than they may."""
        return self.ledger.over_commits()

    def document(self) -> dict[str, Any]:
        """The book as ``/admin/v1/status`` shows it."""
        return {name: self._pool_document(name, pool) for name, pool in self.ledger.pools.items()}

    def _pool_document(self, name: str, pool: Pool) -> dict[str, Any]:
        gives_back = dict(self.ledger.holders(name))
        room = self._rooms.get(name)
        return {
            "budget": pool.budget,
            "reserved": self.ledger.reserved(name),
            "foreign": pool.foreign,
            "reserve": pool.reserve,
            "free": self.ledger.free(name),
            "total": room.total if room else None,
            "devices": list(room.devices) if room else [],
            "why": room.why if room else None,
            "entries": [
                {
                    "instance": entry.instance,
                    "model": entry.model,
                    "stage": entry.stage.value,
                    "predicted": claim.predicted,
                    "upper": claim.upper,
                    "declared": claim.declared,
                    "observed": claim.observed,
                    "mapped": dict(claim.mapped),
                    "working": sum(extra for (where, _), extra in entry.working.items() if where == name),
                    "counts": gives_back.get(entry.instance),
                }
                for entry in self.ledger.entries.values()
                if (claim := entry.claims.get(name)) is not None
            ],
        }

    def _free(self, pool: str) -> int | None:
        return self.ledger.free(pool)

    def _tell_over_commits(self) -> None:
        """Each excess once, and again when it has grown."""
        now = {over.pool: over.by for over in self.ledger.over_commits()}
        for over in self.ledger.over_commits():
            if over.by > self._told.get(over.pool, 0):
                self._bus.publish(OverCommitted(over.pool, over.budget, over.reserved, over.by))
        self._told = now


def _believed(entry: Entry, claim: Claim, pool: str) -> int:
    """What was seen of an engine; of one at work, that is old news."""
    if entry.working or claim.observed is None:
        return entry.held(pool, claim)
    return claim.observed
