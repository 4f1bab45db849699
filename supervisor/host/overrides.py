"""What the config says of the machine, over what was read of it. Pure."""

from __future__ import annotations

from dataclasses import replace

from supervisor.host.cpu import CpuBudget
from supervisor.host.snapshot import HostSnapshot


def with_overrides(snapshot: HostSnapshot, cpus: float | None, reserve_cpus: float) -> HostSnapshot:
    """The snapshot with ``host.cpus`` in place of the probe, less ``host.reserve.cpus``; never under one thread."""
    return replace(snapshot, cpu=override_cpu(snapshot.cpu, cpus, reserve_cpus))


def override_cpu(cpu: CpuBudget, cpus: float | None, reserve_cpus: float) -> CpuBudget:
    """The same of the CPU budget alone."""
    if cpus is not None:
        cpu = replace(
            cpu, quota=cpus, effective=cpus, threads=max(1, int(cpus)), source="host.cpus", why=f"set to {cpus:g}"
        )
    if reserve_cpus > 0 and cpu.effective is not None:
        left = max(1.0, cpu.effective - reserve_cpus)
        why = f"{cpu.why or cpu.effective}, less {reserve_cpus:g} of host.reserve"
        cpu = replace(cpu, quota=left, effective=left, threads=max(1, int(left)), why=why)
    return cpu
