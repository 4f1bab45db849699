"""What is said of waiting tickets."""

from __future__ import annotations

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
