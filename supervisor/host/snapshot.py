"""What this machine has and what this process may use of it, at one moment."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from supervisor.host.amd import read_amd
from supervisor.host.apple import read_sysctl, wired_bound
from supervisor.host.cards import CardsReading
from supervisor.host.cgroup import find_cgroup
from supervisor.host.cpu import CpuBudget, read_cpu
from supervisor.host.files import HostFiles
from supervisor.host.memory import MemoryBound, MemoryBudget, read_memory
from supervisor.host.nvidia import NvidiaWatch


@dataclass(frozen=True, slots=True)
class HostSnapshot:
    """One reading of the machine.

    Attributes:
        cards: what the system, not a build, knows of GPUs.
        unified: what a GPU that shares the host's memory may take of it; None: there is none, or no such bound.
    """

    cpu: CpuBudget
    memory: MemoryBudget
    cards: CardsReading = field(default_factory=CardsReading)
    unified: MemoryBound | None = None


def take_snapshot(root: Path = Path("/"), nvidia: NvidiaWatch | None = None) -> HostSnapshot:
    """Read the machine below ``root``, which stands for ``/``; never raises, what is not known is None.

    With another root than ``/``, nothing of the real machine is read. ``nvidia`` answers within its deadline.
    """
    files = HostFiles(root)
    cgroup = find_cgroup(files)
    asked = nvidia.read() if nvidia is not None and files.live else CardsReading()
    return HostSnapshot(
        cpu=read_cpu(files, cgroup),
        memory=read_memory(files, cgroup),
        cards=CardsReading((*asked.cards, *read_amd(files)), asked.problem, asked.answered),
        unified=wired_bound(read_sysctl) if files.live else None,
    )
