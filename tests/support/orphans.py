"""Makes this process the parent of every orphan below it, so that none can hide from the tests.

Without it a grandchild whose parent died moves to pid 1 and no test could find it by asking for its own children.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
from pathlib import Path

_PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h
_STATE_FIELD = 0  # of /proc/PID/stat, after the command in parentheses


def adopt_orphans() -> None:
    """Become the subreaper; nothing on systems that have none."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


class OrphanReaper:
    """Reaps adopted orphans, as pid 1 would, and never a child that a test started itself.

    A process counts as adopted when it was seen below one of our children before it became ours.
    """

    def __init__(self) -> None:
        self._grandchildren: set[int] = set()

    def look(self) -> None:
        """Remember the grandchildren there are, and reap the dead among those that became ours."""
        mine = children_of(os.getpid())
        for pid in mine:
            if pid in self._grandchildren:
                if _is_dead(pid):
                    self._reap(pid)
            else:
                self._remember_below(pid)

    def _remember_below(self, pid: int) -> None:
        for child in children_of(pid):
            self._grandchildren.add(child)
            self._remember_below(child)

    def _reap(self, pid: int) -> None:
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)
        self._grandchildren.discard(pid)


def children_of(pid: int) -> list[int]:
    """Direct children by the kernel's own list: far cheaper than a walk over all processes. Empty where unknown."""
    found: list[int] = []
    with contextlib.suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            found += map(int, (task / "children").read_text(encoding="ascii").split())
    return found


def _is_dead(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[_STATE_FIELD] == "Z"
