"""Log lines in llama-server's form: ``0.00.337.727 I srv  llama_server: model loaded`` on stderr."""

from __future__ import annotations

import os
import time


class Log:
    """Writes whole lines at once, so that lines of several writers never mix."""

    def __init__(self) -> None:
        self._start = time.monotonic()

    def say(self, function: str, message: str, *, level: str = "I", subsystem: str = "srv") -> None:
        """One line with the time since the start, as minutes, seconds, milliseconds and microseconds."""
        micros = int((time.monotonic() - self._start) * 1_000_000)
        minutes, micros = divmod(micros, 60_000_000)
        seconds, micros = divmod(micros, 1_000_000)
        stamp = f"{minutes}.{seconds:02d}.{micros // 1000:03d}.{micros % 1000:03d}"
        self.raw(f"{stamp} {level} {subsystem:<4} {function[:12]:>12}: {message}")

    def plain(self, message: str, *, level: str = "E") -> None:
        """A line of the library below the server, which has no subsystem."""
        self.raw(f"0.00.000.000 {level} {message}")

    def raw(self, line: str) -> None:
        """A line as it is; a reader that left is no reason to die."""
        data = (line + "\n").encode()
        while data:
            try:
                data = data[os.write(2, data) :]
            except OSError:
                return
