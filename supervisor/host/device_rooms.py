"""What a launch may take of each pool, for one build's devices. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from supervisor.host.cards import Card
from supervisor.host.devices import Placed
from supervisor.host.memory import MemoryBound
from supervisor.host.pools import HOST_POOL, PoolRoom
from supervisor.units import format_size

# Kept free on a card unless the config says otherwise: contexts of the runtimes (200 to 500 MiB) are in no estimate.
_LEAST_RESERVE, _MOST_RESERVE, _RESERVE_SHARE = 512 * 2**20, 2**30, 16
Ours = Callable[[str], int]
"""Bytes that our engines are believed to hold of a pool."""


@dataclass(frozen=True, slots=True)
class DeviceWish:
    """``host.devices.NAME`` of the config; ``reserve`` in bytes, None: chosen by size."""

    reserve: int | None = None
    use: bool = True


@dataclass(frozen=True, slots=True)
class DeviceWishes:
    """All of ``host.devices``."""

    by_name: Mapping[str, DeviceWish] = field(default_factory=dict)

    def of(self, name: str) -> DeviceWish:
        """What the config says of a device; the defaults where it says nothing."""
        return self.by_name.get(name, DeviceWish())


def rooms_of(
    host: PoolRoom, placed: Sequence[Placed], wishes: DeviceWishes, ours: Ours, pids: frozenset[int]
) -> tuple[PoolRoom, ...]:
    """The host's room with the devices that share it, then one room for each other pool.

    Devices with ``use: false`` are behind no room. A card's budget = total - what the driver keeps - what others hold -
    reserve. Others hold what is used less our engines' part: by the driver's own list of processes where ours are in
    it, else by what our engines are believed to hold.

    Args:
        host: the host's room.
        placed: the build's devices.
        wishes: ``host.devices``.
        ours: what our engines are believed to hold of a pool.
        pids: our engines' processes.
    """
    used = [row for row in placed if wishes.of(row.device.id).use]
    on_host = [row for row in used if row.pool == HOST_POOL]
    names = tuple(row.device.id for row in on_host)
    caps = {row.device.id: row.device.total_bytes for row in on_host if row.device.total_bytes is not None}
    hardware = any(not row.device.software for row in on_host)
    pools = dict.fromkeys(row.pool for row in used if row.pool != HOST_POOL)
    return (
        replace(host, devices=names, unified=hardware, caps=caps),
        *(_room(pool, [row for row in used if row.pool == pool], wishes, ours, pids) for pool in pools),
    )


def bounded(host: PoolRoom, bound: MemoryBound | None, reserve: int) -> PoolRoom:
    """The host's room on a machine whose GPU shares it and may take no more than ``bound``."""
    if bound is None:
        return host
    left = max(0, bound.size - reserve)
    if host.budget is not None and host.budget <= left:
        return host
    why = f"{format_size(bound.size)} by {bound.source} - host.reserve.memory {format_size(reserve)}"
    return replace(host, budget=left, why=why)


def _room(pool: str, rows: Sequence[Placed], wishes: DeviceWishes, ours: Ours, pids: frozenset[int]) -> PoolRoom:
    names = tuple(row.device.id for row in rows)
    reserves = [wish for name in names if (wish := wishes.of(name).reserve) is not None]
    cards = {card.pool: card for row in rows for card in row.cards}
    if not cards:
        total = min((row.device.total_bytes for row in rows if row.device.total_bytes is not None), default=None)
        part = _by_listing(total, max(reserves, default=None), names)
        return PoolRoom(pool, part.budget, total, part.why, names, foreign=part.foreign, reserve=part.reserve)
    whole = [_by_card(card, max(reserves, default=None), ours(pool), pids) for card in cards.values()]
    part = min(whole, key=lambda one: -1 if one.budget is None else one.budget)
    why = part.why
    if len(cards) > 1:
        why = f"{why}; {' and '.join(names)} may be any of {len(cards)} cards, so all count as the fullest"
    total = min((card.total for card in cards.values() if card.total is not None), default=None)
    return PoolRoom(pool, part.budget, total, why, names, foreign=part.foreign, reserve=part.reserve)


@dataclass(frozen=True, slots=True)
class _Part:
    """A room's figures, in bytes; None: not known."""

    budget: int | None
    why: str
    foreign: int | None = None
    reserve: int = 0


def default_reserve(total: int) -> int:
    """A sixteenth of the card, at least 512 MiB and at most 1 GiB, in bytes."""
    return min(max(total // _RESERVE_SHARE, _LEAST_RESERVE), _MOST_RESERVE)


def _by_listing(total: int | None, reserve: int | None, names: Iterable[str]) -> _Part:
    """What others hold is not known, as only the build's listing speaks of this card."""
    if total is None:
        return _Part(None, "nobody says how much memory it has")
    kept = default_reserve(total) if reserve is None else reserve
    device = next(iter(names), "NAME")
    why = f"{format_size(total)} by the build's listing - host.devices.{device}.reserve {format_size(kept)}"
    return _Part(max(0, total - kept), f"{why}; what others hold is not known", reserve=kept)


def _by_card(card: Card, reserve: int | None, ours: int, pids: frozenset[int]) -> _Part:
    if card.total is None:
        return _Part(None, f"{card.source} does not say how much memory it has")
    kept = default_reserve(card.total) if reserve is None else reserve
    words = [f"{format_size(card.total)} by {card.source}"]
    if card.reserved:
        words.append(f"kept by the driver {format_size(card.reserved)}")
    foreign = _foreign(card, ours, pids)
    words.append("held by others: not known" if foreign is None else f"held by others {format_size(foreign)}")
    words.append(f"reserve {format_size(kept)}")
    left = card.total - card.reserved - (foreign or 0) - kept
    why = " - ".join(words) if left > 0 else f"{' - '.join(words)}: nothing is left"
    return _Part(max(0, left), why, foreign, kept)


def _foreign(card: Card, ours: int, pids: frozenset[int]) -> int | None:
    """Bytes of a card that others hold; None: not known.

    In a container the driver's list names processes by numbers of the host, or none: it is believed where one of ours
    is in it, or where we have none.
    """
    if card.used is None:
        return None
    listed = sum(size for pid, size in (card.by_process or {}).items() if pid in pids)
    return max(0, card.used - (listed or ours))
