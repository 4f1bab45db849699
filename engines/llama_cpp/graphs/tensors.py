"""Tensors of a compute graph, with just what decides how many bytes it needs: shapes, sizes, sources and lifetimes.

Facts from ggml: ``ggml_build_forward_expand`` (order of nodes), ``ggml_visit_parents_graph`` (sources left to right).
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from engines.formats.gguf_tables import TENSOR_TYPES

_SIZES = {kind.name: (kind.weights, kind.size) for kind in TENSOR_TYPES.values()}

VIEWS = frozenset({"VIEW", "RESHAPE", "PERMUTE", "TRANSPOSE"})
NOTHING = "NONE"


def is_type(type_name: str) -> bool:
    """Whether it is a type of tensors."""
    return type_name in _SIZES


def row_bytes(type_name: str, count: int) -> int:
    """Bytes of ``count`` numbers of a type; count must be a multiple of its block."""
    block, size = _SIZES[type_name]
    return count // block * size


def _plain_steps(type_name: str, ne: Sequence[int]) -> tuple[int, ...]:
    block, size = _SIZES[type_name]
    row = ne[0] // block * size
    return size, row, row * ne[1], row * ne[1] * ne[2]


def _span(type_name: str, ne: Sequence[int], nb: Sequence[int]) -> int:
    if 0 in ne:
        return 0
    block, size = _SIZES[type_name]
    first = size + (ne[0] - 1) * nb[0] if block == 1 else ne[0] * nb[0] // block
    return first + sum((count - 1) * step for count, step in zip(ne[1:], nb[1:], strict=True))


class Tensor:
    """One tensor.

    Attributes:
        ne: four dimensions, the row first.
        nb: bytes from one to the next along each dimension.
        size: bytes from the first to the last, gaps of a strided view included: a copy of a view keeps its gaps.
        root: the tensor whose memory this one is a view of; None if it has its own.
        store: index of the buffer that holds it outside the graph (weights, caches); None: the graph's own.
        weight: it lies in a buffer of weights.
        contiguous: it lies without gaps and in order.
        backend: index of the backend that computes or holds it; -1 while not decided.
    """

    __slots__ = (
        "backend",
        "children",
        "contiguous",
        "held",
        "index",
        "is_input",
        "is_output",
        "nb",
        "ne",
        "offset",
        "op",
        "place",
        "root",
        "seen",
        "size",
        "srcs",
        "store",
        "type_name",
        "views",
        "weight",
    )

    def __init__(
        self,
        op: str,
        ne: Sequence[int],
        type_name: str,
        srcs: Sequence[Tensor] = (),
        root: Tensor | None = None,
        nb: Sequence[int] | None = None,
    ) -> None:
        self.op = op
        self.ne = (*ne, *(1,) * (4 - len(ne)))
        self.type_name = type_name
        self.srcs = list(srcs)
        self.root: Tensor | None = (root.root or root) if root is not None else None
        plain = _plain_steps(type_name, self.ne)
        self.nb = plain if nb is None else (*nb, *(nb[-1] * self.ne[len(nb) - 1],) * (4 - len(nb)))
        self.size = _span(type_name, self.ne, self.nb)
        self.store: int | None = None
        self.weight = False
        self.contiguous = self.nb == plain
        self.is_input = self.is_output = self.seen = False
        self.backend = -1
        self.place = 0
        self.children = self.views = self.offset = self.index = 0
        self.held = False

    @property
    def elements(self) -> int:
        """How many numbers it holds."""
        return prod(self.ne)

    @property
    def is_external(self) -> bool:
        """Whether its memory lies in a buffer outside the graph."""
        return (self.root or self).store is not None


class Graph:
    """Nodes and leaves in the order in which ggml meets them."""

    def __init__(self) -> None:
        self.nodes: list[Tensor] = []
        self.leaves: list[Tensor] = []

    def expand(self, tensor: Tensor) -> None:
        """Add a tensor after everything that it needs and that is not yet there."""
        if tensor.seen:
            return
        tensor.seen = True
        for source in tensor.srcs:
            if not source.seen:
                self.expand(source)
        (self.leaves if tensor.op == NOTHING else self.nodes).append(tensor)


def new_input(ne: Sequence[int], type_name: str = "F32") -> Tensor:
    """A tensor that the caller fills before each batch."""
    tensor = Tensor(NOTHING, ne, type_name)
    tensor.is_input = True
    return tensor


def stored(ne: Sequence[int], type_name: str, store: int, *, weight: bool) -> Tensor:
    """A tensor that lies in a buffer outside the graph."""
    tensor = Tensor(NOTHING, ne, type_name)
    tensor.store = store
    tensor.weight = weight
    return tensor
