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


@dataclass(frozen=True, slots=True)
class Entry:
    """One launch's place in the book.

    Attributes:
        claims: by pool.
        working: bytes that each running lease adds, by pool and slot index.
    """

    instance: str
    model: str
    claims: Mapping[str, Claim]
    stage: Stage = Stage.PREDICTED
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
class _Tally:
    """One pool's sums, so that leaving somebody out is a subtraction.

    Attributes:
        own: bytes by instance that go with it, whoever else stays.
        mapped: by file, who maps how much of it.
        shared: those files that several map.
        unknown: instances of which nothing is known.
    """

    own: Mapping[str, Bytes]
    mapped: Mapping[str, Mapping[str, Bytes]]
    shared: tuple[Mapping[str, Bytes], ...]
    unknown: frozenset[str]
    total: Bytes

    @classmethod
    def of(cls, pool: str, entries: Mapping[str, Entry]) -> _Tally:
        """Add up what the entries hold of the pool."""
        own: dict[str, Bytes] = {}
        mapped: dict[str, dict[str, Bytes]] = {}
        unknown = set()
        for name, entry in entries.items():
            claim = entry.claims.get(pool)
            if claim is None:
                continue
            anonymous = claim.anonymous
            if anonymous is None:
                unknown.add(name)
            own[name] = entry.held(pool, claim)
            for file, size in claim.mapped.items():
                mapped.setdefault(file, {})[name] = size
        shared = tuple(sizes for sizes in mapped.values() if len(sizes) > 1)
        for sizes in mapped.values():
            if len(sizes) == 1:
                for name, size in sizes.items():
                    own[name] += size
        total = sum(own.values()) + sum(max(sizes.values()) for sizes in shared)
        return cls(own, mapped, shared, frozenset(unknown), total)

    def without(self, gone: frozenset[str]) -> Bytes:
        """The sum as if these were gone."""
        if not gone:
            return self.total
        total = self.total - sum(self.own.get(name, 0) for name in gone)
        for sizes in self.shared:
            if not gone.isdisjoint(sizes):
                total -= max(sizes.values()) - _largest(sizes, gone)
        return total

    def new_of(self, files: Mapping[str, Bytes], gone: frozenset[str]) -> Bytes:
        """Bytes of these files that nobody who stays has mapped yet; launches may map different parts of one."""
        return sum(max(0, size - _largest(self.mapped.get(file, {}), gone)) for file, size in files.items())


def _largest(sizes: Mapping[str, Bytes], gone: frozenset[str]) -> Bytes:
    return max((size for name, size in sizes.items() if name not in gone), default=0)


@dataclass(frozen=True, slots=True)
class Ledger:
    """Pools and entries; entries by instance id."""

    pools: Mapping[str, Pool] = field(default_factory=dict)
    entries: Mapping[str, Entry] = field(default_factory=dict)
    # Worked out when first asked for; a changed ledger is another one.
    _tallies: dict[str, _Tally] = field(default_factory=dict, init=False, repr=False, compare=False)

    def reserved(self, pool: str, without: Iterable[str] = ()) -> Bytes:
        """Bytes promised of the pool, as if the instances in ``without`` were gone."""
        tally = self._tallies.get(pool) or self._tally(pool)
        gone = frozenset(without)
        total = tally.without(gone)
        # Nobody is let in beside one of which nothing is known, until it has declared.
        return max(total, self._budget(pool) or 0) if tally.unknown - gone else total

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
            files = self._tally(pool).new_of(claim.mapped, gone) if claim.mapped else 0
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

    def _tally(self, pool: str) -> _Tally:
        known = self._tallies.get(pool)
        if known is None:
            known = self._tallies[pool] = _Tally.of(pool, self.entries)
        return known
