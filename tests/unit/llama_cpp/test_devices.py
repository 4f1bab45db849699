"""What llama-server's short commands print, recorded from real builds and written from the engine's source."""

import json
from pathlib import Path

import pytest

from engines.contract import CommandOutput
from engines.llama_cpp.devices import parse_devices, parse_flags, parse_version

DATA = Path(__file__).parents[2] / "data"
LISTINGS = sorted((DATA / "devices").glob("*.json"))


@pytest.mark.parametrize("path", LISTINGS, ids=lambda path: path.stem)
def test_a_recorded_listing_is_read_as_it_should(path: Path) -> None:
    """Each recorded listing gives its devices, or nothing when it can't be trusted."""
    case = json.loads(path.read_text())
    text = path.with_suffix(".txt").read_text()
    listed = parse_devices(CommandOutput(case["exit"]["code"], text, ""))
    if not case["expect"]["ok"]:
        assert listed is None
        return
    assert listed is not None
    mib = 2**20
    assert [(row.id, row.kind, row.name, row.total_bytes, row.free_bytes, row.usable) for row in listed] == [
        (
            row["name"],
            row["kind"],
            row["description"],
            row["total_mib"] * mib,
            row["free_mib"] * mib,
            row["usable_for_offload"],
        )
        for row in case["expect"]["devices"]
    ]


def test_software_devices_are_known_as_such() -> None:
    """The CPU in disguise (llvmpipe) is listed, and marked."""
    text = "Available devices:\n  Vulkan0: llvmpipe (LLVM 15.0.6, 256 bits) (2048 MiB, 2048 MiB free)\n"
    listed = parse_devices(CommandOutput(0, text, ""))
    assert listed is not None
    assert [row.software for row in listed] == [True]


def test_help_gives_every_name_of_an_option() -> None:
    """Short, long and negated names of the recorded help are known; values and prose are not taken for names."""
    flags = parse_flags(CommandOutput(0, (DATA / "llama_cpp_help_b10068.txt").read_text(), ""))
    assert flags is not None
    wanted = {"-t", "--threads", "-ngl", "--gpu-layers", "--n-gpu-layers", "--no-kv-unified", "-no-kvu", "--cache-ram"}
    assert wanted <= flags
    assert "--load-mode" not in flags
    assert not any(flag.endswith((".", ",")) for flag in flags)


def test_no_help_means_unknown() -> None:
    """A build that prints nothing is not a build without flags."""
    assert parse_flags(CommandOutput(0, "", "error")) is None


def test_the_version_is_one_line_from_stderr() -> None:
    """llama-server prints its version on stderr."""
    output = CommandOutput(0, "", "version: 1 (571d0d5)\nbuilt with GNU 11.4.0 for Linux x86_64\n")
    assert parse_version(output) == "1 (571d0d5)"
    assert parse_version(CommandOutput(1, "", "boom")) is None
