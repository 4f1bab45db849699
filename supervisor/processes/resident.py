"""What process groups hold of the machine's memory: their own pages, not the files that they map."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path

_ROOT = Path("/")
_OWN_PAGES = re.compile(r"^Rss(?:Anon|Shmem):\s*([0-9]{1,16}) kB$", re.MULTILINE)
_GROUP, _SESSION = 2, 3  # fields of /proc/PID/stat after the name: state, parent, group, session


def resident_bytes(leaders: Iterable[int], root: Path = _ROOT) -> Mapping[int, int]:
    """RssAnon + RssShmem, in bytes, of each group or session that one of ``leaders`` began.

    Those that are gone are left out, and all are where there is no ``/proc``. Walks all processes: some milliseconds,
    so not for the event loop. Mapped files are not counted: their pages come and go as the machine likes.
    """
    wanted = frozenset(leaders)
    held: dict[int, int] = {}
    if not wanted:
        return held
    try:
        folders = [folder for folder in (root / "proc").iterdir() if folder.name.isdigit()]
    except OSError:
        return held
    for folder in folders:
        leader = _leader(folder, wanted)
        size = None if leader is None else _own_pages(folder)
        if leader is not None and size is not None:
            held[leader] = held.get(leader, 0) + size
    return held


def _leader(folder: Path, wanted: frozenset[int]) -> int | None:
    try:
        # The name in brackets may hold spaces and brackets of its own.
        fields = (folder / "stat").read_text(errors="replace").rpartition(")")[2].split()
        found = {int(fields[_GROUP]), int(fields[_SESSION])} & wanted
    except (OSError, ValueError, IndexError):
        return None
    return next(iter(found), None)


def _own_pages(folder: Path) -> int | None:
    """None for one that has ended meanwhile, and for a zombie, which holds nothing and says nothing."""
    try:
        numbers = _OWN_PAGES.findall((folder / "status").read_text(errors="replace"))
    except OSError:
        return None
    return 1024 * sum(map(int, numbers)) if numbers else None
