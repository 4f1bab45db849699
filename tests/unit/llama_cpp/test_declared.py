"""What llama-server's log tells of memory, against recorded launches of two real builds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engines.declared import DeclaredBuffer, DeclaredMemory, DeviceAddress
from engines.llama_cpp.declared import read_declared
from tests.support.memory_rows import recorded_rows

MIB = 2**20
_WORDS = {"model": "model", "kv": "KV", "recurrent": "RS", "compute": "compute", "output": "output"}
_SUMS = {"model": "weights", "kv": "kv", "recurrent": "kv", "compute": "compute", "output": "compute"}


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (
            "0.01.137.753 I load_tensors:   CPU_Mapped model buffer size =    92.10 MiB",
            DeclaredBuffer("host", "weights", round(92.10 * MIB), mapped=True),
        ),
        (
            "load_tensors:   CPU_REPACK model buffer size =   105.47 MiB",
            DeclaredBuffer("host", "weights", round(105.47 * MIB)),
        ),
        (
            "0.01.141.277 I llama_kv_cache:        CPU KV buffer size =    45.00 MiB",
            DeclaredBuffer("host", "kv", 45 * MIB),
        ),
        (
            "llama_memory_recurrent:    Vulkan0 RS buffer size =     2.50 MiB",
            DeclaredBuffer("Vulkan0", "kv", round(2.5 * MIB)),
        ),
        ("sched_reserve: Vulkan_Host compute buffer size =     5.01 MiB", DeclaredBuffer("host", "compute", 5253366)),
        (
            "load_tensors: MTL0_Mapped model buffer size = 4000.00 MiB",
            DeclaredBuffer("MTL0", "weights", 4000 * MIB, mapped=True),
        ),
        (
            "llama_model_load_from_file_impl: using device CUDA0 (NVIDIA H200) (0000:01:00.0) - 143000 MiB free",
            DeviceAddress("CUDA0", "0000:01:00.0"),
        ),
        ("using device Vulkan0 (llvmpipe (LLVM 15.0.6, 256 bits)) (unknown id) - 2048 MiB free", None),
        ("llama_kv_cache: size =   45.00 MiB (  1024 cells,  30 layers,  2/2 seqs)", None),
        ("slot update: buffer size = many", None),
        ("", None),
    ],
)
def test_a_line_is_read_for_what_it_tells(line: str, expected: object) -> None:
    """The place, the part, and the rounded size; anything else is nothing."""
    assert read_declared(line) == expected


def _buffers(row: Mapping[str, Any]) -> list[tuple[str, str, int]]:
    return [
        (name, part, size) for name, parts in row["declared"].items() for part, size in parts.items() if part in _WORDS
    ]


def test_the_sum_is_what_recorded_launches_declared() -> None:
    """By place and part, within the two decimals of each line."""
    rows = recorded_rows()[::5]
    for row in rows:
        memory = DeclaredMemory()
        expected: dict[tuple[str, str], int] = {}
        for name, part, size in _buffers(row):
            line = f"0.01.000.000 I load: {name:>10} {_WORDS[part]} buffer size = {size / MIB:8.2f} MiB"
            found = read_declared(line)
            assert found is not None, line
            memory.add(found)
            place = "host" if name.startswith("CPU") or name.endswith("_Host") else name
            expected[place, _SUMS[part]] = expected.get((place, _SUMS[part]), 0) + size
        sums = {key: getattr(memory.places[key[0]], key[1]) for key in expected}
        assert sums == pytest.approx(expected, abs=0.06 * MIB)
    assert len(rows) > 100


@given(st.text())
def test_no_line_is_too_odd(text: str) -> None:
    """An engine may write anything."""
    read_declared(text)
    read_declared(f"{text} buffer size = {text} MiB using device {text} ({text})")
