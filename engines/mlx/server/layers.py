"""What holds of a model's caches of keys and values before they are kept, cut or used again.

Works on the objects of ``mlx_lm.models.cache`` by what they show of themselves, and imports nothing of MLX. Unknown or
disagreeing offsets are a miss, never a guess.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from typing import Any

_ROTATING = "RotatingKVCache"
_BUFFERED = "BufferedRotatingKVCache"


def cached_prefix(layers: Sequence[Any], tokens: Sequence[int]) -> tuple[int, ...] | None:
    """The tokens that all layers hold: the first ones of what was fed. None: that can't be told, so nothing is kept.

    The last token of an answer may have been given out before it was fed back: the offsets decide, not the answer.
    """
    offsets = {_offset(layer) for layer in _flat(layers)}
    if len(offsets) != 1:
        return None
    (count,) = offsets
    if count is None or count <= 0 or count > len(tokens):
        return None
    return tuple(tokens[:count])


def matches_layout(layers: Sequence[Any], model: Sequence[Any]) -> bool:
    """Whether caches are exactly those of a model, layer by layer.

    The one wrapper that is known to behave like what it wraps is taken too; other subclasses (of batches, say) not.
    """
    ours, theirs = list(_flat(layers)), list(_flat(model))
    return len(ours) == len(theirs) > 0 and all(map(_same_kind, ours, theirs))


def cuttable(layers: Sequence[Any]) -> bool:
    """Whether all layers can be cut back to fewer tokens."""
    return all(layer.is_trimmable() for layer in layers)


def size_of(layers: Sequence[Any]) -> int:
    """Bytes of all layers."""
    return sum(int(layer.nbytes) for layer in layers)


def copied(layers: Sequence[Any], length: int) -> list[Any] | None:
    """A copy cut back to ``length`` tokens, of which the original knows nothing; None where it can't be cut so."""
    made = copy.deepcopy(list(layers))
    offsets = {_offset(layer) for layer in _flat(made)}
    (held,) = offsets if len(offsets) == 1 else (None,)
    if held is None or held < length:
        return None
    if held > length:
        if not cuttable(made):
            return None
        for layer in made:
            layer.trim(held - length)
        if any(_offset(layer) != length for layer in _flat(made)):
            return None
    return made


def _offset(layer: Any) -> int | None:
    offset = getattr(layer, "offset", None)
    return offset if isinstance(offset, int) and not isinstance(offset, bool) else None


def _flat(layers: Sequence[Any]) -> Iterator[Any]:
    """Layers, and those inside lists of layers."""
    for layer in layers:
        inner = getattr(layer, "caches", None)
        if isinstance(inner, list | tuple):
            yield from _flat(inner)
        else:
            yield layer


def _same_kind(ours: Any, theirs: Any) -> bool:
    mine, wanted = type(ours), type(theirs)
    if mine.__name__ == wanted.__name__:
        return True
    return wanted.__name__ == _ROTATING and mine.__name__ == _BUFFERED and isinstance(ours, wanted)
