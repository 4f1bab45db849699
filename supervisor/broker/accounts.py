"""The callers' accounts: charged at a grant, corrected when the lease ends."""

from __future__ import annotations

from supervisor.broker.books import Book, Waiter
from supervisor.broker.fair_queue import FairState
from supervisor.clock import Clock


class Accounts:
    """Owns the state of the fair order."""

    def __init__(self, clock: Clock) -> None:
        self.state = FairState()
        self._clock = clock

    def charge(self, waiter: Waiter, estimate: float) -> None:
        """It is granted a lease that is expected to take ``estimate`` seconds of a whole instance."""
        ticket = waiter.ticket
        waiter.charged, waiter.granted_at = estimate, self._clock.monotonic()
        self.state = self.state.charge(ticket.caller, ticket.weight, estimate)

    def settle(self, waiter: Waiter, book: Book) -> None:
        """Its lease has ended: what it really took."""
        took = (self._clock.monotonic() - waiter.granted_at) / max(1, book.instance.slots)
        ticket = waiter.ticket
        self.state = self.state.correct(ticket.caller, ticket.weight, waiter.charged, took)
        book.learn_service(took)
