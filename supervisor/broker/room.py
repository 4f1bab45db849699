"""What of the memory is left within one admission pass, after what it has promised already. Pure, used by one pass."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from supervisor.broker.explaining import holders_text
from supervisor.broker.ledger import Claim, Entry, Ledger


class Room:
    """The ledger of a pass, and who goes; sums are worked out once for each change.

    Attributes:
        ledger: with what the pass has promised.
        gone: instances that go.
    """

    def __init__(self, ledger: Ledger, gone: set[str]) -> None:
        self.ledger = ledger
        self.gone = gone
        self._before = ledger
        self._staying: Ledger | None = None
        self._free: dict[str, int | None] = {}
        self._held: dict[str, str] = {}

    def keep(self, instance: str, model: str, claims: Mapping[str, Claim]) -> None:
        """From here on the pass counts these bytes as taken, so that nobody further back gets them."""
        self.ledger = self.ledger.plus(Entry(f"{instance} (to be)", model, claims))
        self._staying = None
        self._free.clear()

    def works(self, instance: str, slot: int, working: Mapping[str, int]) -> None:
        """From here on the pass counts a lease's working set as taken."""
        self.ledger = self.ledger.work(instance, slot, working)
        self._staying = None
        self._free.clear()

    def goes(self, instance: str) -> None:
        """It will be gone."""
        self.gone.add(instance)
        self._staying = None

    def staying(self) -> Ledger:
        """Without those who go."""
        if self._staying is None:
            self._staying = self.ledger.less(self.gone)
        return self._staying

    def full_for(self, least: Iterable[tuple[str, int]]) -> str | None:
        """The first pool without room for even the anonymous part; a glance, where a whole look costs too much.

        Args:
            least: bytes by pool.
        """
        for pool, size in least:
            if pool not in self._free:
                self._free[pool] = self.ledger.free(pool)
            free = self._free[pool]
            if free is not None and free < size:
                return pool
        return None

    def never(self, claims: Mapping[str, Claim], pinned: Iterable[str]) -> bool:
        """Whether those who never go by themselves leave no room for it."""
        return bool(self._before.less(self._before.entries.keys() - frozenset(pinned)).shortfalls(claims))

    def held_by(self, pool: str) -> str:
        """Who holds how much of it now, in words."""
        if pool not in self._held:
            self._held[pool] = holders_text(self._before, pool)
        return self._held[pool]
