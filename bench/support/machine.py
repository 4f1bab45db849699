"""The line that says where figures come from, and what a process has used."""

from __future__ import annotations

import os
import platform
import sys
from importlib import metadata
from pathlib import Path

import psutil

from bench.support.errors import BenchError
from supervisor.processes.held_memory import read_resident


def machine_line() -> str:
    """CPU, cores that this process may use, load average, and the versions that matter."""
    try:
        load = "/".join(f"{value:.2f}" for value in os.getloadavg())
    except OSError:
        load = "unknown"
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    versions = f"Python {platform.python_version()}, aiohttp {_version('aiohttp')}, uvloop {_version('uvloop')}"
    return f"{_cpu()}, {cores} cores, load average {load}; {platform.system()} {platform.release()}, {versions}"


def cpu_seconds(pid: int) -> float:
    """CPU that a process has used, all its living threads together; to the nanosecond on Linux, else to the tick."""
    total = 0
    try:
        for path in Path(f"/proc/{pid}/task").iterdir():
            total += int((path / "schedstat").read_text().split()[0])
    except (OSError, ValueError, IndexError):
        times = psutil.Process(pid).cpu_times()
        return float(times.user + times.system)
    return total / 1e9


def resident_bytes(pid: int) -> int:
    """RSS of a process."""
    return int(psutil.Process(pid).memory_info().rss)


def own_bytes(pid: int) -> int:
    """What a process and those below it hold that no file has: RssAnon.

    Raises:
        BenchError: it has ended, or the system does not tell.
    """
    held = read_resident(pid)
    if held is None:
        raise BenchError(f"process {pid} has ended, or nothing tells what it holds")
    return held.anonymous


def _cpu() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text(errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine() or sys.platform


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"
