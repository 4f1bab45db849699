"""Who waits, where, and for how long yet, as ``/admin/v1/status`` shows it. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from supervisor.broker.books import Book


def queue_rows(books: Iterable[Book], now: float) -> list[dict[str, Any]]:
    """Waiting tickets by model, in the order of arrival."""
    rows, books = [], list(books)
    leaving = max((book.instance.saving for book in books if book.leaving), default=0.0)
    for book in books:
        for position, waiter in enumerate(book.queue, 1):
            wait = expected_wait(book, position, leaving)
            rows.append(
                {**waiter.row(position, now), "expected_wait_seconds": None if wait is None else round(wait, 1)}
            )
    return rows


def expected_wait(book: Book, position: int, leaving: float = 0.0) -> float | None:
    """Seconds until a place in a model's queue is likely to be served; None: nothing is known of its load.

    Service of those before it over the slots, with half of one that runs; a load's seconds, as the last one took, where
    the engine is not ready. What it waits for beside that (engines in use that must end first) nobody can tell.

    Args:
        book: the model's.
        position: in its queue, from 1.
        leaving: seconds until the conversations of engines that are to end are saved; its load begins after them.
    """
    instance = book.instance
    slots = max(1, instance.slots)
    # A slot is one part of the instance: ``service`` counts whole ones.
    seconds = book.service * slots
    if instance.accepting:
        rounds = (position - 1) // slots
        running = 0.5 * seconds if len(book.leases) >= slots else 0.0
        return running + rounds * seconds
    load = instance.load_seconds
    if load <= 0:
        return None
    saved = 0.0 if instance.is_starting else leaving
    return saved + load + ((position - 1) // slots) * seconds
