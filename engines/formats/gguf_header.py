"""The header of one GGUF file: metadata and tensor table, checked against the size of the file.

Little endian, versions 2 and 3. Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path

from engines.contract import ModelFileError
from engines.formats.gguf_reader import HeaderArray, HeaderCursor, Scalar
from engines.formats.gguf_tables import TENSOR_TYPES

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_SWAPPED_VERSIONS = (2 << 24, 3 << 24)
_DEFAULT_ALIGNMENT = 32
_LARGEST_ALIGNMENT = 2**20
_MOST_KEYS = 2**14  # real files have under 100
_MOST_TENSORS = 2**16  # the largest mixtures have a few thousand
_MOST_DIMENSIONS = 4  # GGML_MAX_DIMS
_MOST_WEIGHTS = 2**56
_KEY_BYTES = 13  # the smallest key with its value: length, type, one byte
_TENSOR_BYTES = 24  # the smallest row of the tensor table

# How files that are no GGUF begin, and what they are.
_OTHER_FORMATS = {
    b"\0\0\0\0": "begins with zero bytes: its space was reserved, but the download did not fill it. Fetch it again.",
    b"vers": "is a Git LFS pointer, not the model itself. Run `git lfs pull`, or fetch the file again.",
    b"lmgg": "is in a format from before GGUF (ggml), which is no longer read. Fetch a GGUF of this model.",
    b"fmgg": "is in a format from before GGUF (ggmf), which is no longer read. Fetch a GGUF of this model.",
    b"tjgg": "is in a format from before GGUF (ggjt), which is no longer read. Fetch a GGUF of this model.",
    b"PK\3\4": "is a zip archive, not a GGUF file. Unpack it, or fetch a GGUF of this model.",
}
_WEB_PAGE = b"<"


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """One row of the tensor table.

    Attributes:
        dims: weights along each dimension, the row length first.
        type_name: ``Q4_K`` and so on; ``type N`` for a type unknown here.
        offset: bytes from ``data_offset``.
        size: bytes; None for a type unknown here.
    """

    name: str
    dims: tuple[int, ...]
    type_name: str
    offset: int
    size: int | None

    @property
    def weights(self) -> int:
        """Number of weights."""
        return prod(self.dims)


@dataclass(frozen=True, slots=True)
class GgufHeader:
    """What a GGUF file says before its weights begin.

    Attributes:
        file_name: for messages.
        metadata: scalar values; of a long string (a chat template) only the first KiB.
        array_counts: number of elements of each array.
        arrays: elements of the arrays that are few numbers, such as heads by layer.
        alignment: bytes; tensors begin at multiples of it.
        data_offset: byte of the file at which offsets begin to count.
        file_bytes: size of the file.
    """

    file_name: str
    version: int
    metadata: Mapping[str, Scalar]
    array_counts: Mapping[str, int]
    arrays: Mapping[str, tuple[int | float | bool, ...]]
    tensors: tuple[TensorInfo, ...]
    alignment: int
    data_offset: int
    file_bytes: int

    @property
    def tensor_bytes(self) -> int:
        """Bytes of all weights; with a tensor of unknown type, all that lies behind the header."""
        sizes = [tensor.size for tensor in self.tensors]
        known = [size for size in sizes if size is not None]
        return sum(known) if len(known) == len(sizes) else max(self.file_bytes - self.data_offset, 0)


def read_header(path: Path) -> GgufHeader:
    """Read a file's header; the weights are not touched.

    Raises:
        ModelFileError: can't be opened, is no GGUF, is cut short, or has nonsense inside.
    """
    try:
        # Without O_NONBLOCK, a pipe of this name would hold the caller until someone writes into it.
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise ModelFileError(f"{path.name} can't be opened: {error.strerror}.") from error
    try:
        facts = os.fstat(fd)
        if not stat.S_ISREG(facts.st_mode):
            raise ModelFileError(f"{path.name} is not a regular file.")
        return _walk(HeaderCursor(fd, facts.st_size, path))
    except OSError as error:
        raise ModelFileError(f"{path.name} can't be read: {error.strerror}. Look at the disk.") from error
    finally:
        os.close(fd)


def _walk(cursor: HeaderCursor) -> GgufHeader:
    version = _read_version(cursor)
    tensor_count, key_count = cursor.u64(), cursor.u64()
    _check_count(cursor, "tensors", tensor_count, _MOST_TENSORS, _TENSOR_BYTES)
    _check_count(cursor, "keys", key_count, _MOST_KEYS, _KEY_BYTES)
    metadata: dict[str, Scalar] = {}
    arrays: dict[str, HeaderArray] = {}
    for _ in range(key_count):
        key = cursor.key()
        if key in metadata or key in arrays:
            cursor.fail(f"is damaged: its header has the key {key!r} twice. Fetch it again.")
        value = cursor.value()
        if isinstance(value, HeaderArray):
            arrays[key] = value
        else:
            metadata[key] = value
    alignment = _alignment(cursor, metadata.get("general.alignment", _DEFAULT_ALIGNMENT))
    tensors = tuple(_read_tensor(cursor, alignment) for _ in range(tensor_count))
    data_offset = cursor.position + -cursor.position % alignment
    _check_tensors(cursor, tensors, data_offset)
    return GgufHeader(
        file_name=cursor.name,
        version=version,
        metadata=metadata,
        array_counts={key: array.count for key, array in arrays.items()},
        arrays={key: array.values for key, array in arrays.items() if array.values is not None},
        tensors=tensors,
        alignment=alignment,
        data_offset=data_offset,
        file_bytes=cursor.size,
    )


def _read_version(cursor: HeaderCursor) -> int:
    if cursor.size == 0:
        cursor.fail("is empty: the download did not begin, or the disk is full. Fetch it again.")
    magic = cursor.take(min(len(_MAGIC), cursor.size))
    if magic != _MAGIC:
        if magic.lstrip().startswith(_WEB_PAGE):
            cursor.fail("is a web page, not a GGUF file: the download was refused or redirected. Fetch it again.")
        cursor.fail(_OTHER_FORMATS.get(magic, f"is not a GGUF file: it begins with {magic!r} instead of {_MAGIC!r}."))
    version = cursor.u32()
    if version in _SWAPPED_VERSIONS:
        cursor.fail("is a big-endian GGUF, which is not served. Fetch the little-endian file of this model.")
    if version not in _VERSIONS:
        cursor.fail(f"is GGUF version {version}; versions 2 and 3 are read. Fetch a newer file of this model.")
    return version


def _check_count(cursor: HeaderCursor, what: str, count: int, most: int, smallest: int) -> None:
    if count > most:
        cursor.fail(f"is damaged: its header claims {count} {what}. Fetch it again.")
    cursor.expect(count * smallest)


def _alignment(cursor: HeaderCursor, value: Scalar) -> int:
    sound = isinstance(value, int) and 0 < value <= _LARGEST_ALIGNMENT and value & (value - 1) == 0
    if not sound or isinstance(value, bool):
        cursor.fail(f"is damaged: its general.alignment is {value!r}, not a power of two. Fetch it again.")
    return int(value)


def _read_tensor(cursor: HeaderCursor, alignment: int) -> TensorInfo:
    name = cursor.key()
    dimensions = cursor.u32()
    if dimensions > _MOST_DIMENSIONS:
        cursor.fail(f"is damaged: its tensor {name!r} claims {dimensions} dimensions. Fetch it again.")
    dims = tuple(cursor.u64() for _ in range(dimensions))
    type_number, offset = cursor.u32(), cursor.u64()
    kind = TENSOR_TYPES.get(type_number)
    weights, row = prod(dims), dims[0] if dims else 1
    if weights > _MOST_WEIGHTS or (kind and row % kind.weights) or offset % alignment:
        shape = "x".join(map(str, dims))
        cursor.fail(f"is damaged: its tensor {name!r} can't be {shape} at offset {offset}. Fetch it again.")
    if kind is None:
        return TensorInfo(name, dims, f"type {type_number}", offset, None)
    return TensorInfo(name, dims, kind.name, offset, weights // kind.weights * kind.size)


def _check_tensors(cursor: HeaderCursor, tensors: tuple[TensorInfo, ...], data_offset: int) -> None:
    names = {tensor.name for tensor in tensors}
    if len(names) != len(tensors):
        cursor.fail("is damaged: its header names a tensor twice. Fetch it again.")
    if sum(tensor.weights for tensor in tensors) > _MOST_WEIGHTS:
        cursor.fail("is damaged: its header claims more weights than any machine holds. Fetch it again.")
    promised = max((data_offset + tensor.offset + (tensor.size or 0) for tensor in tensors), default=0)
    if promised > cursor.size:
        cursor.fail(f"is {cursor.size} bytes, its header promises {promised}: it is not whole. Fetch it again.")
