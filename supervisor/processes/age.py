"""How long ago this process was started."""

from __future__ import annotations

import os
import time
from pathlib import Path


def seconds_since_exec(proc: Path = Path("/proc")) -> float | None:
    """Seconds since the kernel made this process, to a hundredth; None where there is no ``/proc``."""
    try:
        # Field 22, starttime, in ticks since boot; the command's name in brackets may hold spaces.
        fields = (proc / "self" / "stat").read_text(errors="replace").rpartition(")")[2].split()
        started = int(fields[19]) / os.sysconf("SC_CLK_TCK")
        return round(time.clock_gettime(time.CLOCK_BOOTTIME) - started, 3)
    except (OSError, ValueError, IndexError, AttributeError):
        return None
