"""CPUs: quota, cpuset, affinity, cores."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from supervisor.host.files import parse_cpu_list
from supervisor.host.snapshot import take_snapshot
from tests.fakes.host_tree import host_files, lay_out, topology_files, unified


@pytest.mark.parametrize(
    ("text", "cpus"),
    [("0", {0}), ("0-3,8", {0, 1, 2, 3, 8}), ("2,1-2", {1, 2}), ("0-8191", set(range(8192)))],
)
def test_a_cpu_list_names_its_cpus(text: str, cpus: set[int]) -> None:
    """Single numbers and ranges; one that is named twice counts once."""
    assert parse_cpu_list(text) == frozenset(cpus)


@pytest.mark.parametrize("text", [None, "", "3-1", "a", "0-", "-1", "0,,1", "0-3:1/2", "0-99999", "\u0663", "9" * 5000])
def test_what_is_no_cpu_list_is_not_known(text: str | None) -> None:
    """Never a count of 0, and never millions of CPUs out of a typing error."""
    assert parse_cpu_list(text) is None


@pytest.mark.parametrize(
    ("text", "quota"),
    [
        ("50000 100000", 0.5),
        ("1 1000000", 0.000001),
        ("max 100000", None),
        ("0 100000", None),
        ("100000 0", None),
        ("-1 100000", None),
        ("100000", None),
        ("100000 100000 1", None),
        ("9" * 5000 + " 1", None),
    ],
)
def test_a_quota_is_read_or_is_none(text: str, quota: float | None, tmp_path: Path) -> None:
    """``max``, 0, a period of 0 and anything malformed set no quota; the threads stay at least 1."""
    cpu = take_snapshot(lay_out(tmp_path, unified() | host_files(4) | {"/sys/fs/cgroup/cpu.max": text})).cpu

    assert cpu.quota == quota
    assert cpu.threads == (4 if quota is None else 1)
    assert cpu.quota_binds is (quota is not None)


def test_the_file_that_decides_is_named(tmp_path: Path) -> None:
    """The quota of the grandparent binds: its file and its figures are said."""
    limits = {"/sys/fs/cgroup/a/cpu.max": "250000 100000\n", "/sys/fs/cgroup/a/b/cpu.max": "max 100000\n"}

    cpu = take_snapshot(lay_out(tmp_path, unified("/a/b/c") | host_files(8) | limits)).cpu

    assert (cpu.source, cpu.why) == ("/sys/fs/cgroup/a/cpu.max", "quota 250000/100000")


def test_a_quota_of_all_there_is_does_not_decide(tmp_path: Path) -> None:
    """Eight CPUs of time on eight CPUs is no limit."""
    cpu = take_snapshot(lay_out(tmp_path, unified() | host_files(8) | {"/sys/fs/cgroup/cpu.max": "800000 100000"})).cpu

    assert cpu.source == "/sys/devices/system/cpu/online"
    assert cpu.quota == 8.0
    assert not cpu.quota_binds


@pytest.mark.parametrize("name", ["core_cpus_list", "thread_siblings_list"])
def test_siblings_on_a_core_count_once(name: str, tmp_path: Path) -> None:
    """Four CPUs, CPU n and n + 2 on one core: two cores, under the name of old kernels too."""
    siblings = topology_files({0: "0,2", 1: "1,3", 2: "0,2", 3: "1,3"}, name)

    assert take_snapshot(lay_out(tmp_path, host_files(4) | siblings)).cpu.physical_count == 2


def test_only_cores_within_the_affinity_count(tmp_path: Path) -> None:
    """Bound to both halves of one core and a half of another: two cores."""
    siblings = topology_files({cpu: f"{cpu // 2 * 2}-{cpu // 2 * 2 + 1}" for cpu in range(8)})

    cpu = take_snapshot(lay_out(tmp_path, host_files(8, [2, 3, 4]) | siblings)).cpu

    assert (cpu.effective, cpu.physical_count) == (3.0, 2)


def test_cores_are_unknown_unless_all_are_known(tmp_path: Path) -> None:
    """One CPU without topology: not known, rather than one too few."""
    assert take_snapshot(lay_out(tmp_path, host_files(3) | topology_files({0: "0", 1: "1"}))).cpu.physical_count is None


def test_cpus_that_could_be_plugged_in_later_do_not_count(tmp_path: Path) -> None:
    """Prevents: a virtual machine whose affinity names 240 possible CPUs hides the topology of the 4 that it has."""
    siblings = topology_files({0: "0-1", 1: "0-1", 2: "2-3", 3: "2-3"})

    cpu = take_snapshot(lay_out(tmp_path, host_files(4, range(240)) | siblings)).cpu

    assert (cpu.affinity_count, cpu.effective, cpu.physical_count) == (4, 4.0, 2)


def test_online_cpus_that_lxc_has_renumbered_do_not_hide_the_affinity(tmp_path: Path) -> None:
    """Prevents: lxcfs counts the online CPUs from 0, the affinity has the machine's own numbers; sizes are compared."""
    siblings = topology_files({cpu: f"{cpu % 4},{cpu % 4 + 4}" for cpu in range(8)})

    cpu = take_snapshot(lay_out(tmp_path, host_files(2, [3, 7]) | siblings)).cpu

    assert (cpu.effective, cpu.physical_count) == (2.0, 1)


def test_an_empty_folder_gives_no_figures_and_one_thread(tmp_path: Path) -> None:
    """Unknown is None, also where everything is; the threads still are a number."""
    cpu = take_snapshot(tmp_path).cpu

    assert (cpu.host_count, cpu.affinity_count, cpu.cpuset_count, cpu.quota, cpu.effective) == (None,) * 5
    assert (cpu.threads, cpu.physical_count, cpu.source) == (1, None, None)


@pytest.mark.skipif(sys.platform != "linux", reason="affinity is Linux only")
def test_this_machine_s_affinity_is_the_scheduler_s() -> None:
    """The live probe agrees with what the system call says."""
    assert take_snapshot().cpu.affinity_count == len(os.sched_getaffinity(0))
