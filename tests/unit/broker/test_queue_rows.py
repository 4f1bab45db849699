"""What is said of waiting tickets."""

from __future__ import annotations

from typing import cast

import pytest

from supervisor.broker.books import Book, Waiter
from supervisor.broker.lease import LeaseRequest
from supervisor.broker.queue_rows import queue_rows
from supervisor.broker.tickets import Ticket
from tests.fakes.instances import FakeInstance, model_entry


def _book(waiting: int, *, ready: bool, load_seconds: float = 0.0) -> Book:
    instance = FakeInstance("m", lambda _instance: None)
    instance.is_ready = ready
    instance.load_seconds = load_seconds
    book = Book(instance, 60.0, 0.0, service=2.0)
    for number in range(waiting):
        ticket = Ticket(number, f"r{number}", "a", "m", "interactive", 10.0)
        book.queue.append(Waiter(ticket, LeaseRequest(f"r{number}", "a", model_entry())))
    return book


@pytest.mark.parametrize(
    ("ready", "load_seconds", "expected"),
    [(True, 0.0, [0.0, 0.0, 4.0]), (False, 30.0, [30.0, 30.0, 34.0]), (False, 0.0, [None, None, None])],
)
def test_position_and_expected_wait(ready: bool, load_seconds: float, expected: list[float | None]) -> None:
    """Service of who is before it over two slots, and the load where there is one; unknown is not 0."""
    rows = queue_rows([_book(3, ready=ready, load_seconds=load_seconds)], 12.0)
    assert [row["position"] for row in rows] == [1, 2, 3]
    assert [row["expected_wait_seconds"] for row in rows] == expected
    assert rows[0]["waited_seconds"] == 2.0


def test_what_engines_that_go_have_to_save_is_part_of_the_wait() -> None:
    """Its load begins after it; one that stays adds nothing, nor is anything added once the load has begun."""
    waiting, going, staying = _book(1, ready=False, load_seconds=30.0), _book(0, ready=True), _book(0, ready=True)
    for book, seconds in ((going, 2.0), (staying, 3.0)):
        cast("FakeInstance", book.instance).saving = seconds
    going.instance.drain()
    assert _wait([waiting, going, staying]) == 32.0
    cast("FakeInstance", waiting.instance).is_starting = True
    assert _wait([waiting, going, staying]) == 30.0


def _wait(books: list[Book]) -> float | None:
    (row,) = queue_rows(books, 12.0)
    return cast("float | None", row["expected_wait_seconds"])
