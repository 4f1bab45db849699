"""Dense layers on a processor, multiplied by numpy's BLAS. Runs in the engine's thread.

MLX's wheels for processors bring the reference BLAS and plain loops for half precision: about 1 GFLOP/s, so that 16
rows take nearly 16 times as long as one. Measured on two cores, 768 by 768, 16 rows: float16 6.4 ms, bfloat16 4.5 ms,
float32 9.4 ms; numpy's OpenBLAS takes 0.26 ms. Half-precision weights stay as they are in memory; they are widened a
block at a time, into a buffer that fits a cache. Sums are of float32, so nothing is less exact than before.
"""

from __future__ import annotations

import logging
import math
from typing import Any

import mlx.core as mx
import numpy as np
from mlx import nn
from mlx.utils import tree_unflatten

_log = logging.getLogger(__name__)
# Numbers of a block: 512 KiB as float32.
_BLOCK = 2**17
# Below so many products of numbers MLX's own loops are as quick as the way to numpy and back, which ends its laziness.
# A weight with fewer numbers (1 MiB as float32) is held widened beside its own form.
_FEW = 2**18
# float16 to float32: the bits moved to their place, and the exponents' bias mended by a product, which is exact.
_SIGN_AND_REST = np.int32(np.uint32(0x8FFFE000).view(np.int32))
_BIAS = np.float32(2.0**112)
_SHIFT, _BRAIN_SHIFT = 13, 16


class Shared:
    """What the products of one model share: they are computed one after the other.

    Attributes:
        buffer: for ``numbers`` numbers of 32 bits.
    """

    def __init__(self, numbers: int = _BLOCK) -> None:
        self.buffer: Any = np.empty(max(_BLOCK, numbers), np.int32)
        self._last: tuple[str, Any, Any] = "", None, None

    def rows(self, x: Any, part: str) -> Any:
        """``(…, in)`` as rows of float32; makes MLX compute all that ``x`` is made of.

        Layers of one part of a model (queries, keys and values) are given the same, one after the other. Elsewhere
        the same object may have been changed in its place.
        """
        known, last, rows = self._last
        if x is not last or part != known or not part:
            rows = np.asarray(x.astype(mx.float32).reshape(-1, x.shape[-1]))
            self._last = part, x, rows
        return rows


class Product:
    """``rows @ weight.T``, for a weight ``(out, in)`` of float32, float16 or bfloat16.

    Every way through it sums in float32, so that a row's numbers are the same whatever rows it is among, but for the
    last bit of a float32.

    Args:
        weight: of MLX; held as it is, a small one as float32.
        shared: by all products of the model.
        part: of the model that it is in.
    """

    def __init__(self, weight: Any, shared: Shared, part: str = "") -> None:
        self._part = part
        self._dtype = weight.dtype
        self._shared = shared
        self._small = weight.astype(mx.float32) if weight.size < _FEW else None
        held = weight if self._small is None else self._small
        self._held = held.dtype
        self._weight: Any = np.asarray(held if held.dtype == mx.float32 else held.view(mx.int16))

    def __call__(self, x: Any) -> Any:
        """For ``(…, in)`` the ``(…, out)``, in the precision that MLX would give."""
        *lead, _ = x.shape
        if self._small is not None and math.prod(lead) * self._small.size < _FEW:
            made = x.astype(mx.float32) @ self._small.T
        else:
            rows = self._shared.rows(x, self._part)
            made = mx.array(self._multiplied(rows)).reshape(*lead, self._weight.shape[0])
        return made.astype(self._dtype if x.dtype == self._dtype else mx.float32)

    def _multiplied(self, rows: Any) -> Any:
        weight = self._weight
        if self._held == mx.float32:
            return rows @ weight.T
        count, width = weight.shape
        out = np.empty((rows.shape[0], count), np.float32)
        step = max(_BLOCK // width, 1)
        for start in range(0, count, step):
            block = weight[start : start + step]
            wide = self._shared.buffer[: block.size].reshape(block.shape)
            out[:, start : start + step] = rows @ self._widened(block, wide).T
        return out

    def _widened(self, block: Any, wide: Any) -> Any:
        floats = wide.view(np.float32)
        if self._held == mx.bfloat16:
            return np.left_shift(block, _BRAIN_SHIFT, out=wide, dtype=np.int32).view(np.float32)
        np.left_shift(block, _SHIFT, out=wide, dtype=np.int32)
        np.bitwise_and(wide, _SIGN_AND_REST, out=wide)
        return np.multiply(floats, _BIAS, out=floats)


class HostLinear(nn.Linear):  # type: ignore[misc]  # MLX has no types
    """A linear layer with the same parameters."""

    def __init__(self, linear: Any, shared: Shared, part: str = "") -> None:
        nn.Module.__init__(self)
        for name, value in linear.items():  # its parameters, which are not copied
            self[name] = value
        self._product = Product(linear.weight, shared, part)

    def __call__(self, x: Any) -> Any:
        """See ``nn.Linear``."""
        made = self._product(x)
        return made + self["bias"] if "bias" in self else made


class HostEmbedding(nn.Embedding):  # type: ignore[misc]  # as above
    """Vectors of tokens, whose table serves as the output layer too."""

    def __init__(self, embedding: Any, shared: Shared, part: str = "") -> None:
        nn.Module.__init__(self)
        self["weight"] = embedding.weight
        self._product = Product(embedding.weight, shared, part)

    def as_linear(self, x: Any) -> Any:
        """See ``nn.Embedding``."""
        return self._product(x)


_HOST_KINDS: dict[type, Any] = {nn.Linear: HostLinear, nn.Embedding: HostEmbedding}
_PRECISIONS = (mx.float32, mx.float16, mx.bfloat16)


def on_the_host(model: Any) -> int:
    """Have a model's plain dense layers multiplied so, if MLX computes on the processor; how many there are.

    Quantised layers stay as they are. A model that can't be computed so, since it compiles its layers, stays as it was.
    """
    if mx.default_device().type != mx.DeviceType.cpu:
        return 0
    plain = {
        name: layer
        for name, layer in model.named_modules()
        if type(layer) in _HOST_KINDS and layer.weight.dtype in _PRECISIONS
    }
    if not plain:
        return 0
    largest = max(layer.weight.shape[1] for layer in plain.values())
    shared = Shared(largest)
    swapped = {name: _HOST_KINDS[type(layer)](layer, shared, name.rpartition(".")[0]) for name, layer in plain.items()}
    model.update_modules(tree_unflatten(list(swapped.items())))
    try:
        mx.eval(model(mx.array([[0]])))
    except Exception as error:  # noqa: BLE001  whatever its own code makes of it
        _log.info("dense layers are left to MLX: %s", error)
        model.update_modules(tree_unflatten(list(plain.items())))
        return 0
    return len(swapped)
