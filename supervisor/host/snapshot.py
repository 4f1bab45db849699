"""What this machine has and what this process may use of it, at one moment."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from supervisor.host.cgroup import find_cgroup
from supervisor.host.cpu import CpuBudget, read_cpu
from supervisor.host.files import HostFiles
from supervisor.host.memory import MemoryBudget, read_memory


@dataclass(frozen=True, slots=True)
class HostSnapshot:
    """One reading of the machine."""

    cpu: CpuBudget
    memory: MemoryBudget


def take_snapshot(root: Path = Path("/")) -> HostSnapshot:
    """Read the machine below ``root``, which stands for ``/``; never raises, what is not known is None.

    With another root than ``/``, nothing of the real machine is read.
    """
    files = HostFiles(root)
    cgroup = find_cgroup(files)
    return HostSnapshot(cpu=read_cpu(files, cgroup), memory=read_memory(files, cgroup))
