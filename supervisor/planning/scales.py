"""What a launch would need of each physical memory, against what there is. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from engines.contract import Budget, Estimator, MemoryEstimate, PlanDraft, Tried
from supervisor.host.pools import HOST_POOL, PoolRoom
from supervisor.units import format_size

_PARTS = ("weights", "kv", "compute", "other", "mapped", "upper", "ready")


@dataclass(frozen=True, slots=True)
class Weighed:
    """A draft, and how it would fill the pools.

    Attributes:
        memory: predicted bytes by pool.
        needed: bytes by pool that must be there, the margin included.
        excess: bytes by pool above its budget, below 0 where there is room left; pools of unknown budget are left out.
        capped: bytes needed of, and the bound of, each device that takes part and may take less than its pool has.
    """

    draft: PlanDraft
    memory: Mapping[str, MemoryEstimate]
    needed: Mapping[str, int]
    excess: Mapping[str, int]
    capped: Mapping[str, tuple[int, int]] = field(default_factory=dict)

    @property
    def fits(self) -> bool:
        """Whether no pool is over its budget; a budget that is not known counts as room enough."""
        return all(over <= 0 for over in self.excess.values())

    @property
    def worst(self) -> int:
        """Excess of the pool that is most over its budget, or least under it, in bytes."""
        return max(self.excess.values(), default=0)


class Scales:
    """Weighs drafts of one model against the rooms of one machine.

    Args:
        allow_paging: mapped weights need not fit; the engine reads them again and again where they don't.
    """

    def __init__(self, estimate: Estimator, rooms: tuple[PoolRoom, ...], *, allow_paging: bool) -> None:
        self._estimate = estimate
        self._rooms = {room.pool: room for room in rooms}
        self._pools = {device: room.pool for room in rooms for device in room.devices}
        self._caps = {device: cap for room in rooms for device, cap in room.caps.items()}
        self._allow_paging = allow_paging
        self._known: dict[tuple[object, ...], Weighed] = {}

    def weigh(self, draft: PlanDraft) -> Weighed:
        """What this draft needs, pool by pool."""
        key = (*place_of(draft), draft.slots, draft.cache_type, draft.ctx_size)
        if key not in self._known:
            self._known[key] = self._weigh(draft)
        return self._known[key]

    def pool_of(self, device: str) -> str:
        """The pool behind a build's name; a device of no room is a pool of its own."""
        return self._pools.get(device, device)

    def budget(self, pool: str) -> int | None:
        """Bytes that may be taken of a pool; None: not known."""
        room = self._rooms.get(pool)
        return None if room is None else room.budget

    def why(self, pool: str) -> str:
        """The arithmetic behind a pool's budget."""
        room = self._rooms.get(pool)
        return "nothing is known of it" if room is None else room.why

    def budgets(self, pools: Mapping[str, object]) -> dict[str, Budget]:
        """Budgets of these pools with their arithmetic."""
        return {pool: Budget(self.budget(pool), self.why(pool)) for pool in pools}

    def device_room(self, device: str) -> int | None:
        """Bytes for one device; devices that may be one and the same memory share its room."""
        room = self._rooms.get(self.pool_of(device))
        share = None if room is None or room.budget is None else room.budget // max(1, len(room.devices))
        bounds = [size for size in (share, self._caps.get(device)) if size is not None]
        return min(bounds, default=None)

    def attempt(self, step: str, weighed: Weighed) -> Tried:
        """The row of a table of what was tried."""
        needed = dict(weighed.needed) | {device: need for device, (need, _) in weighed.capped.items()}
        budgets: dict[str, int | None] = {pool: self.budget(pool) for pool in weighed.needed}
        return Tried(step, needed, budgets | {device: cap for device, (_, cap) in weighed.capped.items()})

    def _weigh(self, draft: PlanDraft) -> Weighed:
        memory: dict[str, MemoryEstimate] = {}
        capped: dict[str, tuple[int, int]] = {}
        beyond: dict[str, int] = {}  # what a device takes above its own bound, while its pool may have room
        for place, estimate in self._estimate(draft).items():
            pool = self.pool_of(place)
            if place in self._caps:
                capped[place] = self._needed(place, estimate), self._caps[place]
                over = capped[place][0] - capped[place][1]
                beyond[pool] = max(over, beyond.get(pool, over))
            memory[pool] = added(memory[pool], estimate) if pool in memory else estimate
        needed = {pool: self._needed(pool, estimate) for pool, estimate in memory.items()}
        budgets = {pool: self.budget(pool) for pool in needed}
        excess = {pool: needed[pool] - budget for pool, budget in budgets.items() if budget is not None}
        excess |= {pool: max(over, excess.get(pool, over)) for pool, over in beyond.items()}
        return Weighed(draft, memory, needed, excess, capped)

    def _needed(self, pool: str, estimate: MemoryEstimate) -> int:
        pages = self._allow_paging and pool == HOST_POOL
        return ((estimate.anonymous if pages else estimate.total) or 0) + (estimate.upper or 0)


def place_of(draft: PlanDraft) -> tuple[object, ...]:
    """What of a draft says where things lie."""
    return draft.devices, draft.n_gpu_layers, draft.tensor_split, draft.n_cpu_moe


def added(first: MemoryEstimate, second: MemoryEstimate) -> MemoryEstimate:
    """Two estimates of one pool as one; what is known of neither stays unknown."""
    sums: dict[str, int | None] = {}
    for part in _PARTS:
        known = [size for size in (getattr(first, part), getattr(second, part)) if size is not None]
        sums[part] = sum(known) if known else None
    return replace(first, **sums)


def in_words(weighed: Weighed, scales: Scales) -> str:
    """``5.9 GiB of 11.2 GiB in gpu-0000:01:00.0 (arithmetic of the budget), 0.6 GiB of …``, devices first."""
    pools = sorted(weighed.needed, key=lambda pool: pool == HOST_POOL)
    sizes = ((format_size(weighed.needed[pool]), format_size(scales.budget(pool)), pool) for pool in pools)
    words = [f"{need} of {budget} in {pool} ({scales.why(pool)})" for need, budget, pool in sizes]
    return ", ".join((*caps_in_words(weighed), *words))


def caps_in_words(weighed: Weighed) -> Iterator[str]:
    """``1.9 GiB of 2.0 GiB on Vulkan0``, of devices that may take less than the pool that they share."""
    for device, (need, cap) in weighed.capped.items():
        yield f"{format_size(need)} of {format_size(cap)} on {device}"
