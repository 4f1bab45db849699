"""Sums of one pool's entries, so that leaving somebody out, or in, is a subtraction or an addition. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from supervisor.broker.ledger import Entry


@dataclass(frozen=True, slots=True)
class PoolSums:
    """All sizes in bytes.

    Attributes:
        own: by instance, what goes with it, whoever else stays.
        mapped: by file, who maps how much of it.
        shared: those files that several map.
        unknown: instances of which nothing is known.
    """

    own: Mapping[str, int]
    mapped: Mapping[str, Mapping[str, int]]
    shared: tuple[Mapping[str, int], ...]
    unknown: frozenset[str]
    total: int

    @classmethod
    def of(cls, pool: str, entries: Mapping[str, Entry]) -> PoolSums:
        """Add up what the entries hold of the pool."""
        own: dict[str, int] = {}
        mapped: dict[str, dict[str, int]] = {}
        unknown = set()
        for name, entry in entries.items():
            claim = entry.claims.get(pool)
            if claim is None:
                continue
            if claim.anonymous is None:
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

    def plus(self, pool: str, entry: Entry) -> PoolSums | None:
        """With one entry more; None: it must be added up anew, since it maps what others do, or is there already."""
        claim = entry.claims.get(pool)
        if claim is None:
            return None if entry.instance in self.own else self
        if entry.instance in self.own or not self.mapped.keys().isdisjoint(claim.mapped):
            return None
        own = entry.held(pool, claim) + sum(claim.mapped.values())
        mapped = {**self.mapped, **{file: {entry.instance: size} for file, size in claim.mapped.items()}}
        unknown = self.unknown if claim.anonymous is not None else self.unknown | {entry.instance}
        return PoolSums({**self.own, entry.instance: own}, mapped, self.shared, unknown, self.total + own)

    def less(self, gone: frozenset[str]) -> PoolSums | None:
        """Without these; None: it must be added up anew, since they share files with others."""
        if any(not gone.isdisjoint(sizes) for sizes in self.shared):
            return None
        own = {name: size for name, size in self.own.items() if name not in gone}
        mapped = {file: sizes for file, sizes in self.mapped.items() if gone.isdisjoint(sizes)}
        return PoolSums(own, mapped, self.shared, self.unknown - gone, self.without(gone))

    def without(self, gone: frozenset[str]) -> int:
        """The sum as if these were gone."""
        if not gone:
            return self.total
        total = self.total - sum(self.own.get(name, 0) for name in gone)
        for sizes in self.shared:
            if not gone.isdisjoint(sizes):
                total -= max(sizes.values()) - _largest(sizes, gone)
        return total

    def new_of(self, files: Mapping[str, int], gone: frozenset[str]) -> int:
        """Bytes of these files that nobody who stays has mapped yet; launches may map different parts of one."""
        return sum(max(0, size - _largest(self.mapped.get(file, {}), gone)) for file, size in files.items())


def _largest(sizes: Mapping[str, int], gone: frozenset[str]) -> int:
    return max((size for name, size in sizes.items() if name not in gone), default=0)
