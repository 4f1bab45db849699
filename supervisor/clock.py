"""Time, as a constructor argument, so that tests can turn it by hand."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Two readings of time."""

    def monotonic(self) -> float:
        """Seconds since some moment; never jumps."""
        ...

    def wall(self) -> float:
        """Seconds since 1970, as people read it; may jump."""
        ...


class SystemClock:
    """The machine's own clocks."""

    def monotonic(self) -> float:
        """Seconds since some moment; never jumps."""
        return time.monotonic()

    def wall(self) -> float:
        """Seconds since 1970, as people read it; may jump."""
        return time.time()
