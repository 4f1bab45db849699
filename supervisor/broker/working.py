"""The working set of a lease: bytes that it adds to its engine while it runs, such as those of a picture. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from supervisor.broker.eviction import Resident, choose_victims, evictable
from supervisor.broker.explaining import room_text
from supervisor.broker.ledger import Claim, Ledger
from supervisor.broker.room import Room
from supervisor.units import format_size


@dataclass(frozen=True, slots=True)
class Work:
    """What became of a working set within one pass.

    Attributes:
        fits: the lease may be granted; the bytes are kept for it.
        never: not even an empty machine would do.
        why: what it lacks, in words.
        gone: idle instances that go for it.
        look_at: monotonic second at which time alone may change it.
    """

    fits: bool
    never: bool = False
    why: str = ""
    gone: tuple[str, ...] = ()
    look_at: float | None = None


def needs(ledger: Ledger, instance: str, slot: int, working: Mapping[str, int]) -> dict[str, Claim]:
    """What the ledger would promise more, by pool: an engine that still holds a former one's bytes uses them again."""
    after = ledger.work(instance, slot, working)
    return {pool: Claim(max(0, after.reserved(pool) - ledger.reserved(pool))) for pool in working}


def with_working(claims: Mapping[str, Claim], working: Mapping[str, int]) -> Mapping[str, Claim]:
    """What an engine and its first lease hold together: it is not started for what it could not do."""
    if not working:
        return claims
    return {pool: replace(claim, upper=claim.upper + working.get(pool, 0)) for pool, claim in claims.items()}


def find_room(
    room: Room,
    lease: tuple[str, int, Mapping[str, int]],
    residents: Sequence[Resident],
    now: float,
    min_idle: float,
) -> Work:
    """Whether there is room for a working set now, who goes for it, or why there is none.

    Args:
        room: the pass's own; what fits is kept in it.
        lease: instance, slot, and bytes by pool.
        residents: engines that hold memory.
        now: monotonic seconds.
        min_idle: as ``Policy``.
    """
    instance, slot, working = lease
    claims = needs(room.ledger, instance, slot, working)
    short = room.ledger.shortfalls(claims)
    if not short:
        room.works(instance, slot, working)
        return Work(fits=True)
    text = room_text(instance, short, room.held_by)
    others = frozenset(room.ledger.entries) - {instance}
    alone = room.ledger.shortfalls(claims, others)
    if alone:
        lack = alone[0]
        sums = f"{format_size(lack.reserved)} that it holds + {format_size(lack.need)} while it works"
        return Work(
            fits=False, never=True, why=f"{instance} needs {sums}, and {lack.pool} has {format_size(lack.budget)}"
        )
    if not room.ledger.shortfalls(claims, room.gone):
        room.works(instance, slot, working)
        return Work(fits=False, why=f"{text}; memory of stopping engines is on its way back")
    victims = choose_victims(room.staying(), claims, [one for one in residents if evictable(one, now, min_idle)])
    if victims is not None:
        return Work(fits=False, why=text, gone=victims.instances)
    later = [one.idle_since + min_idle for one in residents if one.idle_since is not None and not one.pinned]
    return Work(fits=False, why=text, look_at=min((at for at in later if at > now), default=None))
