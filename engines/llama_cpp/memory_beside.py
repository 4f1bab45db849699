"""Memory of the files that go with a model: a projector's, and a draft model's, which has a context of its own.

Facts from llama.cpp's ``common_base_params_to_speculative`` and ``tools/mtmd/clip.cpp``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace

from engines.contract import ModelMetadata
from engines.llama_cpp.memory_compute import ComputeMemo
from engines.llama_cpp.memory_host import base_bytes
from engines.llama_cpp.memory_launch import LaunchChoices
from engines.llama_cpp.memory_model import ModelShape
from engines.llama_cpp.memory_plan import HOST_POOL, Buffers, MemoryTable, memory_table

_FLOAT = 4
# Rows of a patch that live at once: three beside the feed-forward part's, or six while it attends.
_BESIDE_FEED_FORWARD = 3
_ATTENDING = 6
# Projectors for pictures of any size reserve for so many patches: 46 x 46 tokens of 2 x 2 patches.
_ANY_SIZE = 4 * 46 * 46
_FIXED = frozenset(
    {"gemma3", "mlp", "mlp_norm", "ldp", "ldpv2", "idefics3", "resampler", "internvl", "llama4", "janus_pro"}
)
_DRAFT_TYPE = "f16"  # of its caches, whatever the model's are
_LONGEST = 2**16


def projector_compute(projector: ModelMetadata) -> int:
    """Bytes that a projector computes in, for its largest picture; what reads sound only is left out.

    Within 5 % of four toys that see pictures of one size (b10068); those of any size were not compared.
    """
    number = {
        key.rpartition(".")[2]: value for key, value in projector.fields.items() if key.startswith("clip.vision.")
    }
    size, patch = number.get("image_size"), number.get("patch_size")
    width, inner = number.get("embedding_length"), number.get("feed_forward_length")
    sizes = [value for value in (size, patch, width, inner) if isinstance(value, int) and 0 < value < _LONGEST]
    if len(sizes) < len((size, patch, width, inner)):
        return 0
    side, step, row, wide = sizes
    patches = (side // step) ** 2
    if projector.fields.get("clip.projector_type", projector.fields.get("clip.vision.projector_type")) not in _FIXED:
        patches = max(patches, _ANY_SIZE)
    return _FLOAT * patches * max(wide + _BESIDE_FEED_FORWARD * row, _ATTENDING * row)


def draft_choices(choices: LaunchChoices) -> LaunchChoices:
    """What a draft model is launched with beside the model: it lies on the first device, or on the host, as a whole."""
    on_device = bool(choices.devices) and choices.n_gpu_layers != 0
    return replace(
        choices,
        devices=choices.devices[:1] if on_device else (),
        n_gpu_layers=None,
        shares=(),
        n_cpu_moe=0,
        cache_type_k=_DRAFT_TYPE,
        cache_type_v=_DRAFT_TYPE,
        embeddings=False,
        pooling=None,
        cache_ram=0,
        ctx_checkpoints=0,
        projector_bytes=0,
        projector_compute=0,
        draft_tokens=0,
    )


def with_draft(table: MemoryTable, shape: ModelShape, memo: ComputeMemo | None) -> MemoryTable:
    """The table of the model with what its draft model takes, which the log tells in lines of the same kinds."""
    second = memory_table(shape, draft_choices(table.launch.choices), memo)
    base = base_bytes(second.launch)
    by_place = {
        place: _added(buffers, second.by_place[place], base if place == HOST_POOL else 0)
        if place in second.by_place
        else buffers
        for place, buffers in table.by_place.items()
    }
    ready = _both(table.ready_bytes, second.ready_bytes, base)
    first = _both(table.first_request_bytes, second.first_request_bytes, base)
    margin = {place: second.margin.get(place, 0) for place in table.upper}
    upper = {place: size + margin[place] for place, size in table.upper.items()}
    return replace(table, by_place=by_place, ready_bytes=ready, first_request_bytes=first, upper=upper)


def _both(one: int | None, other: int | None, base: int) -> int | None:
    return None if one is None or other is None else one + other - base


def _added(one: Buffers, other: Buffers, base: int) -> Buffers:
    sums: Mapping[str, int | None] = {
        part.name: None if None in (left := (getattr(one, part.name), getattr(other, part.name))) else sum(left)
        for part in fields(Buffers)
    }
    both = Buffers(**sums)
    return both if both.program is None else replace(both, program=both.program - base)
