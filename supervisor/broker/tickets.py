"""A request that waits, the limits of waiting, and a refusal. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from supervisor.config.schema import QueueConfig


@dataclass(frozen=True, slots=True)
class Ticket:
    """A request that waits. Times are monotonic seconds.

    Attributes:
        weight: its caller's share of the service, against others.
        slotless: it only wants the model to be ready: a load by hand.
        working: bytes by pool that its lease adds while it runs.
    """

    number: int
    request_id: str
    caller: str
    model_id: str
    lane: str
    since: float
    weight: float = 1.0
    slotless: bool = False
    working: Mapping[str, int] = field(default_factory=dict, compare=False, hash=False)


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
