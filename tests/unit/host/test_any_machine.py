"""Whatever lies in the files, the probe answers."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from supervisor.host.snapshot import take_snapshot
from tests.fakes.host_tree import lay_out

_NUMBERS = st.one_of(
    st.integers(-2, 10).map(str),
    st.integers(0, 2**64).map(str),
    st.sampled_from(["max", "-1", "", "9223372036854771712", "1e9", "0x10", "9" * 5000, "\u0663", "nan", "1.5"]),
)
_LISTS = st.sampled_from(["0", "0-3", "0-3,8", "3-1", "7", "", "0-", "a", "0-999999999999", "0-15", ","])
_PATHS = st.sampled_from(["/", "/a", "/a/b", "/..", "/../a", "//a//", "/a\\040b", "", "a", "/\x00", "/a/" + "b" * 300])
_GARBAGE = st.binary(max_size=60)
_FOLDERS = ["/cg", "/cg/a", "/cg/a/b", "/cg/cpu", "/cg/cpu/a", "/cg/memory"]
_CPU_FILES = ["cpu.max", "cpu.cfs_quota_us", "cpu.cfs_period_us"]
_SET_FILES = ["cpuset.cpus.effective", "cpuset.effective_cpus", "cpuset.cpus"]
_MEMORY_FILES = ["memory.max", "memory.high", "memory.current", "memory.limit_in_bytes", "memory.usage_in_bytes"]
_STAT_NAMES = ["inactive_file", "active_file", "slab_reclaimable", "hierarchical_memory_limit", "total_inactive_file"]


def _lines(line: st.SearchStrategy[str]) -> st.SearchStrategy[bytes]:
    return st.lists(line, max_size=4).map(lambda lines: "\n".join(lines).encode())


def _often_garbage(text: st.SearchStrategy[bytes]) -> st.SearchStrategy[bytes]:
    return st.one_of(text, text, text, _GARBAGE)


def _file(folder: str, name: str) -> tuple[str, st.SearchStrategy[bytes]]:
    if name in _SET_FILES:
        text = _LISTS.map(str.encode)
    elif name == "memory.stat":
        text = _lines(st.builds("{} {}".format, st.sampled_from(_STAT_NAMES), _NUMBERS))
    else:
        text = st.lists(_NUMBERS, min_size=1, max_size=3).map(" ".join).map(str.encode)
    return f"{folder}/{name}", _often_garbage(text)


_CONTROLLERS = st.sampled_from(["rw", "rw,cpu,cpuacct", "rw,cpuset", "rw,memory", "rw,cpu,cpuset,memory", ""])
_MOUNT = st.builds(
    "30 24 0:27 {} {} rw shared:9 - {} none {}".format,
    _PATHS,
    st.sampled_from(["/cg", "/cg/cpu", "/cg/memory", "/", "/../..", "", "/cg\\000"]),
    st.sampled_from(["cgroup", "cgroup2", "tmpfs"]),
    _CONTROLLERS,
)
_OWN = st.builds("{}:{}:{}".format, _NUMBERS, st.sampled_from(["", "cpu,cpuacct", "memory", "cpuset", "x"]), _PATHS)
_MEMINFO = st.builds("{}:  {} kB".format, st.sampled_from(["MemTotal", "MemAvailable", "SwapFree"]), _NUMBERS)
_TREES = st.fixed_dictionaries(
    {},
    optional={
        "/proc/self/mountinfo": _often_garbage(_lines(_MOUNT)),
        "/proc/self/cgroup": _often_garbage(_lines(_OWN)),
        "/proc/self/status": _often_garbage(_LISTS.map(lambda text: f"Cpus_allowed_list:\t{text}\n".encode())),
        "/proc/meminfo": _often_garbage(_lines(_MEMINFO)),
        "/sys/devices/system/cpu/online": _often_garbage(_LISTS.map(str.encode)),
        "/sys/devices/system/cpu/cpu0/topology/core_cpus_list": _often_garbage(_LISTS.map(str.encode)),
        **dict(
            _file(folder, name)
            for folder in _FOLDERS
            for name in [*_CPU_FILES, *_SET_FILES, *_MEMORY_FILES, "memory.stat"]
        ),
    },
)


@given(tree=_TREES)
def test_any_tree_of_files_gives_an_answer(tree: dict[str, bytes]) -> None:
    """No exception; from one thread to as many as the host has CPUs; no count of 0, no negative size."""
    with tempfile.TemporaryDirectory() as folder:
        snapshot = take_snapshot(lay_out(Path(folder), tree))

    cpu, memory = snapshot.cpu, snapshot.memory
    assert 1 <= cpu.threads <= (cpu.host_count or cpu.threads)
    for count in (cpu.host_count, cpu.affinity_count, cpu.cpuset_count, cpu.physical_count, cpu.quota, cpu.effective):
        assert count is None or count > 0
    assert cpu.quota is None or cpu.effective is None or cpu.effective <= cpu.quota
    if memory.available_bytes is not None:
        assert memory.host_available_bytes is not None
        assert 0 <= memory.available_bytes <= memory.host_available_bytes
    assert memory.limit_bytes is None or memory.host_total_bytes is None or memory.limit_bytes < memory.host_total_bytes
    for text in (cpu.source, cpu.why, memory.source, memory.why):
        assert text is None or text.encode()  # no lone surrogates: they would break the JSON


def test_folders_and_pipes_in_the_place_of_files_do_not_hang(tmp_path: Path) -> None:
    """Prevents: a pipe that was recorded with the tree blocks the probe for ever."""
    (tmp_path / "proc/self/cgroup").mkdir(parents=True)
    os.mkfifo(tmp_path / "proc/self/mountinfo")
    (tmp_path / "proc/meminfo").symlink_to("meminfo")

    assert take_snapshot(tmp_path).cpu.threads == 1
