"""A card: one physical memory of devices, as the system knows it, beside the names that builds give it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Card:
    """One reading of one card; bytes, None where not known.

    Attributes:
        pool: ``gpu-<pci address>``, or ``gpu-<uuid>`` where the address is not known.
        vendor: ``nvidia``, ``amd`` or ``apple``.
        name: as the driver calls it; None where it does not.
        total: its memory.
        used: what is taken of it, whoever took it; without ``reserved``.
        reserved: what the driver keeps for itself.
        spill: host memory that it uses as its own (AMD's GTT): where a build counts that in, the card has none itself.
        by_process: bytes by process id as this process sees them; None where the driver does not tell.
        source: who says so.
    """

    pool: str
    vendor: str
    name: str | None
    total: int | None
    used: int | None
    reserved: int = 0
    spill: int | None = None
    by_process: Mapping[int, int] | None = None
    source: str = ""

    @property
    def free(self) -> int | None:
        """What is neither taken nor reserved."""
        if self.total is None or self.used is None:
            return None
        return max(0, self.total - self.used - self.reserved)


@dataclass(frozen=True, slots=True)
class CardsReading:
    """All cards of the machine, in the order of their PCI addresses.

    Attributes:
        cards: those that answer.
        problem: why a driver that is there did not answer, or not for all cards.
        answered: somebody who would know has answered: a card that is not among them is not there.
    """

    cards: tuple[Card, ...] = ()
    problem: str | None = None
    answered: bool = False


def pci_pool(address: str) -> str:
    """The pool of a PCI address in any of its spellings: ``00000000:01:00.0`` and ``0000:01:00.0`` are one."""
    domain, _, rest = address.strip().lower().partition(":")
    return f"gpu-{domain[-4:].rjust(4, '0')}:{rest}"
