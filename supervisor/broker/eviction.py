"""Which idle engines go so that another fits. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

from supervisor.broker.ledger import Claim, Ledger

# Every set is tried up to this many candidates (256 sets, a millisecond); more are taken by price, cheapest first.
_TRY_ALL = 8
# Nobody is free of charge: an engine that was never asked for twice still costs its load.
_LEAST_RATE = 1 / 86_400

_Enough = Callable[[Sequence[str]], bool]


@dataclass(frozen=True, slots=True)
class Resident:
    """An engine that holds memory, as eviction sees it.

    Attributes:
        instance: its id in the ledger.
        idle_since: monotonic seconds; None: it works, or somebody waits for it.
        demand: requests a second that it has been getting.
        reload: seconds that its load took.
        rebuild: seconds that its end costs its conversations: to save and to restore them, or to compute them anew.
        saving: seconds until they are saved, before it can be stopped.
    """

    instance: str
    model: str
    idle_since: float | None
    pinned: bool = False
    demand: float = 0.0
    reload: float = 1.0
    rebuild: float = 0.0
    saving: float = 0.0

    @property
    def cost(self) -> float:
        """Expected seconds lost to its clients for each second that it is away."""
        return max(self.demand, _LEAST_RATE) * (self.reload + self.rebuild)


@dataclass(frozen=True, slots=True)
class Victims:
    """Engines to stop, and what that frees beyond the need, in bytes over all pools."""

    instances: tuple[str, ...]
    cost: float
    excess: int


def evictable(resident: Resident, now: float, min_idle: float) -> bool:
    """Whether it may go at all: idle for long enough, and not pinned."""
    return not resident.pinned and resident.idle_since is not None and now - resident.idle_since >= min_idle


class _Need:
    """What claims lack in a ledger, asked about many sets of engines.

    Where nobody shares a file and all is known, what a set frees is a sum; else the ledger is asked each time.
    """

    def __init__(self, ledger: Ledger, claims: Mapping[str, Claim]) -> None:
        self._ledger = ledger
        self._claims = claims
        self._lacking = {short.pool: short.lacking for short in ledger.shortfalls(claims)}
        self._alone = ledger.frees_alone(claims)

    def met(self, names: Collection[str]) -> bool:
        """Whether the claims fit without these."""
        alone = self._alone
        if alone is None:
            return not self._ledger.shortfalls(self._claims, names)
        for pool, lacking in self._lacking.items():
            own = alone[pool]
            if sum([own.get(name, 0) for name in names]) < lacking:
                return False
        return True

    def freed(self, name: str) -> int:
        """Bytes of the claimed pools that would be back without it."""
        if self._alone is None:
            return self._ledger.freed_by(name, self._claims)
        return sum([own.get(name, 0) for own in self._alone.values()])

    def excess(self, names: Collection[str]) -> int:
        """Bytes that these would free beyond the need, over all pools."""
        beyond = 0
        for pool in self._claims:
            if self._alone is None:
                back = self._ledger.reserved(pool) - self._ledger.reserved(pool, names)
            else:
                own = self._alone[pool]
                back = sum([own.get(name, 0) for name in names])
            beyond += max(0, back - self._lacking.get(pool, 0))
        return beyond


def choose_victims(ledger: Ledger, claims: Mapping[str, Claim], candidates: Sequence[Resident]) -> Victims | None:
    """The cheapest set of ``candidates`` without which the claims fit; None: not even all of them are enough.

    No set contains an engine that it would do without. Of sets that cost the same the one of fewer engines is taken,
    then the one that frees less beyond the need.
    """
    useful = [resident for resident in candidates if _frees(ledger, resident, claims)]
    need = _Need(ledger, claims)
    if not need.met([resident.instance for resident in useful]):
        return None
    chosen = _by_price(need, useful) if len(useful) > _TRY_ALL else _best(need, useful)
    names = tuple(resident.instance for resident in chosen)
    return Victims(names, sum(resident.cost for resident in chosen), need.excess(names))


def for_pool(ledger: Ledger, pool: str, candidates: Sequence[Resident]) -> Victims | None:
    """The cheapest candidates without which ``pool`` is within its budget; as many as there are when none suffice."""
    useful = [r for r in candidates if pool in (e.claims if (e := ledger.entries.get(r.instance)) else {})]
    if not useful:
        return None
    gone: list[Resident] = []
    for resident in sorted(useful, key=lambda r: _price(ledger, r, (pool,))):
        if (ledger.free(pool, [r.instance for r in gone]) or 0) >= 0:
            break
        gone.append(resident)
    few = _pruned(gone, lambda names: (ledger.free(pool, names) or 0) >= 0)
    return Victims(tuple(r.instance for r in few), sum(r.cost for r in few), 0) if few else None


def _best(need: _Need, useful: Sequence[Resident]) -> tuple[Resident, ...]:
    best: tuple[Resident, ...] = tuple(useful)
    best_rank = (math.inf, 0, 0)
    priced = [(resident.cost, resident.instance, resident) for resident in useful]
    for size in range(1, len(useful) + 1):
        for group in combinations(priced, size):
            cost = sum([one[0] for one in group])
            if cost > best_rank[0]:
                continue
            names = [one[1] for one in group]
            if not need.met(names):
                continue
            rank = (cost, size, need.excess(names))
            if rank < best_rank:
                best, best_rank = tuple(one[2] for one in group), rank
    return _pruned(best, need.met)


def _by_price(need: _Need, useful: Sequence[Resident]) -> tuple[Resident, ...]:
    gone: list[Resident] = []
    names: list[str] = []
    for resident in sorted(useful, key=lambda r: r.cost / max(1, need.freed(r.instance))):
        if need.met(names):
            break
        gone.append(resident)
        names.append(resident.instance)
    few = _pruned(gone, need.met)
    alone = [r for r in useful if need.met((r.instance,))]
    least = min((r.cost for r in alone), default=math.inf)
    if least > sum(r.cost for r in few):
        return few
    return (min((r for r in alone if r.cost == least), key=lambda r: need.excess((r.instance,))),)


def _pruned(group: Sequence[Resident], enough: _Enough) -> tuple[Resident, ...]:
    """Without those that are not needed, the dearest first."""
    kept = list(group)
    for resident in sorted(group, key=lambda r: -r.cost):
        rest = [r for r in kept if r is not resident]
        if enough([r.instance for r in rest]):
            kept = rest
    return tuple(kept)


def _frees(ledger: Ledger, resident: Resident, claims: Mapping[str, Claim]) -> bool:
    entry = ledger.entries.get(resident.instance)
    return entry is not None and any(pool in entry.claims for pool in claims)


def _price(ledger: Ledger, resident: Resident, pools: Sequence[str]) -> float:
    return resident.cost / max(1, ledger.freed_by(resident.instance, pools))
