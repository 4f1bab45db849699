from __future__ import annotations

import anyio
import pytest

from supervisor.instances.kept_connections import KeptConnections


class Open:
    """A connection that tells when it is closed."""

    def __init__(self) -> None:
        self.closed = anyio.Event()

    def close(self) -> None:
        """Nobody needs it."""
        self.closed.set()


async def test_the_last_used_is_taken_first() -> None:
    """So that those beyond what is needed grow old."""
    kept = KeptConnections()
    first, second = Open(), Open()
    assert kept.take() is None
    kept.keep(first)
    kept.keep(second)
    assert [kept.take(), kept.take(), kept.take()] == [second, first, None]
    kept.close()


async def test_what_nobody_takes_is_closed() -> None:
    """Prevents: an engine's thread was held for as long as the daemon ran."""
    kept = KeptConnections()
    unused, used = Open(), Open()
    kept.keep(unused)
    kept.keep(used)
    with anyio.fail_after(10):
        while not unused.closed.is_set():
            taken = kept.take()
            assert taken is used
            kept.keep(taken)
            await anyio.lowlevel.checkpoint()
        assert not used.closed.is_set()
        await used.closed.wait()
    assert kept.take() is None


@pytest.mark.parametrize("taken", [0, 1])
async def test_one_that_the_engine_has_closed_is_not_given_out(taken: int) -> None:
    """Whether it is there or in use just now; others stay."""
    kept = KeptConnections()
    stays, leaves = Open(), Open()
    kept.keep(stays)
    kept.keep(leaves)
    if taken:
        assert kept.take() is leaves
    kept.forget(leaves)
    assert [kept.take(), kept.take()] == [stays, None]
    kept.close()


async def test_before_the_engines_end_all_are_closed() -> None:
    """And none is kept any more: llama-server's end waits for those that are idle."""
    kept = KeptConnections()
    early, late = Open(), Open()
    kept.keep(early)
    kept.close()
    kept.keep(late)
    assert early.closed.is_set()
    assert late.closed.is_set()
    assert kept.take() is None
