"""When the machine is short of memory for so long that idle engines are let go. Pure.

Budgets keep our engines from taking what is not there; this is for what budgets do not see: others that grow, and
files that are thrown out of the page cache and read again and again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from supervisor.broker.eviction import Resident, evictable
from supervisor.broker.ledger import Ledger
from supervisor.host.pools import HOST_POOL
from supervisor.units import format_size

# Free memory at or below this share, or 1 GiB, is short; 1 GiB of a small machine would be most of what it has.
_SHARE = 0.08
_LEAST = 2**30
_LEAST_SHARE = 0.125
# Per cent of the last ten seconds in which some task waited for memory: a machine that only fills its page cache shows
# next to nothing here.
_SOME_AVG10 = 10.0


@dataclass(frozen=True, slots=True)
class PressureReading:
    """The machine's memory at one moment; None: not known.

    Attributes:
        available: bytes that a newcomer could get, by the limits above the daemon and the machine itself.
        whole: bytes of what bounds it: the least limit, else the machine.
        some: per cent of the last ten seconds in which some task waited for memory.
    """

    available: int | None
    whole: int | None
    some: float | None


@dataclass(frozen=True, slots=True)
class LetGo:
    """An idle engine to stop, and why."""

    model: str
    why: str


def short_of_memory(reading: PressureReading) -> str | None:
    """Why the machine counts as short of memory, with the figures; None: it does not, or nothing is known."""
    found = []
    if reading.available is not None and reading.whole is not None:
        bound = free_bound(reading.whole)
        if reading.available <= bound:
            found.append(
                f"{format_size(reading.available)} of {format_size(reading.whole)} is available, "
                f"{format_size(bound)} or less is too little"
            )
    if reading.some is not None and reading.some >= _SOME_AVG10:
        found.append(f"tasks waited for memory in {reading.some:g} % of the last 10 s, {_SOME_AVG10:g} % is too much")
    return "; ".join(found) or None


def free_bound(whole: int) -> int:
    """Bytes that are too few to be left of ``whole``: 8 %, or 1 GiB; of less than 8 GiB, an eighth."""
    return max(int(whole * _SHARE), min(_LEAST, int(whole * _LEAST_SHARE)))


def choose_let_go(
    why: str, since: float, now: float, grace: float, residents: Sequence[Resident], ledger: Ledger
) -> LetGo | None:
    """The engine that goes now; one at a look, since what it gives back may be enough.

    Args:
        why: the reason, from ``short_of_memory``.
        since: since when it has been so without a break, in monotonic seconds.
        now: in monotonic seconds.
        grace: it must have lasted so long, and the engine been idle for so long.
        residents: engines that hold memory and accept requests.
        ledger: what they hold.
    """
    if now - since < grace:
        return None
    idle = [resident for resident in residents if evictable(resident, now, grace)]
    held = [resident for resident in idle if HOST_POOL in ledger.entries[resident.instance].claims]
    if not held:
        return None

    def price(resident: Resident) -> float:
        freed = ledger.reserved(HOST_POOL) - ledger.reserved(HOST_POOL, (resident.instance,))
        return resident.cost / max(1, freed)

    return LetGo(min(held, key=price).model, f"the machine has been short of memory for {now - since:.0f} s: {why}")
