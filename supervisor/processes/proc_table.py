"""Every process that can be seen, with what tells one from another that has its number."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

# In the environment of every child; grandchildren inherit it. No secret: it only says whose they are.
MARK_VARIABLE = "ENGINEHOUSE_LAUNCH"
_MARK_PREFIX = f"{MARK_VARIABLE}=".encode()
_DEAD_STATES = frozenset("ZXx")
_ROOT = Path("/")
_ENVIRONMENT_STEP = 64 * 1024


@dataclass(frozen=True, slots=True)
class ProcessRow:
    """One process at one moment.

    Attributes:
        parent, group, session: their numbers.
        started: when the kernel made it, in ticks since boot (on macOS in milliseconds since 1970): with ``pid`` it
            names this process and no other of this boot.
        dead: a zombie whose last thread has ended: it holds nothing any more.
        mark: the launch that it belongs to, from its environment; None where it has none, or may not be read.
        name: the command's name, for messages.
    """

    pid: int
    parent: int
    group: int
    session: int
    started: int
    dead: bool = False
    mark: str | None = None
    name: str = ""


Table = tuple[ProcessRow, ...]


def read_table(root: Path = _ROOT) -> Table:
    """All processes. Reads some small files of each: milliseconds for hundreds, and longer where the kernel holds one.

    To be called in a thread: the environment of a process that hangs in the kernel may be locked.
    """
    if root == _ROOT and sys.platform != "linux":
        return tuple(_rows_by_psutil())
    rows = (read_row(pid, root) for pid in _pids(root))
    return tuple(row for row in rows if row is not None)


def read_row(pid: int, root: Path = _ROOT) -> ProcessRow | None:
    """One process; None when it is gone."""
    folder = f"{root}/proc/{pid}"
    try:
        with open(f"{folder}/stat", "rb") as stream:  # noqa: PTH123  see _environment
            text = stream.read().decode(errors="replace")
        # The name in brackets may hold spaces and brackets of its own.
        name = text[text.index("(") + 1 : text.rindex(")")]
        fields = text.rpartition(")")[2].split()
        # A leader whose threads go on is a zombie that still holds all its memory: num_threads says so.
        dead = fields[0] in _DEAD_STATES and int(fields[17]) <= 1
        parent, group, session, started = int(fields[1]), int(fields[2]), int(fields[3]), int(fields[19])
    except (OSError, ValueError, IndexError):
        return None
    return ProcessRow(pid, parent, group, session, started, dead, None if dead else _mark(f"{folder}/environ"), name)


def started_at(pid: int, root: Path = _ROOT) -> int | None:
    """``started`` of a process; None when it is gone."""
    if root == _ROOT and sys.platform != "linux":
        return next((row.started for row in _rows_by_psutil() if row.pid == pid), None)
    row = read_row(pid, root)
    return None if row is None else row.started


def pids_with_mark(mark: str) -> tuple[int, ...]:
    """Living processes that belong to a launch; of each process only the environment is read."""
    if sys.platform != "linux":
        return tuple(row.pid for row in _rows_by_psutil() if row.mark == mark)
    wanted = _MARK_PREFIX + mark.encode() + b"\0"
    # A zombie has no environment any more.
    return tuple(pid for pid in _pids(_ROOT) if wanted in _environment(f"/proc/{pid}/environ"))


def bears(row: ProcessRow, mark: str) -> bool:
    """Whether a process belongs to the launch ``mark``, or to one of the run ``mark``."""
    return row.mark is not None and (row.mark == mark or row.mark.startswith(f"{mark}."))


def _pids(root: Path) -> Iterator[int]:
    with contextlib.suppress(OSError), os.scandir(root / "proc") as entries:
        for entry in entries:
            if entry.name.isdecimal():
                yield int(entry.name)


def _mark(environ: str) -> str | None:
    _, found, rest = (b"\0" + _environment(environ)).partition(b"\0" + _MARK_PREFIX)
    return rest.partition(b"\0")[0].decode(errors="replace") if found else None


def _environment(path: str) -> bytes:
    """Empty where it may not be read. Plain calls: this is done for every process of the machine."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        parts = []
        while part := os.read(fd, _ENVIRONMENT_STEP):
            parts.append(part)
        return b"".join(parts)
    except OSError:
        return b""
    finally:
        os.close(fd)


def _rows_by_psutil() -> Iterator[ProcessRow]:
    import psutil  # noqa: PLC0415  not needed where there is a /proc

    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError), process.oneshot():
            dead = process.status() in {psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD}
            mark = None
            with contextlib.suppress(psutil.Error, OSError):  # of another user
                mark = None if dead else process.environ().get(MARK_VARIABLE)
            yield ProcessRow(
                pid=process.pid,
                parent=process.ppid(),
                group=os.getpgid(process.pid),
                session=os.getsid(process.pid),
                started=int(process.create_time() * 1000),
                dead=dead,
                mark=mark,
                name=process.name(),
            )
