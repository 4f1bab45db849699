"""The host pool's budget, with its arithmetic."""

from __future__ import annotations

from pathlib import Path

from supervisor.host.budget import HostLimits, host_room
from supervisor.host.memory import MemoryBudget
from supervisor.host.snapshot import take_snapshot
from tests.fakes.host_tree import lay_out, unified

GIB = 2**30
AUTO = HostLimits(None, GIB)
_KIB_A_GIB = 2**20


def _meminfo(**sizes: float) -> dict[str, str]:
    """A /proc/meminfo; sizes in GiB."""
    return {"/proc/meminfo": "".join(f"{name}:  {int(size * _KIB_A_GIB)} kB\n" for name, size in sizes.items())}


_IDLE_HOST = _meminfo(MemTotal=64, MemFree=60, Buffers=0, Cached=2, SReclaimable=0, Shmem=0, MemAvailable=62)


def _read(root: Path, files: dict[str, str]) -> MemoryBudget:
    return take_snapshot(lay_out(root, files)).memory


def test_the_least_of_max_and_high_over_all_ancestors_less_the_reserve(tmp_path: Path) -> None:
    """memory.high of a parent binds as memory.max of the own cgroup would."""
    memory = _read(
        tmp_path,
        unified("/a/b")
        | _IDLE_HOST
        | {
            "/sys/fs/cgroup/a/b/memory.max": str(16 * GIB),
            "/sys/fs/cgroup/a/b/memory.stat": "anon 0\nshmem 0\nkernel 0\n",
            "/sys/fs/cgroup/a/memory.high": str(8 * GIB),
            "/sys/fs/cgroup/a/memory.stat": "anon 0\nshmem 0\nkernel 0\n",
        },
    )

    room = host_room(memory, 0, AUTO)

    assert (room.pool, room.budget, room.total) == ("host", 7 * GIB, 64 * GIB)
    assert "/sys/fs/cgroup/a/memory.high" in room.why
    assert "reserve" in room.why


def test_what_others_hold_is_subtracted_and_what_our_engines_hold_is_not(tmp_path: Path) -> None:
    """Anonymous, shared and kernel memory of the cgroup, less reclaimable slabs and our own; file cache never."""
    stat = f"anon {6 * GIB}\nfile {9 * GIB}\nkernel {2 * GIB}\nslab_reclaimable {GIB}\nshmem {GIB}\n"
    files = {"/sys/fs/cgroup/memory.max": str(16 * GIB), "/sys/fs/cgroup/memory.stat": stat}

    room = host_room(_read(tmp_path, unified() | _IDLE_HOST | files), 5 * GIB, AUTO)

    assert room.budget == (16 - 3 - 1) * GIB
    assert "held by others 3.0 GiB" in room.why
    assert "by our engines 5.0 GiB" in room.why


def test_an_ancestor_that_others_have_filled_binds(tmp_path: Path) -> None:
    """The own limit is small and empty, the parent's is large and nearly full: the parent leaves less."""
    files = {
        "/sys/fs/cgroup/a/b/memory.max": str(16 * GIB),
        "/sys/fs/cgroup/a/b/memory.stat": "anon 0\nshmem 0\nkernel 0\n",
        "/sys/fs/cgroup/a/memory.max": str(32 * GIB),
        "/sys/fs/cgroup/a/memory.stat": f"anon {28 * GIB}\nshmem 0\nkernel 0\n",
    }
    assert host_room(_read(tmp_path, unified("/a/b") | _IDLE_HOST | files), 0, AUTO).budget == 3 * GIB


def test_old_kernels_say_their_own_memory_by_parts(tmp_path: Path) -> None:
    """Before Linux 5.18 there is no ``kernel`` line."""
    stat = f"anon {GIB}\nshmem 0\nkernel_stack {GIB}\npagetables {GIB}\nslab_unreclaimable {GIB}\nslab {3 * GIB}\n"
    files = {"/sys/fs/cgroup/memory.max": str(16 * GIB), "/sys/fs/cgroup/memory.stat": stat}

    assert host_room(_read(tmp_path, unified() | _IDLE_HOST | files), 0, AUTO).budget == 11 * GIB


def test_version_one_is_read_too(tmp_path: Path) -> None:
    """Its statistics call anonymous memory rss, and the kernel's share has a file of its own."""
    files = {
        "/proc/self/cgroup": "4:memory:/\n",
        "/proc/self/mountinfo": "42 39 0:32 / /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n",
        "/sys/fs/cgroup/memory/memory.limit_in_bytes": str(16 * GIB),
        "/sys/fs/cgroup/memory/memory.kmem.usage_in_bytes": str(GIB),
        "/sys/fs/cgroup/memory/memory.stat": f"total_rss {2 * GIB}\ntotal_shmem {GIB}\ntotal_active_file {9 * GIB}\n",
    }
    assert host_room(_read(tmp_path, _IDLE_HOST | files), 0, AUTO).budget == 11 * GIB


def test_a_machine_without_limits_is_bounded_by_itself(tmp_path: Path) -> None:
    """What is neither free nor file cache is held; shared memory is counted as cache there and is none."""
    host = _meminfo(MemTotal=64, MemFree=20, Buffers=1, Cached=30, SReclaimable=3, Shmem=2, MemAvailable=50)

    room = host_room(_read(tmp_path, host), 4 * GIB, AUTO)

    assert room.budget == (64 - (64 - 54 + 2 - 4) - 1) * GIB
    assert "/proc/meminfo" in room.why


def test_the_machine_itself_binds_where_the_limit_is_more_than_others_leave(tmp_path: Path) -> None:
    """A container may use 32 GiB of a host on which others hold 56 of 64."""
    host = _meminfo(MemTotal=64, MemFree=8, Buffers=0, Cached=0, SReclaimable=0, Shmem=0, MemAvailable=8)
    files = {"/sys/fs/cgroup/memory.max": str(32 * GIB), "/sys/fs/cgroup/memory.stat": "anon 0\nkernel 0\n"}

    assert host_room(_read(tmp_path, unified() | host | files), 0, AUTO).budget == 7 * GIB


def test_the_owner_s_figure_is_the_budget_as_it_is(tmp_path: Path) -> None:
    """Only the reserve is taken off; what others hold is not."""
    host = _meminfo(MemTotal=64, MemFree=8, Cached=0, MemAvailable=8)

    room = host_room(_read(tmp_path, host), 0, HostLimits(48 * GIB, GIB))

    assert room.budget == 47 * GIB
    assert "host.memory 48.0 GiB" in room.why


def test_a_figure_below_the_reserve_says_what_to_change() -> None:
    """It used to be told as "of 0 B", which names no setting."""
    room = host_room(MemoryBudget(None, None, None, None, None), 0, HostLimits(2**29, GIB))

    assert room.budget == 0
    assert "host.memory is 512.0 MiB" in room.why
    assert "set host.memory higher" in room.why


def test_unknown_is_not_nothing(tmp_path: Path) -> None:
    """No file at all: no budget. A limit whose statistics are missing: the limit, and a word about it."""
    assert host_room(MemoryBudget(None, None, None, None, None), 0, AUTO).budget is None

    room = host_room(_read(tmp_path, unified() | {"/sys/fs/cgroup/memory.max": str(16 * GIB)}), 0, AUTO)
    assert room.budget == 15 * GIB
    assert "not known" in room.why


def test_a_full_machine_leaves_nothing_rather_than_less(tmp_path: Path) -> None:
    """Others hold all but half a GiB, and one is to be kept free."""
    host = _meminfo(MemTotal=64, MemFree=0.5, Cached=0, MemAvailable=0.5)
    room = host_room(_read(tmp_path, host), 0, AUTO)

    assert room.budget == 0
    assert room.why.endswith("nothing is left")


def test_what_others_hold_is_told_beside_the_budget(tmp_path: Path) -> None:
    """Once it was in the sentence alone, and every figure of it was unknown; also where the owner sets the budget."""
    memory = _read(tmp_path, unified() | _IDLE_HOST)
    [bound] = memory.bounds
    assert bound.held is not None
    room = host_room(memory, 0, AUTO)
    assert (room.foreign, room.reserve) == (bound.held, AUTO.reserve)
    assert room.budget == bound.size - bound.held - AUTO.reserve
    assert host_room(memory, bound.held, AUTO).foreign == 0
    assert host_room(memory, 0, HostLimits(48 * GIB, GIB)).foreign == bound.held
    assert host_room(MemoryBudget(None, None, None, None, None), 0, AUTO).foreign is None
