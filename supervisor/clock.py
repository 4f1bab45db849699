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


def seconds_asleep() -> float:
    """Seconds that this machine has been suspended since it booted; 0 where the system can't tell."""
    boot = getattr(time, "CLOCK_BOOTTIME", None)
    return 0.0 if boot is None else max(0.0, time.clock_gettime(boot) - time.monotonic())
