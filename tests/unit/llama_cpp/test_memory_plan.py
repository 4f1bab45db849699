"""The memory table of a launch, and what the planner gets of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engines.contract import BuildFacts, DeviceListing, ModelMetadata, PlanDraft
from engines.llama_cpp.adapter import LlamaCppAdapter
from engines.llama_cpp.memory import build_number, estimate_memory, table_of
from engines.llama_cpp.memory_launch import LaunchChoices
from engines.llama_cpp.memory_model import model_shape
from engines.llama_cpp.memory_plan import full_batch_bytes, memory_table
from engines.llama_cpp.settings import LlamaCppSettings
from tests.support.llama_drafts import llama_draft
from tests.support.memory_rows import metadata_of_row, recorded_headers

_MIB = 2**20
_CARD = DeviceListing("CUDA0", "a card", "gpu", 2**34, 2**34)
_SOFTWARE = DeviceListing("Vulkan0", "llvmpipe", "gpu", 2**31, 2**31, software=True)
_HEADERS = recorded_headers()


def _header(architecture: str) -> Mapping[str, Any]:
    """A recorded model of plain halves, so that nothing of it is repacked."""
    wanted = {"general.architecture": architecture, "general.file_type": 1}
    return next(header for header in _HEADERS.values() if wanted.items() <= header["kv"].items())


def _draft(metadata: ModelMetadata, **changes: Any) -> PlanDraft:
    build = BuildFacts("10068 (abc)", None, (_CARD, _SOFTWARE))
    return llama_draft(metadata, (Path("/m.gguf"),), **{"build": build, "ctx_size": 4096, **changes})


@pytest.fixture(scope="module")
def llama() -> ModelMetadata:
    """A plain transformer."""
    return metadata_of_row(_header("llama"))


def test_the_adapter_gives_the_table_by_pool(llama: ModelMetadata) -> None:
    """On the CPU all is on the host, and mapped weights are told apart from the process's own memory."""
    pools = LlamaCppAdapter().estimate_memory(_draft(llama))
    host = pools["host"]
    assert pools.keys() == {"host"}
    assert host.mapped == host.weights
    assert host.total is not None
    assert host.anonymous == host.total - (host.mapped or 0)
    assert host.upper == 0


def test_extra_arguments_count(llama: ModelMetadata) -> None:
    """The estimate is made from the very command line, so that what a user adds is in it."""
    plain, more = _draft(llama), _draft(llama, settings=LlamaCppSettings(extra_args=("--cache-type-k=q8_0",)))
    first, second = (estimate_memory(draft)["host"].kv or 0 for draft in (plain, more))
    assert second == first * (1 + 34 / 64) / 2


def _cache_ram(draft: PlanDraft) -> str:
    argv = LlamaCppAdapter().command(draft, BuildFacts(None, None, None)).argv
    return argv[argv.index("--cache-ram") + 1]


def test_no_second_copy_is_made_of_what_files_keep(llama: ModelMetadata) -> None:
    """Prevents: whoever took over the slot of 6,000 tokens waited 130 ms for a copy in memory, file or no file."""
    kept = {"slot_files": Path("/state/kv")}
    assert _cache_ram(_draft(llama, **kept)) == "0"
    assert _cache_ram(_draft(llama, **kept, settings=LlamaCppSettings(cache_ram="512MiB"))) == "512"
    assert _cache_ram(_draft(llama)) == "256"


@pytest.mark.parametrize("architecture", ["gemma3", "mamba"])
def test_what_files_can_not_restore_is_copied(architecture: str) -> None:
    """Windows and recurrent states."""
    metadata = metadata_of_row(_header(architecture))
    assert _cache_ram(_draft(metadata, slot_files=Path("/state/kv"))) == "256"


def test_the_prompt_cache_is_counted(llama: ModelMetadata) -> None:
    """It grows unseen, up to what the plan says."""
    tables = [table_of(_draft(llama, settings=LlamaCppSettings(cache_ram=size))) for size in ("0", "512MiB")]
    assert [table.by_place["host"].prompt_cache for table in tables if table is not None] == [0, 512 * _MIB]


def test_logits_of_a_whole_batch_are_counted_where_texts_are_embedded() -> None:
    """Nothing declares them, and nobody reads them: 14 MiB of a toy, gigabytes with a vocabulary of 250,000."""
    shape = model_shape(metadata_of_row(_header("bert")))
    assert shape is not None
    choices = LaunchChoices(ctx_size=2048, slots=1, embeddings=True, build_number=10435, has_device_backend=True)
    table = memory_table(shape, choices)
    assert table.by_place["host"].grown_output == 4 * (8192 + 384) * 511
    assert full_batch_bytes(shape, table) == pytest.approx(38.8 * _MIB, abs=3 * _MIB)  # as seen of b10068
    chat = memory_table(shape, replace(choices, embeddings=False)).by_place["host"]
    assert chat.grown_output == table.by_place["host"].grown_output  # an encoder can do nothing else


def test_a_first_batch_does_not_touch_what_a_full_context_needs(llama: ModelMetadata) -> None:
    """Masks are as long as the context: they are reserved at once, and written as far as it is filled."""
    shape = model_shape(llama)
    assert shape is not None
    tables = [memory_table(shape, LaunchChoices(ctx_size=size, slots=1)) for size in (1024, 65536)]
    computed = [table.by_place["host"].compute or 0 for table in tables]
    firsts = [full_batch_bytes(shape, table) or 0 for table in tables]
    kv = [table.by_place["host"].kv or 0 for table in tables]
    assert computed[1] > computed[0] + 60 * _MIB
    assert firsts[1] - kv[1] == firsts[0] - kv[0]
    assert all(table.by_place["host"].grown_output == 0 for table in tables)


def test_layers_on_a_device_move_their_bytes_there(llama: ModelMetadata) -> None:
    """All layers: no cache is left on the host; the device's own context is not known."""
    table = table_of(_draft(llama, devices=("CUDA0",), n_gpu_layers=99))
    assert table is not None
    host, card = table.by_place["host"], table.by_place["CUDA0"]
    assert (host.kv, card.program) == (0, None)
    assert (card.kv or 0) > 0
    assert (card.weights or 0) > (host.mapped or 0)


def test_a_strange_device_and_parted_layers_get_a_margin(llama: ModelMetadata) -> None:
    """Kinds never compared with a real launch get more than their estimate, and a CUDA device its context too."""
    parted = estimate_memory(_draft(llama, devices=("CUDA0",), n_gpu_layers=3))["CUDA0"]
    whole = estimate_memory(_draft(llama, devices=("CUDA0",), n_gpu_layers=99))["CUDA0"]
    known = estimate_memory(_draft(llama, devices=("Vulkan0",), n_gpu_layers=3))["Vulkan0"]
    assert parted.compute is not None
    assert parted.upper == parted.compute // 2 + 512 * _MIB
    assert whole.compute is not None
    assert whole.upper == whole.compute // 4 + 512 * _MIB
    assert known.compute is not None
    assert known.upper == known.compute // 10


def test_devices_left_to_the_engine_are_the_builds_real_ones(llama: ModelMetadata) -> None:
    """Software devices are used only where a model names them."""
    assert estimate_memory(_draft(llama, devices=None)).keys() == {"host", "CUDA0"}


def test_several_devices_share_by_their_shares(llama: ModelMetadata) -> None:
    """``--tensor-split`` parts layers and caches."""
    build = BuildFacts(None, None, (_CARD, replace(_CARD, id="CUDA1")))
    settings = LlamaCppSettings(extra_args=("--tensor-split", "3,1"))
    pools = estimate_memory(_draft(llama, devices=("CUDA0", "CUDA1"), settings=settings, build=build))
    first, second = (pools[name].kv for name in ("CUDA0", "CUDA1"))
    assert first is not None
    assert second
    assert first > 2 * second


def test_a_network_that_is_not_modelled_has_no_compute_but_a_margin(llama: ModelMetadata) -> None:
    """Caches and weights are known from the header; computing is not, and is not said to be nothing."""
    strange = replace(llama, architecture="t5encoder")
    fields = {key.replace("llama.", "t5encoder."): value for key, value in llama.fields.items()}
    host = estimate_memory(_draft(replace(strange, fields=fields)))["host"]
    assert host.compute is None
    assert (host.upper or 0) > _MIB
    assert host.weights is not None


def test_a_type_that_is_not_known_leaves_the_size_of_the_file(llama: ModelMetadata) -> None:
    """Newer than this reader: all its bytes count, on the host."""
    tables = tuple(table.replace(" F16 ", " type_99 ") for table in llama.layout["tensors"])
    host = estimate_memory(_draft(replace(llama, layout={**llama.layout, "tensors": tables})))["host"]
    assert (host.weights, host.mapped, host.compute) == (llama.tensor_bytes, llama.tensor_bytes, None)


def test_metadata_without_a_layout_still_has_weights_and_caches(llama: ModelMetadata) -> None:
    """As from a cache of an older version."""
    full, bare = _draft(llama), _draft(replace(llama, layout={}))
    assert estimate_memory(bare)["host"].weights == llama.tensor_bytes
    assert estimate_memory(bare)["host"].kv == estimate_memory(full)["host"].kv


def test_a_header_that_says_nothing_leaves_the_weights() -> None:
    """No layers, no width: nothing else is known."""
    metadata = ModelMetadata("gguf", "llama", file_bytes=10, tensor_bytes=8)
    assert (pools := estimate_memory(_draft(metadata)))["host"].total == 8
    assert pools["host"].kv is None


def test_recurrent_states_do_not_grow_with_the_context() -> None:
    """They are one for each slot, whatever the context."""
    shape = model_shape(metadata_of_row(_header("mamba2")))
    assert shape is not None
    sizes = [memory_table(shape, LaunchChoices(ctx_size=size, slots=3)).by_place["host"] for size in (1024, 65536)]
    assert sizes[0].recurrent == sizes[1].recurrent
    assert (sizes[0].kv, sizes[1].kv) == (0, 0)
    assert (sizes[1].checkpoints or 0) > (sizes[0].checkpoints or 0)


@pytest.mark.parametrize(
    ("version", "flags", "number"),
    [
        ("10068 (1a2b3c4)", None, 10068),
        ("b11434", frozenset({"--no-mmap"}), 11434),
        ("1 (571d0d5)", frozenset({"--mmap", "--no-mmap"}), 10435),
        ("1 (571d0d5)", frozenset({"--load-mode"}), None),
        ("1 (571d0d5)", None, None),
        (None, None, None),
    ],
)
def test_the_builds_number_is_read_from_what_it_says(
    version: str | None, flags: frozenset[str] | None, number: int | None
) -> None:
    """It decides how llama.cpp reserves for its inputs; packaged builds don't know theirs, but their flags tell."""
    assert build_number(BuildFacts(version, flags, None)) == number


@given(
    model=st.sampled_from(sorted(_HEADERS)),
    changes=st.dictionaries(st.integers(0, 60), st.integers(0, 2**33), max_size=3),
    layers=st.one_of(st.none(), st.integers(0, 200)),
    slots=st.integers(1, 64),
)
def test_any_numbers_in_a_header_give_an_estimate(
    model: str, changes: dict[int, int], layers: int | None, slots: int
) -> None:
    """A bad model file never stops the planner: numbers that can't be meant leave unknowns, not exceptions."""
    metadata = metadata_of_row(_HEADERS[model])
    keys = [key for key, value in metadata.fields.items() if isinstance(value, int)]
    fields = {**metadata.fields, **{keys[place % len(keys)]: value for place, value in changes.items()}}
    draft = _draft(replace(metadata, fields=fields), devices=("CUDA0",), n_gpu_layers=layers, slots=slots)
    pools = estimate_memory(draft)
    assert all(pool.total is None or pool.total >= 0 for pool in pools.values())
