"""Refusals: told as events, and raised as errors of the branch that the gateway's table knows them by."""

from __future__ import annotations

from typing import Any

from supervisor.broker.books import Book, Waiter
from supervisor.broker.tickets import Denial
from supervisor.clock import Clock
from supervisor.errors import AdmissionError, InstanceError, PlanError, SupervisorError
from supervisor.events import EventBus, RequestDenied

DRAINING = Denial("draining", "the daemon is stopping and takes no new requests", retry_after=5.0)
_BRANCHES: tuple[tuple[tuple[str, ...], type[SupervisorError]], ...] = (
    (("start_", "instance_"), InstanceError),
    (("does_not_fit",), PlanError),
)


def as_error(cause: SupervisorError | None, denial: Denial, waited: float) -> SupervisorError:
    """The error of a refusal; with a ``cause`` it is the cause's own, and its facts stay. Pure."""
    facts: dict[str, Any] = {"retry_after": denial.retry_after, "waited_seconds": round(waited, 3)}
    if cause is not None and cause.code == denial.code:
        return type(cause)(cause.code, cause.message, **{**cause.facts, **facts})
    for prefixes, branch in _BRANCHES:
        if denial.code.startswith(prefixes):
            return branch(denial.code, denial.why, **facts)
    return AdmissionError(denial.code, denial.why, **facts)


class Refusing:
    """Settles waiters by refusing them."""

    def __init__(self, clock: Clock, bus: EventBus) -> None:
        self._clock = clock
        self._bus = bus

    def refuse(self, waiter: Waiter, denial: Denial, cause: SupervisorError | None = None) -> None:
        """One of them; it is out of its queue already."""
        ticket = waiter.ticket
        waited = self._clock.monotonic() - ticket.since
        waiter.error = as_error(cause, denial, waited)
        waiter.settle()
        self._bus.publish(
            RequestDenied(ticket.request_id, ticket.model_id, ticket.caller, denial.code, denial.why, waited)
        )

    def loaders_of(self, book: Book | None) -> None:
        """It is stopped by hand: who waits for its load by hand would start it anew by waiting on."""
        if book is None:
            return
        book.loaded_by_hand = False
        for waiter in [waiter for waiter in book.queue if waiter.ticket.slotless]:
            book.queue.remove(waiter)
            said = f"{waiter.ticket.model_id} was unloaded by hand while it loaded; load it again if you want it"
            self.refuse(waiter, Denial("instance_stopping", said, retry_after=1.0))

    def all_of(self, book: Book, denial: Denial, cause: SupervisorError | None = None) -> None:
        """Nobody waits for what has just been given up; who comes later may try again."""
        waiting, book.queue = book.queue, []
        for waiter in waiting:
            self.refuse(waiter, denial, cause)
