"""Bytes of the caches of keys and values, of recurrent states, and of the output buffer.

Facts from llama.cpp's ``llama_kv_cache``, ``llama_kv_cache_iswa``, ``llama_memory_recurrent`` and
``llama_context::output_reserve``.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from engines.llama_cpp.graphs.backends import host_backend
from engines.llama_cpp.graphs.tensors import row_bytes
from engines.llama_cpp.memory_launch import CELLS, HOST, Launch, pad
from engines.llama_cpp.memory_model import LayerShape, ModelShape

_FLOAT = 4


@dataclass(frozen=True, slots=True)
class CacheGroup:
    """Layers that share the positions of their caches.

    Attributes:
        cells: tokens a stream.
        windowed: they see a window only.
    """

    cells: int
    layers: tuple[int, ...]
    windowed: bool


def cache_groups(model: ModelShape, launch: Launch) -> tuple[CacheGroup, ...]:
    """The whole-context group first, then the windowed one, where there are any windows."""
    if model.encoder or not any(layer.attends for layer in model.layers):
        return ()
    own = [place for place, layer in enumerate(model.layers) if layer.owns_cache]
    whole = tuple(place for place in own if model.layers[place].window is None)
    windowed = tuple(place for place in own if model.layers[place].window is not None)
    groups = [CacheGroup(launch.slot_context, whole, windowed=False)]
    if any(layer.window is not None for layer in model.layers):
        groups.append(CacheGroup(_window_cells(model, launch), windowed, windowed=True))
    return tuple(groups)


def _window_cells(model: ModelShape, launch: Launch) -> int:
    if launch.choices.full_windows:
        return launch.slot_context
    window = max(layer.window or 0 for layer in model.layers)
    sequences = launch.slots if launch.unified else 1
    return pad(min(launch.slot_context, window * sequences + launch.ubatch), CELLS)


def value_row(model: ModelShape, launch: Launch, layer: LayerShape) -> int:
    """Numbers of a token's values in one layer; without flash attention all layers get the widest one's."""
    if launch.choices.flash_attention:
        return layer.heads_kv * layer.value
    return max(other.heads_kv * other.value for other in model.layers)


def cache_bytes(model: ModelShape, launch: Launch) -> dict[int, int]:
    """Bytes of keys and values by place."""
    result: Counter[int] = Counter()
    for group in cache_groups(model, launch):
        for place in group.layers:
            row = _row_bytes(model, launch, model.layers[place])
            result[launch.cache_place(place)] += row * group.cells * launch.streams
    return dict(result)


def window_bytes(model: ModelShape, launch: Launch) -> int:
    """Bytes of one slot's windows, as a context checkpoint keeps them; 0 where windows keep the whole context."""
    if launch.choices.full_windows:
        return 0
    return sum(
        _row_bytes(model, launch, layer) * min(layer.window, launch.slot_context)
        for layer in model.layers
        if layer.owns_cache and layer.window is not None
    )


def _row_bytes(model: ModelShape, launch: Launch, layer: LayerShape) -> int:
    """Bytes of one token's keys and values in one layer."""
    choices = launch.choices
    row = row_bytes(choices.cache_type_k.upper(), layer.heads_kv * layer.key)
    if not model.mla:
        row += row_bytes(choices.cache_type_v.upper(), value_row(model, launch, layer))
    return row


def state_bytes(model: ModelShape, launch: Launch) -> dict[int, int]:
    """Bytes of recurrent states by place: always 32-bit, one for each slot, whatever the context."""
    result: Counter[int] = Counter()
    one = sequence_state_bytes(model)
    for place, layer in enumerate(model.layers):
        if layer.recurrent:
            result[launch.cache_place(place)] += one * launch.slots
    return dict(result)


def sequence_state_bytes(model: ModelShape) -> int:
    """Bytes of one sequence's state in one recurrent layer."""
    return _FLOAT * (model.conv_state + model.scan_state)


def output_bytes(model: ModelShape, launch: Launch) -> int:
    """Bytes of the buffer for logits and embeddings, on the host; pinned where a device computes the output."""
    row = model.vocabulary + (model.embedding if launch.choices.embeddings else 0)
    extra = host_backend(launch.choices.devices[0]).extra if launch.places[-1] != HOST else 0
    return _FLOAT * row * launch.slots + extra


def grown_output_bytes(model: ModelShape, launch: Launch) -> int:
    """Bytes that the output buffer grows by when texts of a whole batch are embedded or ranked.

    The buffer is declared with one row a slot. ``llama_context::output_reserve`` makes it anew for every token of the
    batch, logits over the whole vocabulary included, which nobody reads: a large vocabulary makes gigabytes of it.
    """
    choices = launch.choices
    if not choices.embeddings and model.causal:
        return 0
    rows = max(launch.slots, min(launch.batch, launch.context) if model.causal else launch.ubatch)
    return _FLOAT * (model.vocabulary + model.embedding) * (rows - launch.slots)
