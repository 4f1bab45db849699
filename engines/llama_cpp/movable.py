"""What of a launch of llama-server may lie elsewhere or be made smaller."""

from __future__ import annotations

from collections.abc import Mapping

from engines.contract import ModelMetadata, Movable
from engines.llama_cpp.extra_args import flag_of
from engines.llama_cpp.memory_model import ModelShape
from engines.llama_cpp.memory_weights import expert_layers
from engines.llama_cpp.settings import LlamaCppSettings

# Caches of these types are stored in blocks of 32 numbers, and llama-server refuses a head that they don't divide.
_SMALLER_TYPES = ("f16", "q8_0", "q4_0")
_BLOCK = 32
_OWNED: Mapping[str, tuple[str, ...]] = {
    "devices": ("-dev", "--device"),
    "n_gpu_layers": ("-ngl", "--gpu-layers", "--n-gpu-layers"),
    "tensor_split": ("-ts", "--tensor-split", "-sm", "--split-mode", "-mg", "--main-gpu"),
    "n_cpu_moe": ("-ncmoe", "--n-cpu-moe", "-cmoe", "--cpu-moe", "-ot", "--override-tensor"),
    "kv_offload": ("-nkvo", "--no-kv-offload", "--no-op-offload"),
    "ctx_size": ("-c", "--ctx-size"),
    "slots": ("-np", "--parallel"),
    "cache_type": ("-ctk", "--cache-type-k", "-ctv", "--cache-type-v"),
}
_ATTENTION = ("-fa", "--flash-attn")


def movable(metadata: ModelMetadata, shape: ModelShape | None, settings: LlamaCppSettings) -> Movable:
    """See ``Movable``; ``shape`` is None where the header says too little."""
    flags = frozenset(flag_of(word) for word in settings.extra_args or () if word.startswith("-"))
    owned = frozenset(choice for choice, names in _OWNED.items() if flags & set(names))
    if shape is None:
        return Movable(metadata.block_count and metadata.block_count + 1, 0, (), owned)
    return Movable(
        layers=len(shape.layers) + shape.number("nextn_predict_layers") + 1,
        expert_layers=expert_layers(shape),
        cache_types=_SMALLER_TYPES if _can_be_quantised(shape) and not flags & set(_ATTENTION) else (),
        owned=owned,
    )


def _can_be_quantised(shape: ModelShape) -> bool:
    """Heads must fill whole blocks. A type is smaller only in order, so others than these are left as they are."""
    cached = [layer for layer in shape.layers if layer.owns_cache]
    return bool(cached) and all(layer.key % _BLOCK == 0 and layer.value % _BLOCK == 0 for layer in cached)
