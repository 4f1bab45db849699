"""Who gets a slot now, whether to start the engine, and who is refused. Pure: frozen values in, a decision out.

A first version: one queue a model, first come first served, limits by caller and in total.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from supervisor.config.schema import QueueConfig


@dataclass(frozen=True, slots=True)
class Ticket:
    """A request that waits. Times are monotonic seconds."""

    number: int
    request_id: str
    caller: str
    model_id: str
    lane: str
    since: float


@dataclass(frozen=True, slots=True)
class QueueLimits:
    """Requests waiting at once, and the longest wait in seconds."""

    per_caller: int = 16
    total: int = 64
    max_wait: float = 120.0

    @classmethod
    def of(cls, config: QueueConfig) -> QueueLimits:
        """The limits that a config sets."""
        return cls(config.per_caller, config.total, config.max_wait)


@dataclass(frozen=True, slots=True)
class Denial:
    """A refusal with its arithmetic; ``retry_after`` in seconds."""

    code: str
    why: str
    retry_after: float


@dataclass(frozen=True, slots=True)
class InstanceView:
    """What admission needs to know of an instance.

    Attributes:
        accepting: it is READY and takes requests.
        can_start: asking it to start makes sense now.
        free_slots: indices not leased, lowest first.
        failure: why it can't be started, when it can't.
    """

    accepting: bool
    can_start: bool
    free_slots: tuple[int, ...]
    failure: Denial | None = None


@dataclass(frozen=True, slots=True)
class Decision:
    """What to do now: leases to grant, whether the instance is wanted, and whom to refuse."""

    grants: tuple[tuple[Ticket, int], ...] = ()
    want_instance: bool = False
    denials: tuple[tuple[Ticket, Denial], ...] = ()


def refuse_new(waiting: Iterable[Ticket], ticket: Ticket, limits: QueueLimits) -> Denial | None:
    """Whether the queue is full for this ticket, in total or for its caller."""
    callers = Counter(other.caller for other in waiting)
    total = callers.total()
    if total >= limits.total:
        return Denial("queue_full", f"{total} requests wait, {limits.total} may", retry_after=5.0)
    own = callers[ticket.caller]
    if own >= limits.per_caller:
        why = f"{own} requests of {ticket.caller} wait, {limits.per_caller} of one caller may"
        return Denial("queue_full", why, retry_after=5.0)
    return None


def decide(queue: Sequence[Ticket], instance: InstanceView) -> Decision:
    """Grant free slots in order while it accepts; else want it, or refuse all when it can't be started."""
    if not queue:
        return Decision()
    if instance.accepting:
        return Decision(grants=tuple(zip(queue, instance.free_slots, strict=False)))
    if instance.failure is not None and not instance.can_start:
        return Decision(denials=tuple((ticket, instance.failure) for ticket in queue))
    return Decision(want_instance=True)
