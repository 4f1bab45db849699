"""What is done once an answer is out."""

from __future__ import annotations

import anyio

from supervisor.gateway.afterwards import Afterwards


async def test_calls_are_made_soon_in_order_and_not_at_once() -> None:
    """The one who hands them over goes on first."""
    made: list[int] = []
    done = anyio.Event()
    afterwards = Afterwards()
    afterwards.later(lambda: made.append(1))
    afterwards.later(lambda: made.append(2))
    afterwards.later(done.set)
    assert made == []
    with anyio.fail_after(5):
        await done.wait()
    assert made == [1, 2]


async def test_a_flush_makes_them_now_and_only_once() -> None:
    """At the end nothing is lost, and nothing is done twice."""
    made: list[int] = []
    afterwards = Afterwards()
    afterwards.later(lambda: made.append(1))
    afterwards.flush()
    afterwards.flush()
    last = anyio.Event()
    afterwards.later(last.set)
    with anyio.fail_after(5):
        await last.wait()
    assert made == [1]
