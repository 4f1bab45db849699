"""What a process and those that it started hold of the machine's memory."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_KIB = 1024
_ROOT = Path("/")
# A shell before an engine, a helper or two behind it: a family is small, and a fork bomb is not followed.
_LARGEST_FAMILY = 64


@dataclass(frozen=True, slots=True)
class Resident:
    """Bytes at one moment.

    Attributes:
        anonymous: what is theirs alone and can't be read again from a file: RssAnon.
        resident: all that is in memory for them, mapped files included: VmRSS.
    """

    anonymous: int
    resident: int


def family_of(pid: int, root: Path = _ROOT) -> Iterator[int]:
    """A process and its descendants, from the kernel's own lists; only itself where there are none.

    Children of another thread than a process's first are not seen: engines start none there.
    """
    waiting = [pid]
    seen = 0
    while waiting and seen < _LARGEST_FAMILY:
        current = waiting.pop()
        seen += 1
        yield current
        with contextlib.suppress(OSError, ValueError):
            waiting += map(int, (root / f"proc/{current}/task/{current}/children").read_text().split())


def read_resident(pid: int, root: Path = _ROOT) -> Resident | None:
    """Of a process and its descendants together; None when it is gone, a zombie, or where there is no ``/proc``."""
    parts = [part for part in (_of_one(member, root) for member in family_of(pid, root)) if part is not None]
    if not parts:
        return None
    return Resident(sum(part.anonymous for part in parts), sum(part.resident for part in parts))


def _of_one(pid: int, root: Path) -> Resident | None:
    try:
        text = (root / f"proc/{pid}/status").read_text(errors="replace")
        lines = dict(line.split(":", 1) for line in text.splitlines() if line.startswith(("VmRSS:", "RssAnon:")))
        return Resident(*(int(lines[name].split()[0]) * _KIB for name in ("RssAnon", "VmRSS")))
    except (OSError, ValueError, KeyError, IndexError):
        return None
