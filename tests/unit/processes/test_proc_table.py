"""Reading the process table, recorded and live."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from supervisor.processes.proc_table import MARK_VARIABLE, pids_with_mark, read_row, read_table, started_at

_STAT = "{pid} (a) b (c) {state} 1 7 6 0 -1 4194560 300 0 20 0 150 50 0 0 20 0 {threads} 0 99 0 0\n"
linux = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


def write(root: Path, pid: int, state: str = "S", threads: int = 1, environ: bytes = b"") -> None:
    """A process below ``root/proc``."""
    folder = root / "proc" / str(pid)
    folder.mkdir(parents=True)
    (folder / "stat").write_text(_STAT.format(pid=pid, state=state, threads=threads))
    (folder / "environ").write_bytes(environ)


def test_a_row_says_what_the_kernel_says(tmp_path: Path) -> None:
    """Also behind a name with brackets and blanks; what is no number is no process."""
    write(tmp_path, 7, environ=f"A=1\0{MARK_VARIABLE}=abc.def\0B=2\0".encode())
    (tmp_path / "proc/self").mkdir()
    [row] = read_table(tmp_path)
    assert (row.pid, row.parent, row.group, row.session, row.started) == (7, 1, 7, 6, 99)
    assert (row.name, row.mark, row.dead) == ("a) b (c", "abc.def", False)


def test_a_zombie_is_dead_unless_its_threads_go_on(tmp_path: Path) -> None:
    """Prevents memory from counting as free while threads of a dead leader hold it."""
    write(tmp_path, 7, "Z")
    write(tmp_path, 8, "Z", threads=3)
    assert {row.pid: row.dead for row in read_table(tmp_path)} == {7: True, 8: False}


def test_nonsense_and_absence_are_none(tmp_path: Path) -> None:
    """A process may go while its files are read."""
    (tmp_path / "proc/9").mkdir(parents=True)
    (tmp_path / "proc/9/stat").write_text("9 (x")
    assert read_table(tmp_path) == ()
    assert read_row(10, tmp_path) is None
    assert read_table(tmp_path / "none") == ()


@linux
def test_a_living_process_is_found_by_its_mark() -> None:
    """Its own environment carries it; a start time makes sure."""
    mark = f"test-{os.getpid()}-0123456789"
    argv = [sys.executable, "-ISc", "input()"]
    with subprocess.Popen(argv, env={MARK_VARIABLE: mark}, stdin=subprocess.PIPE) as child:
        while child.pid not in pids_with_mark(mark):  # between fork and exec it still has ours
            assert child.poll() is None
        assert pids_with_mark("test") == ()
        assert started_at(child.pid) == next(row.started for row in read_table() if row.pid == child.pid)
        child.kill()
    assert started_at(child.pid) is None
