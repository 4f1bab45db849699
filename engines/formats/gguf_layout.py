"""Where each tensor of a model lies, packed small enough to be kept with the metadata of every model.

A file's table is one line a tensor: name, type, dimensions and first byte in the file, parted by blanks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

from engines.formats.gguf_header import GgufHeader
from engines.formats.gguf_tables import TENSOR_TYPES

_TYPES = {kind.name: kind for kind in TENSOR_TYPES.values()}
_TABLES = "tensors"
_ARRAYS = "arrays"
_VOCABULARY = "tokenizer."
_MOST_ELEMENTS = 2048

Layout = Mapping[str, tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class PlacedTensor:
    """A tensor and where it lies.

    Attributes:
        dims: numbers along each dimension, the row first.
        file: index of the file that holds it.
        start: its first byte there.
        size: bytes; None for a type unknown here.
    """

    name: str
    type_name: str
    dims: tuple[int, ...]
    file: int
    start: int

    @property
    def size(self) -> int | None:
        """Bytes of the tensor; None for a type unknown here."""
        kind = _TYPES.get(self.type_name)
        return prod(self.dims) // kind.weights * kind.size if kind else None


def pack_layout(headers: Sequence[GgufHeader]) -> Layout:
    """Tables of all files, and the number arrays of the first one's metadata."""
    arrays = (
        f"{key} {' '.join(str(int(value)) for value in values)}"
        for key, values in headers[0].arrays.items()
        if _is_kept(key, values)
    )
    return {_TABLES: tuple(_table(header) for header in headers), _ARRAYS: tuple(arrays)}


def placed_tensors(layout: Layout) -> tuple[PlacedTensor, ...]:
    """All tensors, in the order of the files; empty where the layout is not known."""
    return tuple(
        _placed(index, line) for index, table in enumerate(layout.get(_TABLES, ())) for line in table.splitlines()
    )


def number_arrays(layout: Layout) -> Mapping[str, tuple[int, ...]]:
    """Arrays of whole numbers and truths (1, 0) of the metadata, such as heads by layer."""
    lines = (line.split() for line in layout.get(_ARRAYS, ()))
    return {key: tuple(int(value) for value in values) for key, *values in lines}


def _is_kept(key: str, values: Sequence[float]) -> bool:
    if key.startswith(_VOCABULARY) or " " in key or len(values) > _MOST_ELEMENTS:
        return False
    return not any(isinstance(value, float) for value in values)


def _table(header: GgufHeader) -> str:
    return "\n".join(
        f"{_named(tensor.name)} {tensor.type_name.replace(' ', '_')} {'x'.join(map(str, tensor.dims)) or '1'}"
        f" {header.data_offset + tensor.offset}"
        for tensor in header.tensors
    )


def _named(name: str) -> str:
    return "".join("_" if character.isspace() else character for character in name) or "_"


def _placed(file: int, line: str) -> PlacedTensor:
    name, type_name, dims, start = line.split(" ")
    return PlacedTensor(name, type_name, tuple(int(size) for size in dims.split("x")), file, int(start))
