"""What a family of processes holds."""

from __future__ import annotations

import os
from pathlib import Path

from supervisor.processes.held_memory import Resident, family_of, read_resident


def write(root: Path, pid: int, anonymous: int | None, resident: int, children: str = "") -> None:
    """A process below ``root``, in KiB; a zombie has no figures."""
    folder = root / f"proc/{pid}/task/{pid}"
    folder.mkdir(parents=True)
    figures = "" if anonymous is None else f"VmRSS:\t{resident} kB\nRssAnon:\t{anonymous} kB\n"
    (root / f"proc/{pid}/status").write_text(f"Name:\tx\n{figures}Threads:\t1\n")
    (folder / "children").write_text(children)


def test_a_family_is_summed(tmp_path: Path) -> None:
    """The engine behind a shell counts; a zombie holds nothing."""
    write(tmp_path, 7, 1, 2, "8 9 ")
    write(tmp_path, 8, 100, 300)
    write(tmp_path, 9, None, 0)
    assert sorted(family_of(7, tmp_path)) == [7, 8, 9]
    assert read_resident(7, tmp_path) == Resident(101 * 1024, 302 * 1024)


def test_what_is_gone_or_dead_is_unknown(tmp_path: Path) -> None:
    """None, not 0."""
    write(tmp_path, 9, None, 0)
    assert read_resident(9, tmp_path) is None
    assert read_resident(10, tmp_path) is None


def test_our_own_can_be_read() -> None:
    """A living process has both."""
    own = read_resident(os.getpid())
    assert own is None or 0 < own.anonymous <= own.resident
