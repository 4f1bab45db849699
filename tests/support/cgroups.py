"""A real control group for children: a real CPU quota and a real memory limit, version 1 or 2, where one can be made.

Needs root and a writable hierarchy, or a delegated one; elsewhere `NoCgroupError` says what is missing.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

_PERIOD = 100_000  # microseconds, the kernel's own default
_POLL_SECONDS = 0.02
_LONGEST_END = 5.0
_MOUNT = re.compile(r"^\S+ \S+ \S+ (\S+) (\S+) (?:.* )?- (cgroup2?) \S+ (\S+)$", re.MULTILINE)


class NoCgroupError(Exception):
    """No control group can be made here; the message says why."""


@dataclass(frozen=True, slots=True)
class Cgroup:
    """A group that was made for a test or a bench.

    Attributes:
        cpu: the folder that holds the CPU quota.
        memory: the folder that holds the memory limit.
        unified: version 2.
    """

    cpu: Path
    memory: Path
    unified: bool

    def wrap(self, argv: Sequence[str]) -> list[str]:
        """The command that runs ``argv`` inside: a shell that moves itself in, and then becomes it."""
        moves = "".join(f"echo $$ > '{folder}/cgroup.procs' && " for folder in self._folders)
        return ["/bin/sh", "-c", f'{moves}exec "$@"', "sh", *argv]

    def set_cpus(self, cpus: float | None) -> None:
        """The quota from now on, in CPUs; None: no quota."""
        if self.unified:
            quota = "max" if cpus is None else str(round(cpus * _PERIOD))
            (self.cpu / "cpu.max").write_text(f"{quota} {_PERIOD}")
            return
        (self.cpu / "cpu.cfs_period_us").write_text(str(_PERIOD))
        (self.cpu / "cpu.cfs_quota_us").write_text("-1" if cpus is None else str(round(cpus * _PERIOD)))

    def set_memory(self, size: int) -> None:
        """The memory limit from now on, in bytes."""
        (self.memory / ("memory.max" if self.unified else "memory.limit_in_bytes")).write_text(str(size))

    def go_first(self) -> None:
        """Get the CPUs before the machine's other work does, as far as the quota goes."""
        if self.unified:
            (self.cpu / "cpu.weight").write_text("10000")
        else:
            (self.cpu / "cpu.shares").write_text("262144")

    def periods(self) -> tuple[int, int]:
        """Periods in which something ran, and those in which it was throttled, since the group was made."""
        stat = dict(line.split() for line in (self.cpu / "cpu.stat").read_text().splitlines())
        return int(stat["nr_periods"]), int(stat["nr_throttled"])

    @property
    def _folders(self) -> tuple[Path, ...]:
        return tuple(dict.fromkeys((self.cpu, self.memory)))


@contextmanager
def made_cgroup(cpus: float | None = None, memory: int | None = None) -> Iterator[Cgroup]:
    """A fresh group with these limits; removed at the end, when its processes have ended.

    Raises:
        NoCgroupError: it can't be made here.
    """
    name = f"enginehouse-{os.getpid()}-{time.monotonic_ns()}"
    with contextlib.ExitStack() as stack:
        try:
            group = _make(name, stack)
            group.set_cpus(cpus)
            if memory is not None:
                group.set_memory(memory)
        except (OSError, KeyError) as error:
            raise NoCgroupError(f"no control group can be made here: {error}") from error
        yield group


def _make(name: str, stack: contextlib.ExitStack) -> Cgroup:
    own = _own_paths()
    mounts = {
        controller: (Path(point), root)
        for root, point, kind, options in _MOUNT.findall(Path("/proc/self/mountinfo").read_text())
        for controller in ([""] if kind == "cgroup2" else options.split(","))
    }
    if "cpu" in mounts and "memory" in mounts:
        folders = [
            _own_folder(*mounts[controller], own.get(controller, "/")) / name for controller in ("cpu", "memory")
        ]
        for folder in folders:
            stack.callback(_remove, folder)
            folder.mkdir(exist_ok=True)  # both controllers may lie in one hierarchy
        return Cgroup(cpu=folders[0], memory=folders[1], unified=False)
    if "" not in mounts:
        raise NoCgroupError("no cgroup file system is mounted")
    top, root = mounts[""]
    # Version 2 takes a group with processes for a leaf: above it there may be room.
    place = _own_folder(top, root, own.get("", "/"))
    parents = [place, *(parent for parent in place.parents if parent == top or top in parent.parents)]
    problem = ""
    for parent in parents:
        with contextlib.suppress(OSError):
            (parent / "cgroup.subtree_control").write_text("+cpu +memory")
        enabled = set((parent / "cgroup.subtree_control").read_text().split())
        if {"cpu", "memory"} <= enabled and os.access(parent, os.W_OK):
            folder = parent / name
            stack.callback(_remove, folder)
            folder.mkdir()
            return Cgroup(cpu=folder, memory=folder, unified=True)
        problem = f"{parent} gives its children {' '.join(sorted(enabled)) or 'no controller'}"
    raise NoCgroupError(f"no control group with cpu and memory can be made here: {problem}")


def _own_paths() -> dict[str, str]:
    paths: dict[str, str] = {}
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        paths.update(dict.fromkeys(controllers.split(","), path))
    return paths


def _own_folder(point: Path, root: str, path: str) -> Path:
    """Where this process's group is seen; the mount point where it is not."""
    below = path.removeprefix(root.rstrip("/")).strip("/")
    return point / below if (point / below).is_dir() else point


def _remove(folder: Path) -> None:
    """Once its last process has ended, which the kernel tells a moment late."""
    deadline = time.monotonic() + _LONGEST_END
    while folder.exists():
        try:
            folder.rmdir()
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(_POLL_SECONDS)
