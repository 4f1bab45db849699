"""The memory book: what each pool may promise, and who holds how much of it. Pure: every change gives a new ledger.

An entry is one launch's. It is reserved before the start at its prediction and margin, corrected by what the engine
declares and the system shows, and goes when its memory has been seen back. Mapped files are counted once a pool,
however many launches map them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from types import MappingProxyType

from supervisor.broker.pool_sums import PoolSums

Bytes = int


class Stage(StrEnum):
    """How far an entry's figures can be trusted, and whether its memory is on its way back."""

    PREDICTED = "predicted"
    DECLARED = "declared"
    OBSERVED = "observed"
    RELEASING = "releasing"


@dataclass(frozen=True, slots=True)
class Claim:
    """One launch's part of one pool, in bytes.

    Attributes:
        predicted: anonymous bytes; None: not known, and then it counts as the whole pool until it has declared.
        upper: margin on top of ``predicted``, from what the estimate may be short by.
        growth: part of ``predicted`` that comes after the load (prompt cache, checkpoints), so that no figure read at
            the load contains it.
        mapped: bytes by file, mapped read-only.
        declared: anonymous bytes by the engine's own word.
        observed: anonymous bytes as the system shows them.
    """

    predicted: Bytes | None
    upper: Bytes = 0
    growth: Bytes = 0
    mapped: Mapping[str, Bytes] = field(default_factory=dict)
    declared: Bytes | None = None
    observed: Bytes | None = None

    @property
    def promised(self) -> Bytes | None:
        """What is reserved by word, declared or predicted, whatever is seen; None: nothing was said."""
        if self.declared is not None:
            return self.declared + self.growth
        return None if self.predicted is None else self.predicted + self.upper

    @property
    def anonymous(self) -> Bytes | None:
        """What is reserved beside the mapped files; None: not known yet."""
        promised = self.promised
        if promised is None:
            return None if self.observed is None else self.observed + self.growth
        return max(promised, self.observed or 0)

    def at_work(self, working: Bytes) -> Bytes:
        """The same while leases add so many bytes: what is seen then contains them, or what earlier ones left."""
        if self.promised is None:
            return (self.anonymous or 0) + working
        return max(self.promised + working, self.observed or 0)


LOADS_ALONE = "the GPU that all of them share"
"""Among ``serial``: no work of another that has it too overlaps with a load, and no load with another's work."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One launch's place in the book.

    Attributes:
        claims: by pool.
        serial: pools in which nobody else may load while it does; with ``LOADS_ALONE``, nor work.
        working: bytes that each running lease adds, by pool and slot index.
    """

    instance: str
    model: str
    claims: Mapping[str, Claim]
    stage: Stage = Stage.PREDICTED
    serial: frozenset[str] = frozenset()
    working: Mapping[tuple[str, int], Bytes] = field(default_factory=dict)

    def held(self, pool: str, claim: Claim) -> Bytes:
        """Its own bytes of a pool, with what its leases add."""
        if not self.working:
            return claim.anonymous or 0
        return claim.at_work(sum(extra for (where, _), extra in self.working.items() if where == pool))


@dataclass(frozen=True, slots=True)
class Pool:
    """One physical memory.

    Attributes:
        budget: bytes that may be promised in all, reserve and foreign use taken off; None: not known, nothing is
            compared.
        reserve: kept free, in bytes.
        foreign: held by others, in bytes; None: not known.
    """

    budget: Bytes | None
    reserve: Bytes = 0
    foreign: Bytes | None = None


@dataclass(frozen=True, slots=True)
class Shortfall:
    """What a start lacks in one pool, in bytes; ``need`` counts files that are mapped already as nothing."""

    pool: str
    need: Bytes | None
    budget: Bytes
    reserved: Bytes

    @property
    def lacking(self) -> Bytes:
        """Bytes that must be freed first; for an unknown need, all that others hold."""
        if self.need is None:
            return self.reserved
        return max(0, self.need - (self.budget - self.reserved))

    @property
    def never(self) -> bool:
        """Whether it would not fit into the empty pool either."""
        return self.need is not None and self.need > self.budget


@dataclass(frozen=True, slots=True)
class OverCommit:
    """A pool whose reserved bytes exceed its budget."""

    pool: str
    budget: Bytes
    reserved: Bytes

    @property
    def by(self) -> Bytes:
        """How much, in bytes."""
        return self.reserved - self.budget


class DoesNotFitError(AssertionError):
    """A reservation beyond the budget: admission must have looked before."""


@dataclass(frozen=True, slots=True)
class Ledger:
    """Pools and entries; entries by instance id."""

    pools: Mapping[str, Pool] = field(default_factory=dict)
    entries: Mapping[str, Entry] = field(default_factory=dict)
    # Worked out when first asked for; a changed ledger is another one.
    _sums: dict[str, PoolSums] = field(default_factory=dict, init=False, repr=False, compare=False)

    def reserved(self, pool: str, without: Iterable[str] = ()) -> Bytes:
        """Bytes promised of the pool, as if the instances in ``without`` were gone."""
        sums = self._sums.get(pool) or self._sums_of(pool)
        gone = frozenset(without)
        total = sums.without(gone)
        # Nobody is let in beside one of which nothing is known, until it has declared.
        return max(total, self._budget(pool) or 0) if sums.unknown - gone else total

    def free(self, pool: str, without: Iterable[str] = ()) -> Bytes | None:
        """Bytes that can still be promised, below 0 when over-committed; None: the budget is not known."""
        budget = self._budget(pool)
        return None if budget is None else budget - self.reserved(pool, without)

    def shortfalls(self, claims: Mapping[str, Claim], without: Iterable[str] = ()) -> tuple[Shortfall, ...]:
        """Pools that lack something for these claims, as if the instances in ``without`` were gone; empty: it fits."""
        gone = frozenset(without)
        short = []
        for pool, claim in claims.items():
            known = self.pools.get(pool)
            if known is None or known.budget is None:
                continue
            budget, reserved, anonymous = known.budget, self.reserved(pool, gone), claim.anonymous
            files = self._sums_of(pool).new_of(claim.mapped, gone) if claim.mapped else 0
            need = None if anonymous is None else anonymous + files
            alone = need is None and reserved == 0
            if files > budget if alone else (need is None or need > budget - reserved):
                short.append(Shortfall(pool, files if alone else need, budget, reserved))
        return tuple(short)

    def over_commits(self) -> tuple[OverCommit, ...]:
        """Pools that have promised more than they may; what is on its way back is nobody's any more."""
        back = [name for name, entry in self.entries.items() if entry.stage is Stage.RELEASING]
        found = []
        for name, pool in self.pools.items():
            reserved = self.reserved(name, back)
            if pool.budget is not None and reserved > pool.budget:
                found.append(OverCommit(name, pool.budget, reserved))
        return tuple(found)

    def reserve(self, entry: Entry) -> Ledger:
        """With a new launch's entry.

        Raises:
            DoesNotFitError: it does not fit, or the instance has one already.
        """
        if entry.instance in self.entries:
            raise DoesNotFitError(f"{entry.instance} is in the book already")
        if self.shortfalls(entry.claims):
            raise DoesNotFitError(f"{entry.instance} does not fit")
        return self._with(entry)

    def declare(self, instance: str, anonymous: Mapping[str, Bytes]) -> Ledger:
        """With the engine's own figures; pools of which it says nothing keep theirs."""
        return self._correct(instance, Stage.DECLARED, lambda claim, size: replace(claim, declared=size), anonymous)

    def observe(self, instance: str, anonymous: Mapping[str, Bytes]) -> Ledger:
        """With what the system shows of it now."""
        return self._correct(instance, Stage.OBSERVED, lambda claim, size: replace(claim, observed=size), anonymous)

    def work(self, instance: str, slot: int, working: Mapping[str, Bytes]) -> Ledger:
        """With a lease's working set; an empty one takes it out again."""
        entry = self.entries.get(instance)
        if entry is None:
            return self
        kept = {key: extra for key, extra in entry.working.items() if key[1] != slot}
        added = {(pool, slot): extra for pool, extra in working.items() if extra}
        if not added and len(kept) == len(entry.working):
            return self
        return self._with(replace(entry, working=MappingProxyType({**kept, **added})))

    def releasing(self, instance: str) -> Ledger:
        """Its process has ended; the bytes count until they are seen back."""
        entry = self.entries.get(instance)
        return self if entry is None else self._with(replace(entry, stage=Stage.RELEASING, working={}))

    def release(self, instance: str) -> Ledger:
        """Without the instance's entry; one that has none changes nothing."""
        if instance not in self.entries:
            return self
        return replace(self, entries={name: entry for name, entry in self.entries.items() if name != instance})

    def with_pools(self, pools: Mapping[str, Pool]) -> Ledger:
        """With budgets as they are now; a pool that is no longer named keeps what it had while someone holds of it."""
        held = {pool for entry in self.entries.values() for pool in entry.claims}
        kept = {name: pool for name, pool in self.pools.items() if name in held}
        return replace(self, pools={**kept, **pools})

    def plus(self, entry: Entry) -> Ledger:
        """With one more entry, whether it fits or not; sums that are known are carried on."""
        made = self._with(entry)
        for pool, sums in self._sums.items():
            if (more := sums.plus(pool, entry)) is not None:
                made._sums[pool] = more  # noqa: SLF001  its own kind, and nobody has seen it yet
        return made

    def less(self, gone: Iterable[str]) -> Ledger:
        """As if these instances were gone; sums that are known are carried on."""
        names = frozenset(gone) & self.entries.keys()
        if not names:
            return self
        made = replace(self, entries={name: entry for name, entry in self.entries.items() if name not in names})
        for pool, sums in self._sums.items():
            if (fewer := sums.less(names)) is not None:
                made._sums[pool] = fewer  # noqa: SLF001  as above
        return made

    def freed_by(self, instance: str, pools: Iterable[str]) -> Bytes:
        """Bytes of these pools that would be back without it."""
        gone = frozenset((instance,))
        return sum(self.reserved(pool) - self.reserved(pool, gone) for pool in pools)

    def frees_alone(self, claims: Mapping[str, Claim]) -> Mapping[str, Mapping[str, Bytes]] | None:
        """By claimed pool and instance, what goes with that one; None: that depends on who else goes."""
        found = {}
        for pool, claim in claims.items():
            sums = self._sums.get(pool) or self._sums_of(pool)
            if (
                claim.anonymous is None
                or sums.unknown
                or sums.shared
                or not sums.mapped.keys().isdisjoint(claim.mapped)
            ):
                return None
            found[pool] = sums.own
        return found

    def holders(self, pool: str) -> tuple[tuple[str, Bytes], ...]:
        """Instances and the bytes that each would give back, largest first."""
        total = self.reserved(pool)
        rows = [
            (name, total - self.reserved(pool, (name,))) for name, entry in self.entries.items() if pool in entry.claims
        ]
        return tuple(sorted(rows, key=lambda row: (-row[1], row[0])))

    def _with(self, entry: Entry) -> Ledger:
        return replace(self, entries={**self.entries, entry.instance: entry})

    def _correct(
        self, instance: str, stage: Stage, change: Callable[[Claim, Bytes], Claim], figures: Mapping[str, Bytes]
    ) -> Ledger:
        entry = self.entries.get(instance)
        if entry is None or entry.stage is Stage.RELEASING:
            return self
        claims = {
            pool: change(claim, figures[pool]) if pool in figures else claim for pool, claim in entry.claims.items()
        }
        if all(claims[pool] == claim for pool, claim in entry.claims.items()):
            return self
        reached = Stage.OBSERVED if entry.stage is Stage.OBSERVED else stage
        return self._with(replace(entry, claims=claims, stage=reached))

    def _budget(self, pool: str) -> Bytes | None:
        known = self.pools.get(pool)
        return None if known is None else known.budget

    def _sums_of(self, pool: str) -> PoolSums:
        known = self._sums.get(pool)
        if known is None:
            known = self._sums[pool] = PoolSums.of(pool, self.entries)
        return known
