"""Recorded and composed machines, each with what a process on it may really use."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from supervisor.host.snapshot import take_snapshot
from tests.fakes.host_tree import host_files, lay_out

_DATA = Path(__file__).parents[2] / "data" / "host"
_COMPOSED = sorted((_DATA / "cgroups").glob("*.json"))

_MIB = 2**20
# name: effective CPUs, memory limit. Inside a container a parent's memory limit shows, its quota does not.
_CAPTURED: dict[str, tuple[float, int | None]] = {
    "v1_hostns_cpus1.5_mem512m": (1.5, 512 * _MIB),
    "v1_joint_cpuacct_dockerlike_hostns": (1.0, 512 * _MIB),
    "v1_joint_cpuacct_private": (1.0, 512 * _MIB),
    "v1_private_cpus0.5_mem64m_cpuset0": (0.5, 64 * _MIB),
    "v1_private_parent_only_quota50000_mem256m": (2.0, 256 * _MIB),
    "v1_private_unlimited": (2.0, None),
    "v2_private_cpus0.5_mem64m": (0.5, 64 * _MIB),
    "v2_private_cpus1.5_mem512m": (1.0, 512 * _MIB),
    "v2_private_unlimited": (1.0, None),
}
_CAPTURED_QUOTAS = {name: float(name.split("cpus")[1].split("_")[0]) for name in _CAPTURED if "_cpus" in name} | {
    "v1_joint_cpuacct_dockerlike_hostns": 1.5,
    "v1_joint_cpuacct_private": 1.5,
}


@pytest.mark.parametrize("ends", ["\n", "\r\n"], ids=["", "crlf"])
@pytest.mark.parametrize("path", _COMPOSED, ids=lambda path: path.stem)
def test_a_machine_gives_what_its_limits_leave(path: Path, ends: str, tmp_path: Path) -> None:
    """CPUs, threads and memory come out as the least over all limits, whatever laid the tree out or copied it."""
    case = json.loads(path.read_text())
    host, expect = case["host"], case["expect"]
    files = {name: text.replace("\n", ends) for name, text in case["files"].items()}
    root = lay_out(tmp_path, files | host_files(host["online_cpus"], host["affinity"]))

    snapshot = take_snapshot(root)

    found: dict[str, Any] = {
        "effective_cpus": snapshot.cpu.effective,
        "threads": snapshot.cpu.threads,
        "memory_limit_bytes": snapshot.memory.limit_bytes,
        "memory_high_bytes": snapshot.memory.high_bytes,
        "memory_available_bytes": snapshot.memory.available_bytes,
    }
    assert found == {name: expect[name] for name in found}, expect["why"]
    assert snapshot.cpu.host_count == host["online_cpus"]
    for source in (snapshot.cpu.source, snapshot.memory.source):
        assert source is not None
        assert (root / source.lstrip("/")).is_file(), "the source is a file that was there to read"


@pytest.mark.parametrize("name", sorted(_CAPTURED))
def test_a_container_that_was_recorded_whole_is_read_as_it_is(name: str, tmp_path: Path) -> None:
    """Real trees, links included: the files bound the CPUs; without meminfo, what is available is not known."""
    case = json.loads((_DATA / "captured" / f"{name}.json").read_text())
    note = case.pop("note")
    effective, limit = _CAPTURED[name]
    root = lay_out(tmp_path, case | host_files(note["os.cpu_count"], range(note["affinity"])))

    snapshot = take_snapshot(root)

    assert snapshot.cpu.effective == effective
    assert snapshot.cpu.threads == max(1, int(effective))
    assert snapshot.cpu.quota == _CAPTURED_QUOTAS.get(name)
    assert snapshot.memory.limit_bytes == limit
    assert snapshot.memory.available_bytes is None


@pytest.mark.parametrize("name", sorted(_CAPTURED))
def test_without_the_host_s_files_only_the_cgroup_speaks(name: str, tmp_path: Path) -> None:
    """No list of online CPUs: the host's count is unknown, never 0, and this machine's own is not used in its place."""
    case = json.loads((_DATA / "captured" / f"{name}.json").read_text())
    case.pop("note")

    cpu = take_snapshot(lay_out(tmp_path, case)).cpu

    known = [value for value in (cpu.quota, cpu.cpuset_count) if value is not None]
    assert (cpu.host_count, cpu.affinity_count) == (None, None)
    assert cpu.effective == min(known, default=None)
    assert cpu.threads >= 1


def test_every_recorded_machine_is_listed() -> None:
    """A tree added to the folder is not forgotten here."""
    assert {path.stem for path in (_DATA / "captured").glob("*.json")} == set(_CAPTURED)
    assert len(_COMPOSED) == 24
