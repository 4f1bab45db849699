"""What is left of each pool beside the engines that hold of it. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from supervisor.broker.ledger import Ledger
from supervisor.host.pools import PoolRoom
from supervisor.models.catalog import ModelEntry
from supervisor.units import format_size


def rooms_beside(rooms: Iterable[PoolRoom], ledger: Ledger, entry: ModelEntry) -> tuple[PoolRoom, ...]:
    """The rooms that are left for a newcomer, with the arithmetic.

    Files that the newcomer maps too are left to its own account, since they are counted once; what its model holds
    already is its to use again.
    """
    own = [name for name, other in ledger.entries.items() if other.model == entry.id]
    for name in own:
        ledger = ledger.release(name)
    return tuple(_less(room, ledger, entry) for room in rooms)


def _less(room: PoolRoom, ledger: Ledger, entry: ModelEntry) -> PoolRoom:
    holders = [(ledger.entries[name].model, size) for name, size in ledger.holders(room.pool) if size]
    if not holders or room.budget is None:
        return room
    names = {str(file) for file in entry.files}
    shared: dict[str, int] = {}
    for other in ledger.entries.values():
        claim = other.claims.get(room.pool)
        shared |= {file: size for file, size in (claim.mapped if claim else {}).items() if file in names}
    taken = ledger.reserved(room.pool) - sum(shared.values())
    said = ", ".join(f"{name} {format_size(size)}" for name, size in holders)
    left = max(0, room.budget - taken)
    return replace(room, budget=left, why=f"{room.why} - promised to running models ({said})")
