"""How much memory this process may really use: page cache is not lost, and a container sees all of the host's."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from supervisor.host.cgroup import CgroupFolders
from supervisor.host.files import HostFiles, parse_integer, printable
from supervisor.units import format_size

MEMINFO_FILE = "/proc/meminfo"
PRESSURE_FILE = "/proc/pressure/memory"

# Version 1 has no word for "no limit": it shows the largest number of whole pages, which differs with the page size.
_UNLIMITED = 2**62
_MEMINFO_LINE = re.compile(r"^(\w+):[ \t]*([0-9]{1,16}) kB[ \t]*$", re.MULTILINE)
_STAT_LINE = re.compile(r"^(\w+) ([0-9]{1,19})[ \t]*$", re.MULTILINE)
_PRESSURE = re.compile(r"^some avg10=([0-9]{1,3}\.[0-9]{1,4}) ", re.MULTILINE)
_RECLAIMABLE = ("inactive_file", "active_file", "slab_reclaimable")
_RECLAIMABLE_V1 = ("total_inactive_file", "total_active_file")
# What version 2 counts as ``kernel`` since Linux 5.18, by its parts for the kernels before.
_KERNEL_PARTS = ("kernel_stack", "pagetables", "percpu", "sock", "slab_unreclaimable")


@dataclass(frozen=True, slots=True)
class MemoryBound:
    """One thing that bounds what all in it may hold together: a cgroup's limit, or the machine itself.

    Attributes:
        size: bytes.
        held: bytes of it that nobody can reclaim, whoever holds them; None: not known. Swap is not counted.
        source: the file that says ``size``.
    """

    size: int
    held: int | None
    source: str


@dataclass(frozen=True, slots=True)
class MemoryBudget:
    """What the machine has and what this process may use of it, in bytes; None: not known, or no limit that binds.

    Attributes:
        host_total_bytes: MemTotal.
        host_available_bytes: MemAvailable.
        limit_bytes: the smallest memory.max over all visible cgroup ancestors, if it is below the host's total.
        high_bytes: the same of memory.high, where the kernel starts to slow a cgroup down.
        available_bytes: what a newcomer could get: the least over all ancestors of limit - usage + reclaimable file
            cache, and the host's available. Swap is not counted.
        source: the file that decided ``available_bytes``; where that is not known, ``limit_bytes``.
        why: the arithmetic in words.
        swap_total_bytes, swap_free_bytes: of the host.
        pressure: share of the last ten seconds in which some task here waited for memory, 0 to 100.
        bounds: what the budget of the host pool is made from: every cgroup ancestor's least limit, then the host.
    """

    host_total_bytes: int | None
    host_available_bytes: int | None
    limit_bytes: int | None
    high_bytes: int | None
    available_bytes: int | None
    source: str | None = None
    why: str | None = None
    swap_total_bytes: int | None = None
    swap_free_bytes: int | None = None
    pressure: float | None = None
    bounds: tuple[MemoryBound, ...] = ()


@dataclass(frozen=True, slots=True)
class _Limit:
    size: int
    source: str


@dataclass(frozen=True, slots=True)
class _Level:
    """One cgroup's figures."""

    limits: tuple[_Limit, ...]
    highs: tuple[_Limit, ...]
    usage: int | None
    reclaimable: int
    held: int | None

    def bound(self) -> MemoryBound | None:
        """The least limit here, with what is held below it; None where nothing limits."""
        limit = _least((*self.limits, *self.highs))
        return None if limit is None else MemoryBound(limit.size, self.held, printable(limit.source))

    def available(self) -> _Available | None:
        """What is left here; None where nothing limits."""
        limit = _least((*self.limits, *self.highs))
        if limit is None:
            return None
        if self.usage is None:  # no more than the limit, at least
            return _Available(limit.size, limit.source, f"limit {format_size(limit.size)}, usage unknown")
        reclaimable = min(self.reclaimable, self.usage)
        left = max(0, limit.size - self.usage + reclaimable)
        sizes = (format_size(limit.size), format_size(self.usage), format_size(reclaimable))
        return _Available(left, limit.source, "limit {} - usage {} + reclaimable {}".format(*sizes))


@dataclass(frozen=True, slots=True)
class _Available:
    size: int
    source: str
    why: str


def read_memory(files: HostFiles, cgroup: CgroupFolders) -> MemoryBudget:
    """The memory budget; never raises, what is missing or malformed sets no limit."""
    host = _host(files)
    total, host_available = host.get("MemTotal"), host.get("MemAvailable")
    levels = [*_unified_levels(files, cgroup.unified), *_v1_levels(files, cgroup.memory)]
    limit = _binding((found for level in levels for found in level.limits), total)
    high = _binding((found for level in levels for found in level.highs), total)
    bounds = [bound for level in levels if (bound := level.available())]
    deciding = None
    if host_available is not None:  # without the host's figure, what the cgroups leave is only an upper bound
        whole = _Available(host_available, MEMINFO_FILE, f"MemAvailable {format_size(host_available)}")
        deciding = min((whole, *bounds), key=lambda bound: bound.size)
    source = deciding.source if deciding else limit.source if limit else None
    return MemoryBudget(
        host_total_bytes=total,
        host_available_bytes=host_available,
        limit_bytes=limit.size if limit else None,
        high_bytes=high.size if high else None,
        available_bytes=deciding.size if deciding else None,
        source=None if source is None else printable(source),
        why=deciding.why if deciding else None,
        swap_total_bytes=host.get("SwapTotal"),
        swap_free_bytes=host.get("SwapFree"),
        pressure=_pressure(files, cgroup),
        bounds=(*(found for level in levels if (found := level.bound())), *_host_bound(host)),
    )


def _least(limits: Iterable[_Limit]) -> _Limit | None:
    return min(limits, key=lambda limit: limit.size, default=None)


def _binding(limits: Iterable[_Limit], total: int | None) -> _Limit | None:
    """The smallest limit, unless the host has less anyway."""
    least = _least(limits)
    return least if least and (total is None or least.size < total) else None


def _limits(size: int | None, source: str) -> tuple[_Limit, ...]:
    return (_Limit(size, source),) if size is not None and size < _UNLIMITED else ()


def _unified_levels(files: HostFiles, folders: Iterable[str]) -> Iterator[_Level]:
    for folder in folders:
        limit, high = f"{folder}/memory.max", f"{folder}/memory.high"
        stat = _stat(files, folder)
        yield _Level(
            limits=_limits(files.integer(limit), limit),
            highs=_limits(files.integer(high), high),
            usage=files.integer(f"{folder}/memory.current"),
            reclaimable=sum(stat.get(name, 0) for name in _RECLAIMABLE),
            held=_held(stat),
        )


def _v1_levels(files: HostFiles, folders: Iterable[str]) -> Iterator[_Level]:
    for folder in folders:
        limit, stat = f"{folder}/memory.limit_in_bytes", _stat(files, folder)
        # The hierarchical limit is the least over all ancestors, those that a container can't see included.
        hierarchical = _limits(stat.get("hierarchical_memory_limit"), f"{folder}/memory.stat")
        yield _Level(
            limits=(*_limits(files.integer(limit), limit), *hierarchical),
            highs=(),
            usage=files.integer(f"{folder}/memory.usage_in_bytes"),
            reclaimable=sum(stat.get(name, 0) for name in _RECLAIMABLE_V1),
            held=_held_v1(stat, files.integer(f"{folder}/memory.kmem.usage_in_bytes")),
        )


def _held(stat: Mapping[str, int]) -> int | None:
    """Anonymous and shared memory and the kernel's own, less the slabs that the kernel gives back when asked."""
    if "anon" not in stat:
        return None
    kernel = stat["kernel"] - stat.get("slab_reclaimable", 0) if "kernel" in stat else None
    if kernel is None:
        kernel = sum(stat.get(name, 0) for name in _KERNEL_PARTS)
    return stat["anon"] + stat.get("shmem", 0) + max(0, kernel)


def _held_v1(stat: Mapping[str, int], kernel: int | None) -> int | None:
    """The same by version 1, which calls anonymous memory ``rss`` and does not tell reclaimable slabs apart."""
    if "total_rss" not in stat:
        return None
    return stat["total_rss"] + stat.get("total_shmem", 0) + (kernel or 0)


def _host_bound(host: Mapping[str, int]) -> tuple[MemoryBound, ...]:
    """The machine as a bound: all that is neither free nor cache of files is held; shared memory is no such cache."""
    total = host.get("MemTotal")
    if total is None:
        return ()
    cache = ("MemFree", "Buffers", "Cached", "SReclaimable")
    held = None
    if "MemFree" in host and "Cached" in host:
        held = max(0, total - sum(host.get(name, 0) for name in cache) + host.get("Shmem", 0))
    elif "MemAvailable" in host:
        held = max(0, total - host["MemAvailable"])
    return (MemoryBound(total, held, MEMINFO_FILE),)


def _stat(files: HostFiles, folder: str) -> dict[str, int]:
    text = files.text(f"{folder}/memory.stat") or ""
    return {name: int(number) for name, number in _STAT_LINE.findall(text)}


def _host(files: HostFiles) -> dict[str, int]:
    """Figures of /proc/meminfo in bytes; the total alone where a live machine has no such file."""
    text = files.text(MEMINFO_FILE)
    if text is None and files.live:
        return _total_by_sysconf()
    return {
        name: size * 1024 for name, kib in _MEMINFO_LINE.findall(text or "") if (size := parse_integer(kib)) is not None
    }


def _total_by_sysconf() -> dict[str, int]:
    """The total by POSIX; what of it is available, POSIX can't say."""
    try:
        return {"MemTotal": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")}
    except (OSError, ValueError):
        return {}


def _pressure(files: HostFiles, cgroup: CgroupFolders) -> float | None:
    """The own cgroup's pressure where the kernel keeps it, else the host's."""
    for path in (*(f"{folder}/memory.pressure" for folder in cgroup.unified), PRESSURE_FILE):
        if match := _PRESSURE.search(files.text(path) or ""):
            return float(match[1])
    return None
