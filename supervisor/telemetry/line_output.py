"""The last step of a log line: whole, at once, and never an error or a wait for the one who logs."""

from __future__ import annotations

import contextlib
import os
import select
import stat
from collections.abc import Callable
from typing import TextIO

# So much goes into a pipe that is writable at all without waiting (PIPE_BUF of Linux).
_PIECE_BYTES = 4096
# For the rest of a line that was begun: whoever reads is reading just now.
_REST_MILLISECONDS = 50


class LineOutput:
    """Lines to a stream.

    A pipe that nobody empties, or a terminal that is held, would stop the whole daemon: lines that would have to wait
    there are dropped and counted, and the count is the first thing said when it goes on.

    Attributes:
        dropped: lines that are not there, and of which nothing was said yet.
    """

    def __init__(self, stream: TextIO, note: Callable[[int], str]) -> None:
        self.dropped = 0
        self._stream = stream
        self._note = note
        self._torn = False
        self._fd = _waiting_fd(stream)
        self._poll = None
        if self._fd is not None:
            self._poll = select.poll()
            self._poll.register(self._fd, select.POLLOUT)

    def msg(self, line: str) -> None:
        """Write one line; where that fails it is gone."""
        with contextlib.suppress(OSError, ValueError):  # ValueError: the stream is closed
            if self._fd is None:
                self._stream.write(line + "\n")
                self._stream.flush()
            elif not self._told_of_dropped() or not self._send(line):
                self.dropped += 1

    log = debug = info = warning = error = critical = exception = msg

    def _told_of_dropped(self) -> bool:
        if not self.dropped:
            return True
        if not self._send(self._note(self.dropped)):
            return False
        self.dropped = 0
        return True

    def _send(self, line: str) -> bool:
        """False: not written, or not whole."""
        assert self._fd is not None
        assert self._poll is not None
        data = (("\n" if self._torn else "") + line + "\n").encode(errors="replace")
        sent = 0
        while sent < len(data):
            if not self._poll.poll(_REST_MILLISECONDS if sent else 0):
                self._torn = self._torn or sent > 0
                return False
            sent += os.write(self._fd, data[sent : sent + _PIECE_BYTES])
        self._torn = False
        return True


def _waiting_fd(stream: TextIO) -> int | None:
    """Of what a write may have to wait for; None: of files, which take everything."""
    try:
        fd = stream.fileno()
        mode = os.fstat(fd).st_mode
    except (OSError, ValueError):  # a stream that is none of the system's
        return None
    if os.name != "posix" or stat.S_ISREG(mode):
        return None
    stream.flush()
    return fd
