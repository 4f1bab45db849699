"""What ``probe`` prints."""

from __future__ import annotations

import io
import json
from pathlib import Path

from rich.console import Console

from engines.contract import DeviceListing
from supervisor.cli.probe import devices_of, probe_document, render_probe
from supervisor.host.nvidia import read_nvml
from supervisor.host.snapshot import take_snapshot
from tests.fakes.host_tree import host_files, lay_out, unified
from tests.fakes.nvml import RecordedNvml

_CARD = DeviceListing("CUDA0", "NVIDIA [RTX]", "gpu", 24 * 2**30, None)
_SOFTWARE = DeviceListing("Vulkan0", "llvmpipe", "gpu", 2**31, 2**31, software=True)


def _machine(root: Path) -> Path:
    return lay_out(root, unified() | host_files(8) | {"/sys/fs/cgroup/cpu.max": "150000 100000\n"})


def _printed(document: dict[str, object]) -> str:
    console = Console(file=io.StringIO(), width=160)
    console.print(render_probe(document))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_the_document_has_the_names_that_people_script_against(tmp_path: Path) -> None:
    """Every documented key is there, also where its value is not known, and all of it is JSON."""
    document = json.loads(json.dumps(probe_document(take_snapshot(_machine(tmp_path)), devices_of("cuda", [_CARD]))))

    assert {"host_count", "affinity_count", "cpuset_count", "quota", "effective", "threads", "source"} <= set(
        document["cpu"]
    )
    assert {
        "host_total_bytes",
        "host_available_bytes",
        "limit_bytes",
        "high_bytes",
        "available_bytes",
        "source",
    } <= set(document["memory"])
    assert document["cpu"]["effective"] == 1.5
    assert document["memory"]["available_bytes"] is None
    assert document["devices"] == [
        {
            "id": "CUDA0",
            "build": "cuda",
            "name": "NVIDIA [RTX]",
            "kind": "gpu",
            "pool": "gpu-nvidia-rtx",
            "unified": None,
            "total_bytes": 24 * 2**30,
            "free_bytes": None,
            "source": "device listing of build cuda",
        }
    ]


def test_software_devices_are_listed_as_the_host_s_memory() -> None:
    """What llvmpipe draws, it draws on the CPU: its pool is the host."""
    (device,) = devices_of("vulkan", [_SOFTWARE])

    assert (device.pool, device.unified) == ("host", True)


def test_a_listing_that_cannot_be_trusted_gives_no_rows() -> None:
    """None is not an empty machine, and makes no row."""
    assert devices_of("cuda", None) == ()


def test_people_see_the_figures_and_the_file_behind_them(tmp_path: Path) -> None:
    """The number of threads, the arithmetic, its file, and names with brackets as they are."""
    printed = _printed(probe_document(take_snapshot(_machine(tmp_path)), devices_of("cuda", [_CARD])))

    assert "1.5 of 8 CPUs, threads: 1" in printed
    assert "quota 150000/100000, in /sys/fs/cgroup/cpu.max" in printed
    assert "NVIDIA [RTX]" in printed


def test_a_machine_that_says_nothing_is_shown_as_unknown(tmp_path: Path) -> None:
    """No figure is made up."""
    printed = _printed(probe_document(take_snapshot(tmp_path), ()))

    assert "unknown of unknown CPUs" in printed
    assert "no file says" in printed
    assert "none listed by any build" in printed


def test_a_card_that_the_system_knows_shows_its_address_and_what_is_free() -> None:
    """What a build said is free was true only when it was asked."""
    listed = DeviceListing("CUDA0", "NVIDIA H200", "gpu", 143167 * 2**20, 143000 * 2**20)
    (row,) = devices_of("cuda", [listed], read_nvml(RecordedNvml("h200")).cards)

    assert (row.pool, row.unified, row.free_bytes) == ("gpu-0000:01:00.0", False, (143771 - 41000 - 700) * 2**20)
    assert (row.total_bytes, row.source) == (143167 * 2**20, "NVML, device listing of build cuda")
