"""A child's output, read by the event loop itself: as it comes while it starts, in batches once it is at work."""

from __future__ import annotations

import asyncio
import fcntl
import os
import sys
from collections.abc import Callable
from typing import cast

import anyio

# An engine that serves writes some lines for each request, one by one. Read as they come, each would wake the
# supervisor in the middle of that request's way through it: measured, a quarter of its CPU.
_PACE_SECONDS = 0.05
# More than this in one piece is no chatter: the child would soon stand still on a full pipe.
_MUCH_BYTES = 16 * 1024
# What a child may write while nobody reads; Linux gives a pipe 64 KiB unless asked.
_PIPE_BYTES = 256 * 1024


class OutputPipe(asyncio.Protocol):
    """Hands on what comes out of one pipe, in order, from within the event loop.

    Nothing is kept here: what is not read yet stays in the kernel, so that memory does not
    grow with a flood.

    Attributes:
        ended: set when every writer has closed it.
    """

    def __init__(self) -> None:
        self.ended = anyio.Event()
        self._take: Callable[[bytes], None] = _drop
        self._read_end, self._write_end = os.pipe()
        self._transport: asyncio.ReadTransport | None = None
        self._timer: asyncio.Handle | None = None
        self._calm: Callable[[], bool] = _never
        _widen(self._read_end)

    @property
    def write_end(self) -> int:
        """For the child; ``open`` closes ours."""
        return self._write_end

    async def open(self, take: Callable[[bytes], None]) -> None:
        """Begin to read, once the child has its end.

        Args:
            take: called with what came, in order; must not raise.
        """
        self._take = take
        self._close_write_end()
        loop = asyncio.get_running_loop()
        reader = os.fdopen(self._read_end, "rb", buffering=0, closefd=not _closes_numbers(loop))
        self._read_end = -1
        await loop.connect_read_pipe(lambda: self, reader)

    def close(self) -> None:
        """Read no more; safe at any time and any number of times."""
        self._close_write_end()
        if self._read_end >= 0:
            os.close(self._read_end)
            self._read_end = -1
        if self._timer is not None:
            self._timer.cancel()
        if self._transport is not None:
            self._transport.close()

    def calm_down(self, calm: Callable[[], bool]) -> None:
        """From now on, while ``calm`` says so, a little output is left for a moment, so that more is taken at once."""
        self._calm = calm

    def hurry(self) -> None:
        """Take what there is, without further pauses: the child has ended."""
        self._calm = _never
        if self._timer is not None:
            self._timer.cancel()
            self._resume()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See asyncio."""
        self._transport = cast("asyncio.ReadTransport", transport)  # uvloop's is none by its class

    def data_received(self, data: bytes) -> None:
        """See asyncio; one piece for each turn of the loop, however much there is."""
        assert self._transport is not None
        self._transport.pause_reading()
        loop = asyncio.get_running_loop()
        if len(data) < _MUCH_BYTES and self._calm():
            self._timer = loop.call_later(_PACE_SECONDS, self._resume)
        else:
            self._timer = loop.call_soon(self._resume)
        self._take(data)

    def connection_lost(self, _error: Exception | None) -> None:
        """See asyncio."""
        if self._timer is not None:
            self._timer.cancel()
        self.ended.set()

    def _resume(self) -> None:
        self._timer = None
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    def _close_write_end(self) -> None:
        if self._write_end >= 0:
            os.close(self._write_end)
            self._write_end = -1


def _closes_numbers(loop: asyncio.AbstractEventLoop) -> bool:
    """Whether a loop closes a pipe by its number after it has closed the file object.

    uvloop does both: what another thread has opened in between, under the same number, would be closed with it.
    """
    return type(loop).__module__.partition(".")[0] == "uvloop"


def _never() -> bool:
    return False


def _drop(_data: bytes) -> None:
    return


def _widen(pipe: int) -> None:
    if sys.platform == "linux":
        try:
            fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
        except OSError:  # this user has all the pipe memory that he may have
            return
