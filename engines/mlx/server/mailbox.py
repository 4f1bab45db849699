"""Where the events of one request wait for its handler; lives on the event loop alone."""

from __future__ import annotations

import asyncio
from collections import deque

from engines.mlx.server.work import Event


class Mailbox:
    """Events of one request's answers, in order, each with the number of its choice.

    Attributes:
        paused: ids of the work that was told to wait until these are read.
    """

    __slots__ = ("_items", "_waiter", "paused")

    def __init__(self) -> None:
        self.paused: tuple[int, ...] = ()
        self._items: deque[tuple[int, Event]] = deque()
        self._waiter: asyncio.Future[None] | None = None

    def put(self, choice: int, event: Event) -> None:
        """Add an event; its reader wakes."""
        self._items.append((choice, event))
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def take(self) -> list[tuple[int, Event]]:
        """All that has come since the last call, at least one; waits for it."""
        while not self._items:
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        taken = list(self._items)
        self._items.clear()
        return taken

    def __len__(self) -> int:
        return len(self._items)
