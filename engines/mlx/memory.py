"""Predicted memory of a launch of the MLX server, from the model's config and its index.

MLX reads weights into memory of its own: nothing is mapped. Caches of answers that are computed together are as long
as the longest of them, and grow by steps of 256 tokens. On Apple silicon all of it is memory that the GPU may wire.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from engines.contract import Choice, Estimator, MemoryEstimate, ModelMetadata, PlanDraft
from engines.mlx.folders import CONFIG, model_files, read_metadata
from engines.mlx.settings import MlxSettings
from engines.vocabulary import ModelFileError

HOST = "host"
DEFAULT_CACHE_RAM = 256
DEFAULT_PREFILL_STEP = 512
# Bytes that MLX keeps of what it has freed, until mlx-lm gives them back (each 512 steps, and after a prompt). A bound
# of the server's own (256 MiB) cost 16 streams of a random model of 30 MB 40 % of their speed.
FREED_BYTES = 256 * 2**20
# Python with MLX, mlx-lm and transformers, measured on Linux without a model: 84 to 105 MB.
PROGRAM_BYTES = 112 * 2**20
_STEP = 256
_HALF = 2
_GROUP = 64
# Scale and bias of a group of a quantised cache.
_GROUP_BYTES = 4
_FULL = "full_attention"
# Architectures whose layers keep a window of the context only, in ``mlx_lm``; others keep all, whatever configs say.
_WINDOWED = frozenset(
    {
        "afmoe",
        "baichuan_m1",
        "cohere2",
        "exaone4",
        "exaone_moe",
        "gemma3",
        "gemma3_text",
        "gemma3n",
        "gemma4",
        "gemma4_text",
        "gpt_oss",
        "laguna",
        "mellum",
        "mimo_v2_flash",
        "ministral3",
        "olmo3",
        "step3p5",
    }
)
# Those that keep the compressed form of keys and values, and those whose compressed form is unfolded first.
_LATENT = frozenset({"deepseek_v3", "deepseek_v32", "glm4_moe_lite", "kimi_linear", "kimi_k25", "longcat_flash"})


@dataclass(frozen=True, slots=True)
class CacheShape:
    """The cache of keys and values of one sequence.

    Attributes:
        per_token: bytes of a token in a layer, in the model's own precision.
        full: layers that keep every token.
        windowed: layers that keep a window.
        window: its tokens.
    """

    per_token: int
    full: int
    windowed: int = 0
    window: int = 0

    def bytes(self, tokens: int, kv_bits: int | None = None) -> int:
        """Of a sequence of so many tokens, rounded up as it grows."""
        size = self.per_token
        if kv_bits is not None:
            numbers = self.per_token // _HALF
            size = numbers * kv_bits // 8 + numbers * _GROUP_BYTES // _GROUP
        kept = self.full * _rounded(tokens) + self.windowed * _rounded(min(tokens, self.window))
        return size * kept


def cache_shape(metadata: ModelMetadata) -> CacheShape | None:
    """What a token takes; None where the config says too little."""
    layers = metadata.block_count
    per_token = _per_token(metadata)
    if layers is None or per_token is None:
        return None
    window = metadata.fields.get("sliding_window")
    if metadata.architecture not in _WINDOWED or not isinstance(window, int) or window <= 0:
        return CacheShape(per_token, layers)
    types = metadata.layout.get("layer_types", ())
    pattern = metadata.fields.get("sliding_window_pattern")
    if types:
        full = sum(1 for kind in types if kind == _FULL)
    elif isinstance(pattern, int) and pattern > 0:
        full = layers // pattern
    else:
        full = layers
    return CacheShape(per_token, full, layers - full, window)


def _per_token(metadata: ModelMetadata) -> int | None:
    fields, heads = metadata.fields, metadata.head_count
    rank, rope = fields.get("kv_lora_rank"), fields.get("qk_rope_head_dim")
    if isinstance(rank, int) and isinstance(rope, int):
        if metadata.architecture in _LATENT:
            return (rank + rope) * _HALF
        plain, value = fields.get("qk_nope_head_dim"), fields.get("v_head_dim")
        if isinstance(plain, int) and isinstance(value, int) and heads is not None:
            return heads * (plain + rope + value) * _HALF
    if metadata.head_count_kv is None:
        return None
    width, kv_heads = _head_width(metadata), max(metadata.head_count_kv)
    return None if width is None else kv_heads * 2 * width * _HALF


def _head_width(metadata: ModelMetadata) -> int | None:
    if metadata.key_length is not None:
        return metadata.key_length
    if metadata.embedding_length is None or metadata.head_count is None:
        return None
    return metadata.embedding_length // metadata.head_count


def estimate_memory(draft: PlanDraft) -> Mapping[str, MemoryEstimate]:
    """Bytes by place: ``host``, and on Apple silicon the device too, for all that its GPU works on."""
    return _estimate(draft, draft_metadata)


def draft_metadata(folder: str) -> ModelMetadata | None:
    """Facts of a draft model; None where it can't be read: then the server says so, and does without."""
    try:
        return read_metadata(model_files(Path(folder) / CONFIG))
    except (ModelFileError, OSError):
        return None


def _estimate(draft: PlanDraft, read: Callable[[str], ModelMetadata | None]) -> Mapping[str, MemoryEstimate]:
    settings = draft.settings if isinstance(draft.settings, MlxSettings) else MlxSettings()
    metadata = draft.metadata
    shape = cache_shape(metadata)
    context = draft.ctx_size or 0
    tokens = context if settings.max_kv_size is None else min(context, settings.max_kv_size)
    kv = None if shape is None else shape.bytes(tokens, settings.kv_bits) * draft.slots
    weights = metadata.tensor_bytes
    drafter = None if settings.draft_model is None else read(settings.draft_model)
    if drafter is not None:  # its cache keeps the whole context, unquantised
        weights += drafter.tensor_bytes
        beside = cache_shape(drafter)
        kv = None if kv is None or beside is None else kv + beside.bytes(context) * draft.slots
    kept = (DEFAULT_CACHE_RAM if settings.cache_ram is None else settings.cache_ram) * 2**20
    compute = _compute(draft, settings)
    device = draft.devices[0] if draft.devices else None
    working = MemoryEstimate(weights=weights, kv=kv, compute=compute, upper=_upper(kv, compute))
    if device is None:
        other = PROGRAM_BYTES + kept + FREED_BYTES
        return {HOST: MemoryEstimate(working.weights, kv, compute, other, mapped=0, upper=working.upper)}
    freed = MemoryEstimate(working.weights, kv, compute, kept + FREED_BYTES, upper=working.upper)
    return {HOST: MemoryEstimate(other=PROGRAM_BYTES), device: freed}


def estimator(_metadata: ModelMetadata) -> Estimator:
    """Of many drafts of one launch: its draft model is read once."""
    read = functools.cache(draft_metadata)
    return lambda draft: _estimate(draft, read)


def explained(draft: PlanDraft) -> Iterator[Choice]:
    """What the parts of the estimate are made of, in words for the owner."""
    settings = draft.settings if isinstance(draft.settings, MlxSettings) else MlxSettings()
    metadata, shape = draft.metadata, cache_shape(draft.metadata)
    named = "" if metadata.quantization == "unknown" else f" of {metadata.quantization}"
    files = f"{metadata.split_count} files" if metadata.split_count > 1 else "one file"
    weights = f"tensors{named} in {files}, by their heads; MLX reads them into memory of its own"
    if settings.draft_model is not None:
        weights += "; those of the draft model are counted too"
    yield Choice("weights", _size(metadata.tensor_bytes), weights)
    if shape is None:
        yield Choice("kv", None, "the config says too little to tell what a token takes")
        return
    layers = f"{shape.full} layers"
    if shape.windowed:
        layers += f" that keep all and {shape.windowed} that keep {shape.window} tokens"
    bits = "" if settings.kv_bits is None else f", quantised to {settings.kv_bits} bits"
    tokens = draft.ctx_size or 0
    if settings.max_kv_size is not None and settings.max_kv_size < tokens:
        tokens = settings.max_kv_size
    words = f"a token takes {shape.per_token} bytes in each of {layers}{bits}; {tokens} tokens, {draft.slots} at once"
    yield Choice("kv", _size(shape.bytes(tokens, settings.kv_bits) * draft.slots), words)
    kept = DEFAULT_CACHE_RAM if settings.cache_ram is None else settings.cache_ram
    parts = f"Python with its packages {_size(PROGRAM_BYTES)}, what MLX keeps of freed memory {_size(FREED_BYTES)}"
    yield Choice("other", _size(PROGRAM_BYTES + FREED_BYTES + kept * 2**20), f"{parts}, prompts kept {kept} MiB")


def _size(count: int) -> str:
    return f"{count / 2**30:.1f} GiB" if count >= 2**30 else f"{count / 2**20:.1f} MiB"


def _compute(draft: PlanDraft, settings: MlxSettings) -> int | None:
    """Working buffers of a piece of a prompt: activations, scores of attention, and the scores of all tokens."""
    metadata = draft.metadata
    width, heads = metadata.embedding_length, metadata.head_count
    if width is None or heads is None:
        return None
    step = settings.prefill_step or DEFAULT_PREFILL_STEP
    inner = metadata.fields.get("intermediate_size")
    wide = max(width, inner if isinstance(inner, int) else 0)
    activations = step * wide * _HALF * 6
    # Without a device's fused kernel all scores of a layer are in memory at once.
    attention = 0 if draft.devices else heads * step * (draft.ctx_size or 0) * _HALF * 2
    scores = (draft.slots + 1) * (metadata.vocabulary_size or 0) * 4 * 3
    return activations + attention + scores


def _upper(kv: int | None, compute: int | None) -> int:
    """A cache that grows is copied, one layer at a time, and the rest is an estimate."""
    return (kv or 0) // 8 + (compute or 0) // 2 + 32 * 2**20


def _rounded(tokens: int) -> int:
    return -(-tokens // _STEP) * _STEP
