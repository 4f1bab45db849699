"""ggml's operations, as far as the networks here use them: each gives the tensor that ggml would give."""

from __future__ import annotations

from collections.abc import Sequence

from engines.llama_cpp.graphs.tensors import Tensor


def like(op: str, source: Tensor, *more: Tensor) -> Tensor:
    """A new tensor of the first source's shape and type."""
    return Tensor(op, source.ne, source.type_name, (source, *more))


def make(op: str, ne: Sequence[int], *srcs: Tensor) -> Tensor:
    """A new tensor of 32-bit floats."""
    return Tensor(op, ne, "F32", srcs)


def mul_mat(weight: Tensor, source: Tensor) -> Tensor:
    """Rows of ``weight`` times rows of ``source``."""
    return make("MUL_MAT", (weight.ne[1], source.ne[1], source.ne[2], source.ne[3]), weight, source)


def mul_mat_id(weight: Tensor, source: Tensor, ids: Tensor) -> Tensor:
    """As ``mul_mat``, with the expert of each row from ``ids``."""
    return make("MUL_MAT_ID", (weight.ne[1], ids.ne[0], source.ne[2], 1), weight, source, ids)


def get_rows(source: Tensor, ids: Tensor) -> Tensor:
    """The rows that ``ids`` names."""
    return make("GET_ROWS", (source.ne[0], ids.ne[0], ids.ne[1], ids.ne[2]), source, ids)


def set_rows(target: Tensor, rows: Tensor, ids: Tensor) -> Tensor:
    """A view of ``target`` after ``rows`` were written into it."""
    return Tensor("SET_ROWS", target.ne, target.type_name, (rows, ids, target), target, target.nb)


def copy_into(source: Tensor, target: Tensor) -> Tensor:
    """A view of ``target`` after ``source`` was copied into it."""
    return Tensor("CPY", target.ne, target.type_name, (source, target), target, target.nb)


def cast(source: Tensor, type_name: str) -> Tensor:
    """A copy in another type; ggml names the copy as its own second source, which keeps it a little longer."""
    tensor = Tensor("CPY", source.ne, type_name, (source,))
    tensor.srcs.append(tensor)
    return tensor


def cont(source: Tensor, ne: Sequence[int] | None = None) -> Tensor:
    """A contiguous copy, in a new shape if one is given."""
    return Tensor("CONT", ne or source.ne, source.type_name, (source,))


def concat(first: Tensor, second: Tensor, dim: int) -> Tensor:
    """One after the other along a dimension."""
    ne = list(first.ne)
    ne[dim] += second.ne[dim]
    return Tensor("CONCAT", ne, first.type_name, (first, second))


def reshape(source: Tensor, *ne: int) -> Tensor:
    """The same numbers in another shape."""
    return Tensor("RESHAPE", ne, source.type_name, (source,), source)


def view(source: Tensor, *ne: int, nb: Sequence[int] = ()) -> Tensor:
    """A part of a tensor; ``nb``: bytes from one to the next along later dimensions, where it has gaps."""
    steps = (source.nb[0], *nb) if nb else None
    return Tensor("VIEW", ne, source.type_name, (source,), source, steps)


def permute(source: Tensor, *axes: int) -> Tensor:
    """Axis i of the source becomes axis ``axes[i]``."""
    ne, nb = [1, 1, 1, 1], [0, 0, 0, 0]
    for axis, size, step in zip(axes, source.ne, source.nb, strict=True):
        ne[axis], nb[axis] = size, step
    return Tensor("PERMUTE", ne, source.type_name, (source,), source, nb)


def transpose(source: Tensor) -> Tensor:
    """Rows become columns."""
    ne = (source.ne[1], source.ne[0], *source.ne[2:])
    nb = (source.nb[1], source.nb[0], *source.nb[2:])
    return Tensor("TRANSPOSE", ne, source.type_name, (source,), source, nb)


def scale_in_place(source: Tensor) -> Tensor:
    """The source itself, scaled."""
    return Tensor("SCALE", source.ne, source.type_name, (source,), source, source.nb)


def sum_rows(source: Tensor) -> Tensor:
    """One number a row."""
    return make("SUM_ROWS", (1, *source.ne[1:]), source)


def top_k(source: Tensor, count: int) -> Tensor:
    """Indices of the largest ``count`` of each row."""
    order = Tensor("ARGSORT", source.ne, "I32", (source,))
    return view(order, count, *order.ne[1:], nb=order.nb[1:])
