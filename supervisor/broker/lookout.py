"""Looks again when time alone changes what is to be done: keep-alives that end, and waits that have lasted."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import anyio

from supervisor.broker.books import Book
from supervisor.broker.keep_alive import FOREVER, IdleInstance, decide_idle
from supervisor.clock import Clock
from supervisor.units import format_duration


class Lookout:
    """Sleeps until the next deadline; ``pump`` runs admission."""

    def __init__(self, books: Mapping[str, Book], clock: Clock, pump: Callable[[], None]) -> None:
        self._books = books
        self._clock = clock
        self._pump = pump
        self._changed = anyio.Event()
        self._next_idle = self._next_pump = FOREVER

    def touch(self, book: Book) -> None:
        """The book's use has just changed: its idle time starts anew."""
        book.idle_since = self._clock.monotonic()
        # A later deadline is seen when the planned look finds nobody due; only an earlier one needs a look now.
        if book.idle_since + book.keep_alive < min(self._next_idle, self._next_pump):
            self._changed.set()

    def pump_at(self, at: float | None) -> None:
        """Admission is to run again at this time, in monotonic seconds; None: not by time alone."""
        self._next_pump = FOREVER if at is None else at
        if self._next_pump < self._next_idle:
            self._changed.set()

    async def run(self) -> None:
        """Look until cancelled."""
        while True:
            self._changed = anyio.Event()
            now = self._clock.monotonic()
            self._stop_the_idle(now)
            if self._next_pump <= now:
                self._next_pump = FOREVER
                self._pump()
            look = min(self._next_idle, self._next_pump)
            with anyio.move_on_after(None if look == FOREVER else max(0.0, look - now)):
                await self._changed.wait()

    def _stop_the_idle(self, now: float) -> None:
        idle = [
            IdleInstance(model_id, book.idle_since, book.keep_alive)
            for model_id, book in self._books.items()
            if book.instance.accepting and book.idle
        ]
        decision = decide_idle(idle, now)
        self._next_idle = FOREVER if decision.next_look is None else decision.next_look
        for due in decision.stop:
            stayed = format_duration(now - due.since)
            self._books[due.model_id].instance.request_stop(f"idle for {stayed}, keep_alive is over")
