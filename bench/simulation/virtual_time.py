"""An event loop whose time jumps to the next timer instead of waiting for it: hours in seconds, the same every run."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Awaitable, Callable
from typing import Any

import anyio


class NothingLeftError(AssertionError):
    """Everybody waits, and no timer is set: what was waited for would never come."""


class _JumpingSelector(selectors.SelectSelector):
    """Never blocks: where a real one would, it moves the time on.

    Attributes:
        now: seconds since the loop began.
        each_turn: called before the loop looks for what comes next.
    """

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.each_turn: Callable[[], None] = lambda: None

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """What is ready now, which in a simulation is nothing."""
        self.each_turn()
        if timeout is None:
            raise NothingLeftError("no timer is set")
        self.now += max(0.0, timeout)
        return []


class VirtualLoop(asyncio.SelectorEventLoop):
    """See the module; ``each_turn`` of ``turns`` is called once for each turn of the loop."""

    def __init__(self) -> None:
        self.turns = _JumpingSelector()
        super().__init__(self.turns)

    def time(self) -> float:
        """Simulated seconds."""
        return self.turns.now


class VirtualClock:
    """Implements ``supervisor.clock.Clock`` by the loop's time."""

    def __init__(self, loop: VirtualLoop) -> None:
        self._loop = loop

    def monotonic(self) -> float:
        """Seconds since the loop began."""
        return self._loop.turns.now

    def wall(self) -> float:
        """The same, from a fixed day on."""
        return 1_700_000_000.0 + self._loop.turns.now


def run_virtually(main: Callable[[VirtualLoop], Awaitable[Any]]) -> None:
    """Run ``main`` to its end in a loop of its own."""

    async def inside() -> None:
        loop = asyncio.get_running_loop()
        if not isinstance(loop, VirtualLoop):
            raise TypeError("the loop is not virtual")
        await main(loop)

    anyio.run(inside, backend="asyncio", backend_options={"loop_factory": VirtualLoop})
