"""Which layers of a deep network must be built: many that are alike need the same memory as a few of them.

ggml's allocator comes back to the same state after each of them, so the peak is reached in the first repeats. Compared
layer by layer on large synthetic networks, and on every recorded small one; short networks are built whole.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Sequence

from engines.llama_cpp.memory_launch import Launch
from engines.llama_cpp.memory_model import ModelShape
from engines.llama_cpp.memory_weights import layer_of

_LONGEST_PERIOD = 8
_KEPT_FIRST = 4
_KEPT_LAST = 2
_SHORT = 20


def layers_to_build(model: ModelShape, launch: Launch, short: int = _SHORT) -> tuple[int, ...]:
    """Indices of the layers, in order; all of them up to ``short`` layers."""
    count = len(model.layers)
    if count <= short:
        return tuple(range(count))
    return tuple(_kept(_signs(model, launch)))


def folded_signs(model: ModelShape, launch: Launch) -> Hashable:
    """What the layers that must be built are like: launches that agree in it, and in all else, build the same graph."""
    signs = _signs(model, launch)
    return tuple(signs[place] for place in (_kept(signs) if len(signs) > _SHORT else range(len(signs))))


def _kept(signs: Sequence[Hashable]) -> list[int]:
    kept: list[int] = []
    count = len(signs)
    place = 0
    while place < count:
        period, repeats = _longest_run(signs, place)
        if repeats > _KEPT_FIRST + _KEPT_LAST:
            kept += range(place, place + period * _KEPT_FIRST)
            place += period * (repeats - _KEPT_LAST)
        else:
            kept.append(place)
            place += 1
    return kept


def _signs(model: ModelShape, launch: Launch) -> Sequence[Hashable]:
    """What two layers must share to be alike: shape, place, and every tensor's kind and size."""
    tensors: defaultdict[int, list[Hashable]] = defaultdict(list)
    for name, tensor in model.tensors.items():
        layer = layer_of(name)
        if layer is not None:
            tensors[layer].append((name.partition(f"blk.{layer}.")[2], tensor.type_name, tensor.dims))
    moved = launch.choices.n_cpu_moe
    return [
        (shape, launch.places[place], place < moved, tuple(tensors[place])) for place, shape in enumerate(model.layers)
    ]


def _longest_run(signs: Sequence[Hashable], start: int) -> tuple[int, int]:
    """Period and number of repeats of the longest run that begins here."""
    best = (1, 1)
    for period in range(1, _LONGEST_PERIOD + 1):
        end = start + period
        while end < len(signs) and signs[end] == signs[end - period]:
            end += 1
        repeats = (end - start) // period
        if repeats * period > best[0] * best[1] and repeats > 1:
            best = (period, repeats)
    return best
