"""Stopping an instance that is in use: it takes nobody new, and ends once its leases have, or after a bound."""

from __future__ import annotations

from collections.abc import Callable

import anyio
from anyio.abc import TaskGroup

from supervisor.broker.books import Book, Retirement

# A changed model's running requests may finish for this long; shorter than `queue.max_wait`, so that who waits for the
# new launch still gets it.
RETIRE_SECONDS = 60.0


class Retiring:
    """Begins and ends retirements; ``pump`` is called after an end. ``tasks`` is the broker's while that runs."""

    def __init__(self, pump: Callable[[], None]) -> None:
        self.tasks: TaskGroup | None = None
        self._pump = pump

    def begin(self, book: Book, why: str, seconds: float | None) -> None:
        """Stop it once its leases have ended, at the latest after ``seconds``; None: whenever that is."""
        book.instance.drain()
        book.retiring = retirement = Retirement(why)
        if not book.leases or self.tasks is None:
            self.end(book)
        elif seconds is not None:
            self.tasks.start_soon(self._cut, book, retirement, seconds)

    def end(self, book: Book) -> None:
        """Stop it now; whoever waits wants it again, and gets a new launch."""
        retirement, book.retiring = book.retiring, None
        book.instance.request_stop(retirement.why if retirement else "")
        self._pump()

    async def _cut(self, book: Book, retirement: Retirement, seconds: float) -> None:
        await anyio.sleep(seconds)
        if book.retiring is retirement:
            self.end(book)
