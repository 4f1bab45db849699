"""Predicted memory of a llama-server launch on the CPU: a first estimate, without devices."""

from __future__ import annotations

from collections.abc import Mapping

from engines.contract import MemoryEstimate, PlanDraft

_MIB = 2**20
# Bytes an element takes in each KV type: quantised types are blocks of 32 with a scale of 2 bytes (and a minimum).
_CACHE_BYTES = {
    "f32": 4.0,
    "f16": 2.0,
    "bf16": 2.0,
    "q8_0": 34 / 32,
    "q5_1": 24 / 32,
    "q5_0": 22 / 32,
    "q4_1": 20 / 32,
    "q4_0": 18 / 32,
    "iq4_nl": 18 / 32,
}


def estimate_memory(draft: PlanDraft) -> Mapping[str, MemoryEstimate]:
    """Weights as in the file, KV from the header; compute and other buffers are not known here yet."""
    weights = draft.metadata.tensor_bytes
    return {"host": MemoryEstimate(weights=weights, kv=_kv_bytes(draft))}


def _kv_bytes(draft: PlanDraft) -> int | None:
    meta = draft.metadata
    layers, heads, embedding = meta.block_count, meta.head_count, meta.embedding_length
    if not layers or not heads or not embedding or draft.ctx_size is None:
        return None
    key, value = meta.key_length or embedding // heads, meta.value_length or embedding // heads
    per_layer = meta.head_count_kv or (heads,)
    kv_heads = sum(per_layer) if len(per_layer) == layers else per_layer[0] * layers
    cells = draft.ctx_size * (1 if getattr(draft.settings, "kv_unified", None) else draft.slots)
    return round(cells * kv_heads * (key + value) * _CACHE_BYTES.get(draft.cache_type or "f16", 2.0))
