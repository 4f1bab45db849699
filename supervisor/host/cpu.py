"""How many CPUs this process may really use: a container sees all of the host's."""

from __future__ import annotations

import math
import os
import re
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from fractions import Fraction

from supervisor.host.cgroup import CgroupFolders
from supervisor.host.files import HostFiles, parse_cpu_list, parse_integer, printable

ONLINE_FILE = "/sys/devices/system/cpu/online"
STATUS_FILE = "/proc/self/status"

_TOPOLOGY = "/sys/devices/system/cpu/cpu{cpu}/topology/{name}"
_SIBLING_FILES = ("core_cpus_list", "thread_siblings_list")  # the second is the name before Linux 5.3
_CPU_MAX = re.compile(r"([0-9]{1,19})[ \t]+([0-9]{1,19})")
_AFFINITY = re.compile(r"^Cpus_allowed_list:[ \t]*(\S+)[ \t]*$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class CpuBudget:
    """What the machine has and what this process may use of it; None: not known, or (``quota``) no limit.

    Attributes:
        host_count: online CPUs.
        affinity_count: CPUs that this process may be scheduled on.
        cpuset_count: the smallest cpuset over all visible cgroup ancestors.
        quota: the smallest CPU-time quota over all visible cgroup ancestors, in CPUs.
        effective: the least of the four, in CPUs.
        threads: ``max(1, floor(effective))``; 1 where nothing is known.
        physical_count: cores among the usable CPUs, SMT siblings counted once.
        source: the file that decided ``effective``.
        why: what that file says, in words with the figures: ``quota 200000/100000``.
    """

    host_count: int | None
    affinity_count: int | None
    cpuset_count: int | None
    quota: float | None
    effective: float | None
    threads: int
    physical_count: int | None = None
    source: str | None = None
    why: str | None = None

    @property
    def logical_count(self) -> int | None:
        """CPUs that may be used at all, whatever share of their time: the least of host, affinity and cpuset."""
        known = [count for count in (self.host_count, self.affinity_count, self.cpuset_count) if count is not None]
        return min(known, default=None)

    @property
    def quota_binds(self) -> bool:
        """Whether the quota allows less than all time of the usable CPUs."""
        return self.quota is not None and (self.logical_count is None or self.quota < self.logical_count)


@dataclass(frozen=True, slots=True)
class _Bound:
    """One limit: in CPUs, exact, with the CPUs themselves where it is a set."""

    value: Fraction
    why: str
    source: str
    cpus: frozenset[int] | None = None


def read_cpu(files: HostFiles, cgroup: CgroupFolders) -> CpuBudget:
    """The CPU budget; never raises, what is missing or malformed sets no limit."""
    online, affinity = _online(files), _affinity(files)
    cpuset, quota = _least(_cpusets(files, cgroup)), _least(_quotas(files, cgroup))
    # Ties go to the first: a limit that allows all there is does not limit, and the kernel shows a cpuset as affinity.
    deciding = _least(bound for bound in (online, quota, cpuset, affinity) if bound)
    host_count = int(online.value) if online else None
    return CpuBudget(
        host_count=host_count,
        affinity_count=_count(affinity, host_count),
        cpuset_count=_count(cpuset, host_count),
        quota=float(quota.value) if quota else None,
        effective=float(deciding.value) if deciding else None,
        threads=max(1, math.floor(deciding.value)) if deciding else 1,
        physical_count=_physical_count(files, online, affinity, cpuset),
        source=printable(deciding.source) if deciding else None,
        why=deciding.why if deciding else None,
    )


def _least(bounds: Iterable[_Bound]) -> _Bound | None:
    return min(bounds, key=lambda bound: bound.value, default=None)


def _count(bound: _Bound | None, host_count: int | None) -> int | None:
    """Size of a set, at most the host's: an unbound affinity also names CPUs that could be plugged in later."""
    if bound is None:
        return None
    return int(bound.value) if host_count is None else min(int(bound.value), host_count)


def _set_bound(name: str, text: str | None, source: str) -> _Bound | None:
    cpus = parse_cpu_list(text)
    return _Bound(Fraction(len(cpus)), f"{name} {text}", source, cpus) if cpus else None


def _online(files: HostFiles) -> _Bound | None:
    bound = _set_bound("online CPUs", files.text(ONLINE_FILE), ONLINE_FILE)
    if bound is None and files.live and (count := os.cpu_count()):
        return _Bound(Fraction(count), f"{count} online CPUs", "os.cpu_count")
    return bound


def _affinity(files: HostFiles) -> _Bound | None:
    match = _AFFINITY.search(files.text(STATUS_FILE) or "")
    if match is None and files.live and sys.platform == "linux":
        cpus = frozenset(os.sched_getaffinity(0))
        return _Bound(Fraction(len(cpus)), f"affinity of {len(cpus)} CPUs", "sched_getaffinity", cpus)
    return _set_bound("affinity", match[1], STATUS_FILE) if match else None


def _cpusets(files: HostFiles, cgroup: CgroupFolders) -> Iterator[_Bound]:
    # Version 1 had no effective set before Linux 3.17; what is asked for there is what is given.
    names: list[tuple[str, tuple[str, ...]]] = [(folder, ("cpuset.cpus.effective",)) for folder in cgroup.unified]
    names += [(folder, ("cpuset.effective_cpus", "cpuset.cpus")) for folder in cgroup.cpuset]
    for folder, candidates in names:
        sources = [f"{folder}/{name}" for name in candidates]
        bounds = (_set_bound("cpuset", files.text(source), source) for source in sources)
        if bound := next((bound for bound in bounds if bound), None):
            yield bound


def _quotas(files: HostFiles, cgroup: CgroupFolders) -> Iterator[_Bound]:
    for folder in cgroup.unified:
        source = f"{folder}/cpu.max"
        match = _CPU_MAX.fullmatch(files.text(source) or "")
        if match:
            yield from _quota(parse_integer(match[1]), parse_integer(match[2]), source)
    for folder in cgroup.cpu:
        source = f"{folder}/cpu.cfs_quota_us"
        yield from _quota(files.integer(source), files.integer(f"{folder}/cpu.cfs_period_us"), source)


def _quota(microseconds: int | None, period: int | None, source: str) -> Iterator[_Bound]:
    """None or one bound: -1, ``max``, 0 and nonsense are no quota."""
    if microseconds and period:
        yield _Bound(Fraction(microseconds, period), f"quota {microseconds}/{period}", source)


def _physical_count(
    files: HostFiles, online: _Bound | None, affinity: _Bound | None, cpuset: _Bound | None
) -> int | None:
    """Cores among the usable CPUs; None unless the topology of as many CPUs as may be used is known.

    The numbers of an affinity or a cpuset are the machine's own; those of the online CPUs can be made up (lxcfs counts
    from 0, and shows as many as the quota allows), so they serve only where there is nothing else.
    """
    numbered = _least(bound for bound in (affinity, cpuset) if bound) or online
    if numbered is None or numbered.cpus is None:
        return None
    usable = min(int(bound.value) for bound in (online, affinity, cpuset) if bound)
    cores = [found for cpu in sorted(numbered.cpus) if (found := _siblings(files, cpu))]
    return min(len(set(cores)), usable) if len(cores) >= usable else None


def _siblings(files: HostFiles, cpu: int) -> frozenset[int] | None:
    """All CPUs on the core of this one; None for a CPU that is offline, or whose file is malformed."""
    for name in _SIBLING_FILES:
        found = parse_cpu_list(files.text(_TOPOLOGY.format(cpu=cpu, name=name)))
        if found and cpu in found:
            return found
    return None
