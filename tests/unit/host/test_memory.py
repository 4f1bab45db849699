"""Memory: limits, file cache, what a newcomer could get."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from supervisor.host.memory import MemoryBudget
from supervisor.host.snapshot import take_snapshot
from tests.fakes.host_tree import lay_out, unified

_GIB = 2**30
_MEMINFO = "MemTotal:       16777216 kB\nMemFree:        1 kB\nMemAvailable:    8388608 kB\nSwapTotal:    1024 kB\n"
_V1 = {
    "/proc/self/cgroup": "4:memory:/\n",
    "/proc/self/mountinfo": "42 39 0:32 / /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n",
}


def _read(root: Path, mounts: dict[str, str], **files: str) -> MemoryBudget:
    folder = "/sys/fs/cgroup/memory" if mounts is _V1 else "/sys/fs/cgroup"
    limits = {f"{folder}/memory.{name}": text for name, text in files.items()}
    return take_snapshot(lay_out(root, mounts | {"/proc/meminfo": _MEMINFO} | limits)).memory


@pytest.mark.parametrize("page", [4096, 16384, 65536])
def test_the_largest_number_of_pages_is_no_limit(page: int, tmp_path: Path) -> None:
    """Version 1 has no word for it, and the number differs with the page size."""
    unlimited = str((2**63 - 1) // page * page)
    files = _V1 | {"/sys/fs/cgroup/memory/memory.limit_in_bytes": unlimited}

    assert take_snapshot(lay_out(tmp_path, files)).memory.limit_bytes is None


def test_a_limit_above_the_host_does_not_bind(tmp_path: Path) -> None:
    """32 GiB on a host of 16: no limit to report, and what is available is the host's."""
    memory = _read(tmp_path, unified(), max=str(32 * _GIB), current=str(_GIB))

    assert (memory.limit_bytes, memory.available_bytes, memory.source) == (None, 8 * _GIB, "/proc/meminfo")


def test_a_limit_that_a_container_cannot_see_shows_in_its_statistics(tmp_path: Path) -> None:
    """Version 1: the own limit is unlimited, the hierarchical one is the parent's."""
    stat = f"hierarchical_memory_limit {4 * _GIB}\ntotal_inactive_file {_GIB}\ntotal_active_file 0\n"

    memory = _read(tmp_path, _V1, stat=stat, usage_in_bytes=str(2 * _GIB))

    assert (memory.limit_bytes, memory.available_bytes) == (4 * _GIB, 3 * _GIB)
    assert memory.source == "/sys/fs/cgroup/memory/memory.stat"


def test_file_cache_frees_no_more_than_is_used(tmp_path: Path) -> None:
    """Statistics lag behind: more cache than usage must not give more than the limit."""
    memory = _read(tmp_path, unified(), max=str(_GIB), current="4096", stat=f"inactive_file {8 * _GIB}\n")

    assert memory.available_bytes == _GIB


def test_use_above_the_limit_leaves_nothing(tmp_path: Path) -> None:
    """memory.high may be exceeded; what is left is 0, not less."""
    assert _read(tmp_path, unified(), high=str(_GIB), current=str(2 * _GIB)).available_bytes == 0


def test_without_usage_no_more_than_the_limit_is_promised(tmp_path: Path) -> None:
    """The limit is known, what is used of it is not: an upper bound, and the words say so."""
    memory = _read(tmp_path, unified(), max=str(_GIB))

    assert memory.available_bytes == _GIB
    assert memory.why == "limit 1.0 GiB, usage unknown"


def test_the_arithmetic_is_said(tmp_path: Path) -> None:
    """The words hold the three figures of the level that decided."""
    memory = _read(
        tmp_path, unified(), max=str(4 * _GIB), current=str(3 * _GIB), stat=f"active_file {_GIB}\nslab_reclaimable 0\n"
    )

    assert memory.why == "limit 4.0 GiB - usage 3.0 GiB + reclaimable 1.0 GiB"
    assert memory.source == "/sys/fs/cgroup/memory.max"


def test_swap_and_pressure_are_reported_and_not_counted(tmp_path: Path) -> None:
    """Half the last ten seconds were spent waiting; free swap is no memory, and an absent figure is not 0."""
    pressure = "some avg10=50.25 avg60=1.00 avg300=0.00 total=1\nfull avg10=1.00 avg60=0.00 avg300=0.00 total=1\n"

    memory = _read(tmp_path, unified(), pressure=pressure)

    assert (memory.swap_total_bytes, memory.swap_free_bytes, memory.pressure) == (2**20, None, 50.25)
    assert memory.available_bytes == 8 * _GIB


def test_an_empty_folder_gives_no_figures(tmp_path: Path) -> None:
    """Unknown is None, never 0."""
    assert take_snapshot(tmp_path).memory == MemoryBudget(None, None, None, None, None)


def test_this_machine_s_total_is_the_system_s() -> None:
    """The live probe agrees with what the system says."""
    assert take_snapshot().memory.host_total_bytes == psutil.virtual_memory().total
