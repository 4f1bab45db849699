"""Devices that were there and are gone, as in containers after a driver or the cgroups were reloaded. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from supervisor.host.cards import CardsReading
from supervisor.host.devices import Placed


@dataclass(frozen=True, slots=True)
class SeenDevice:
    """A device as it was last seen: the card's description, and the memory behind it.

    Attributes:
        by_system: the system knew the card too, not the build's listing alone.
    """

    name: str
    pool: str
    by_system: bool


@dataclass(frozen=True, slots=True)
class LostDevice:
    """A device of a build that is gone, and who says so."""

    device: str
    name: str
    pool: str
    why: str


def seen_in(placed: Iterable[Placed]) -> Mapping[str, SeenDevice]:
    """What is worth remembering of a build's devices: cards, not software and not other machines."""
    return {
        row.device.id: SeenDevice(row.device.name, row.pool, by_system=bool(row.cards))
        for row in placed
        if not row.device.software and row.device.kind != "remote"
    }


def lost_of(
    seen: Mapping[str, SeenDevice], placed: Iterable[Placed] | None, cards: CardsReading
) -> tuple[LostDevice, ...]:
    """Those of ``seen`` that are gone.

    Args:
        seen: by the build's names.
        placed: the build's devices now; None: its listing can't be trusted, and says nothing.
        cards: the system's own reading; where it did not answer, it says nothing either.
    """
    listed = None if placed is None else {row.device.id for row in placed}
    there = {card.pool for card in cards.cards}
    lost = []
    for device, was in seen.items():
        if was.by_system and cards.answered and not there.issuperset(was.pool.split("+")):
            lost.append(LostDevice(device, was.name, was.pool, cards.problem or "the driver no longer knows it"))
        elif listed is not None and device not in listed:
            lost.append(LostDevice(device, was.name, was.pool, "the build no longer lists it"))
    return tuple(lost)
