"""Estimates for many drafts of one model: what they share is computed once, and nothing comes out otherwise."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from engines.llama_cpp.memory_compute import ComputeMemo
from engines.llama_cpp.memory_launch import LaunchChoices
from engines.llama_cpp.memory_model import ModelShape, model_shape
from engines.llama_cpp.memory_plan import memory_table
from engines.llama_cpp.memory_weights import expert_layers
from engines.llama_cpp.movable import movable
from engines.llama_cpp.settings import LlamaCppSettings
from tests.support.memory_rows import metadata_of_row, recorded_headers

_LAYERS = 26
_HEADERS = recorded_headers()


def _deep(architecture: str) -> ModelShape:
    """A recorded toy with its last layer again and again: deep enough for layers to be folded."""
    wanted = {"general.architecture": architecture, "general.file_type": 1}
    header = next(header for header in _HEADERS.values() if wanted.items() <= header["kv"].items())
    last = f"blk.{header['kv'][f'{architecture}.block_count'] - 1}."
    tensors: list[Any] = [tensor for tensor in header["tensors"] if not tensor[0].startswith("blk.")]
    for layer in range(_LAYERS):
        own = ([name.replace(last, f"blk.{layer}."), *rest] for name, *rest in header["tensors"] if last in name)
        tensors += own
    kv: Mapping[str, Any] = {**header["kv"], f"{architecture}.block_count": _LAYERS}
    shape = model_shape(metadata_of_row({**header, "kv": kv, "tensors": tensors}))
    assert shape is not None
    return shape


@pytest.mark.parametrize("architecture", ["qwen2", "qwen3moe"])
def test_what_is_remembered_changes_nothing(architecture: str) -> None:
    """Wherever the layers lie: the same table, to the byte, as one that is made afresh."""
    shape, memo = _deep(architecture), ComputeMemo()
    for layers in (0, 1, 2, 6, 13, 14, 25, 26, 27):
        for devices, experts in ((("CUDA0",), 0), (("CUDA0",), 9), (("CUDA0", "CUDA1"), 0)):
            choices = LaunchChoices(2048, 2, n_gpu_layers=layers, devices=devices, n_cpu_moe=experts)
            assert memory_table(shape, choices, memo) == memory_table(shape, choices)


def test_the_layers_that_devices_may_hold() -> None:
    """All blocks and the output; experts only where there are any."""
    dense, mixture = _deep("qwen2"), _deep("qwen3moe")
    header = next(iter(_HEADERS.values()))
    found = movable(metadata_of_row(header), mixture, LlamaCppSettings())
    assert (found.layers, found.expert_layers) == (_LAYERS + 1, _LAYERS)
    assert (expert_layers(dense), expert_layers(mixture)) == (0, _LAYERS)


@pytest.mark.parametrize(
    ("extra", "owned"),
    [
        ((), set()),
        (("-ngl", "5"), {"n_gpu_layers"}),
        (("--gpu-layers=5", "-dev", "none"), {"n_gpu_layers", "devices"}),
        (("--cpu-moe", "-ctk", "q8_0", "-c", "64", "-np", "2"), {"n_cpu_moe", "cache_type", "ctx_size", "slots"}),
        (("-sm", "row"), {"tensor_split"}),
    ],
)
def test_extra_arguments_own_choices(extra: tuple[str, ...], owned: set[str]) -> None:
    """In every spelling that the engine has for them."""
    header = next(iter(_HEADERS.values()))
    found = movable(metadata_of_row(header), _deep("qwen2"), LlamaCppSettings(extra_args=extra))
    assert found.owned == owned


def test_caches_that_can_be_smaller() -> None:
    """Quantised types need heads of whole blocks, and attention that the user has not set by hand."""
    header = next(iter(_HEADERS.values()))
    shape = _deep("qwen2")
    assert movable(metadata_of_row(header), shape, LlamaCppSettings()).cache_types == ("f16", "q8_0", "q4_0")
    by_hand = LlamaCppSettings(extra_args=("--flash-attn", "off"))
    assert movable(metadata_of_row(header), shape, by_hand).cache_types == ()
