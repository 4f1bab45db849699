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
