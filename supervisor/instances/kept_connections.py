"""Connections to an engine that have carried a whole answer, and may carry the next."""

from __future__ import annotations

import asyncio
from typing import Protocol

# A connection that nobody uses holds a thread of llama-server's, which wakes a hundred times a second to look at it:
# short of what anybody calls idle, and long enough for who asks one thing after the other.
_KEPT_SECONDS = 0.25


class Kept(Protocol):
    """An open connection without a request."""

    def close(self) -> None:
        """End it."""
        ...


class KeptConnections:
    """For one launch; every request takes one before it opens another, so that there are never more than its slots."""

    def __init__(self) -> None:
        self._idle: list[Kept] = []
        self._older = 0
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False

    def take(self) -> Kept | None:
        """The one used last, no longer kept here; None: open one."""
        if not self._idle:
            return None
        taken = self._idle.pop()
        self._older = min(self._older, len(self._idle))
        return taken

    def keep(self, connection: Kept) -> None:
        """For whoever comes soon; it is closed after ``_KEPT_SECONDS`` to twice that."""
        if self._closed:
            connection.close()
            return
        self._idle.append(connection)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_KEPT_SECONDS, self._sweep)

    def forget(self, connection: Kept) -> None:
        """The engine has closed it."""
        if connection in self._idle:
            place = self._idle.index(connection)
            del self._idle[place]
            self._older -= place < self._older

    def close(self) -> None:
        """End all, and keep none from now on: llama-server's end waits up to five seconds for an idle one."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        idle, self._idle, self._older = self._idle, [], 0
        for connection in idle:
            connection.close()

    def _sweep(self) -> None:
        """Those that nobody took since the last look go; the last used are taken first, so the rest is old."""
        self._timer = None
        old, self._idle = self._idle[: self._older], self._idle[self._older :]
        self._older = len(self._idle)
        for connection in old:
            connection.close()
        if self._idle:
            self._timer = asyncio.get_running_loop().call_later(_KEPT_SECONDS, self._sweep)
