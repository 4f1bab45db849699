"""Which device of a build is which physical memory. Pure.

A build names a card its own way (``CUDA0``, ``Vulkan0``), and its listing tells no address. What is known of a card by
the system is matched by name and size, and cards of one kind by their order, where that is the order of PCI addresses.
Where two cards could be meant, both are one pool, until the log of a first load has told the address.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from engines.contract import DeviceListing
from supervisor.host.cards import Card, pci_pool
from supervisor.host.pools import HOST_POOL

# A driver's own figure and a build's differ by what the driver keeps: 2 to 3 % on consumer cards.
_TOTAL_TOLERANCE = 0.06
# Builds whose rows follow PCI addresses, given CUDA_DEVICE_ORDER=PCI_BUS_ID; ROCm has always done so.
_IN_PCI_ORDER = ("CUDA", "ROCm", "HIP")
_APPLE = ("Metal", "MTL")
# Graphics inside a processor, which have no memory of their own; a listing does not say so.
_INTEGRATED = re.compile(
    r"\b(?:UHD|Iris|HD Graphics|Intel\(R\) (?:Arc\(TM\) )?Graphics|Tegra|Orin|Xavier|Thor|GB10)\b|^Apple ",
    re.IGNORECASE,
)
_WORDS = re.compile(r"[a-z0-9]+")
_VENDORS = {"nvidia": ("nvidia", "geforce", "quadro", "tesla"), "amd": ("amd", "radeon", "ati")}


@dataclass(frozen=True, slots=True)
class Placed:
    """A device of a build and the memory behind it.

    Attributes:
        pool: ``host`` for software devices and those that share the host's memory.
        cards: the cards that it may be; empty: none that the system knows.
        unified: its memory is the host's.
    """

    device: DeviceListing
    pool: str
    cards: tuple[Card, ...] = ()
    unified: bool = False


def place_devices(
    listing: Iterable[DeviceListing], cards: Sequence[Card], addresses: Mapping[str, str] | None = None
) -> tuple[Placed, ...]:
    """The pool of each device that has memory; pseudo-devices are left out.

    Args:
        listing: a build's own rows.
        cards: what the system knows, in the order of PCI addresses.
        addresses: PCI addresses by device, as this build's own log told them at an earlier load.
    """
    rows = [device for device in listing if device.usable]
    told = addresses or {}
    candidates = {row.id: _candidates(row, cards, told.get(row.id)) for row in rows}
    _by_order(rows, candidates)
    slugs = _slugs(row for row in rows if not candidates[row.id])
    return tuple(_placed(row, candidates[row.id], slugs.get(row.id, "")) for row in rows)


def _candidates(device: DeviceListing, cards: Sequence[Card], address: str | None) -> tuple[Card, ...]:
    if device.software or device.kind == "remote":
        return ()
    told = tuple(card for card in cards if address is not None and card.pool == pci_pool(address))
    return told or tuple(card for card in cards if _may_be(device, card))


def _may_be(device: DeviceListing, card: Card) -> bool:
    name = frozenset(_WORDS.findall(device.name.lower()))
    if card.name is not None:
        own = frozenset(_WORDS.findall(card.name.lower()))
        if not (own <= name or name <= own):
            return False
    elif not name & frozenset(_VENDORS.get(card.vendor, ())):
        return False
    if device.total_bytes is None or card.total is None:
        return True
    sizes = [card.total] if card.spill is None else [card.total, card.total + card.spill]
    return any(abs(device.total_bytes - size) <= _TOTAL_TOLERANCE * size for size in sizes)


def _by_order(rows: Sequence[DeviceListing], candidates: dict[str, tuple[Card, ...]]) -> None:
    """As many devices of a family as there are cards of that kind: the first is the first."""
    groups: dict[tuple[str, tuple[str, ...]], list[str]] = {}
    for row in rows:
        family = next((family for family in _IN_PCI_ORDER if row.id.startswith(family)), None)
        if family is not None and len(candidates[row.id]) > 1:
            groups.setdefault((family, tuple(card.pool for card in candidates[row.id])), []).append(row.id)
    for (_, pools), names in groups.items():
        if len(pools) == len(names):
            for index, name in enumerate(names):
                candidates[name] = (candidates[name][index],)


def _placed(device: DeviceListing, cards: tuple[Card, ...], slug: str) -> Placed:
    if device.software:
        return Placed(device, HOST_POOL, unified=True)
    if cards:
        if any(_spills(device, card) for card in cards) or all(card.total is None for card in cards):
            return Placed(device, HOST_POOL, cards, unified=True)
        return Placed(device, "+".join(card.pool for card in cards), cards)
    if device.id.startswith(_APPLE) or _INTEGRATED.search(device.name):
        return Placed(device, HOST_POOL, unified=True)
    return Placed(device, slug)


def _spills(device: DeviceListing, card: Card) -> bool:
    """A build that counts host memory in sees a processor's own graphics."""
    if card.spill is None or card.total is None or device.total_bytes is None:
        return False
    return device.total_bytes > card.total * (1 + _TOTAL_TOLERANCE)


def _slugs(rows: Iterator[DeviceListing]) -> dict[str, str]:
    """Pools of cards that only builds know, named so that two builds name one card alike."""
    slugs: dict[str, str] = {}
    seen: dict[tuple[str, str], int] = {}
    for row in rows:
        words = "-".join(_WORDS.findall(row.name.lower())) or row.id.lower()
        family = row.id.rstrip("0123456789")
        number = seen[family, words] = seen.get((family, words), -1) + 1
        kind = "remote" if row.kind == "remote" else "gpu"
        slugs[row.id] = f"{kind}-{words}" + (f"-{number + 1}" if number else "")
    return slugs
