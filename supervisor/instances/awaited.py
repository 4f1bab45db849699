"""Waiting for a state that may last only for a moment."""

from __future__ import annotations

import anyio

from supervisor.instances.lifecycle import InstanceState


class Awaited:
    """Someone who waits for a state; remembers the first one that was reached."""

    def __init__(self, states: tuple[InstanceState, ...]) -> None:
        self.event = anyio.Event()
        self.reached: InstanceState | None = None
        self._states = states

    def look(self, state: InstanceState) -> None:
        """Note the state that was just reached."""
        if self.reached is None and state in self._states:
            self.reached = state
            self.event.set()


class Waiters:
    """Everyone who waits for a state of one instance."""

    def __init__(self) -> None:
        self._waiting: list[Awaited] = []

    def look(self, state: InstanceState) -> None:
        """It is in this state now."""
        for awaited in self._waiting:
            awaited.look(state)

    async def wait(self, states: tuple[InstanceState, ...], now: InstanceState | None = None) -> InstanceState:
        """Which of ``states`` it comes into first; ``now`` counts, if it is one of them."""
        awaited = Awaited(states)
        if now is not None:
            awaited.look(now)
        self._waiting.append(awaited)
        try:
            await awaited.event.wait()
        finally:
            self._waiting.remove(awaited)
        if awaited.reached is None:
            raise AssertionError("a state was reached")
        return awaited.reached
