"""The header of one safetensors file: names, shapes and sizes, checked against the size of the file.

Eight bytes of length, little endian, then JSON: https://github.com/huggingface/safetensors
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import orjson

from engines.vocabulary import ModelFileError

_LENGTH_BYTES = 8
_LARGEST_HEADER = 100 * 10**6  # the format's own limit
_MOST_TENSORS = 2**17
_MOST_DIMENSIONS = 16
_METADATA = "__metadata__"
_BITS: Mapping[str, int] = {
    "BOOL": 8, "U8": 8, "I8": 8, "F8_E5M2": 8, "F8_E4M3": 8, "F8_E8M0": 8, "F8_E4M3FN": 8,
    "I16": 16, "U16": 16, "F16": 16, "BF16": 16,
    "I32": 32, "U32": 32, "F32": 32,
    "I64": 64, "U64": 64, "F64": 64,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """One tensor of a file.

    Attributes:
        shape: numbers along each dimension, the row last.
        size: bytes.
    """

    name: str
    type_name: str
    shape: tuple[int, ...]
    size: int

    @property
    def weights(self) -> int:
        """Number of weights."""
        return prod(self.shape)


@dataclass(frozen=True, slots=True)
class SafetensorsHeader:
    """What a file says before its weights begin."""

    file_name: str
    metadata: Mapping[str, str]
    tensors: tuple[StoredTensor, ...]
    file_bytes: int


def read_header(path: Path) -> SafetensorsHeader:
    """Read a file's header; the weights are not touched.

    Raises:
        ModelFileError: can't be opened, is no safetensors, is cut short, or has nonsense inside.
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
        raw = _read_json(fd, facts.st_size, path.name)
    except OSError as error:
        raise ModelFileError(f"{path.name} can't be read: {error.strerror}. Look at the disk.") from error
    finally:
        os.close(fd)
    return parse_header(raw, facts.st_size, path.name)


def _read_json(fd: int, file_bytes: int, name: str) -> bytes:
    first = os.pread(fd, _LENGTH_BYTES, 0)
    if not first:
        raise ModelFileError(f"{name} is empty: the download did not begin, or the disk is full. Fetch it again.")
    length = int.from_bytes(first, "little")
    if len(first) < _LENGTH_BYTES or not 0 < length <= _LARGEST_HEADER:
        raise ModelFileError(f"{name} is not a safetensors file: it begins with {first!r}. Fetch it again.")
    if _LENGTH_BYTES + length > file_bytes:
        raise ModelFileError(
            f"{name} is {file_bytes} bytes, its header alone takes {length}: it is not whole. Fetch it again."
        )
    pieces, at = [], _LENGTH_BYTES
    while at < _LENGTH_BYTES + length and (piece := os.pread(fd, _LENGTH_BYTES + length - at, at)):
        pieces.append(piece)
        at += len(piece)
    return b"".join(pieces)


def parse_header(raw: bytes, file_bytes: int, name: str) -> SafetensorsHeader:
    """The JSON of a header of ``raw`` bytes, in a file of so many.

    Raises:
        ModelFileError: it is no such JSON, or promises more than the file has.
    """
    try:
        parsed = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        raise ModelFileError(f"{name} is damaged: its header can't be read. Fetch it again.") from error
    if not isinstance(parsed, dict) or len(parsed) > _MOST_TENSORS:
        raise ModelFileError(f"{name} is damaged: its header is no list of tensors. Fetch it again.")
    said = parsed.pop(_METADATA, None)
    metadata = {key: value for key, value in said.items() if isinstance(value, str)} if isinstance(said, dict) else {}
    data_bytes = file_bytes - _LENGTH_BYTES - len(raw)
    tensors = tuple(_tensor(key, row, data_bytes, name) for key, row in parsed.items())
    return SafetensorsHeader(name, metadata, tensors, file_bytes)


def _tensor(key: str, row: Any, data_bytes: int, name: str) -> StoredTensor:
    facts = row if isinstance(row, dict) else {}
    kind, shape, offsets = facts.get("dtype"), facts.get("shape"), facts.get("data_offsets")
    if not (isinstance(kind, str) and isinstance(shape, list) and isinstance(offsets, list)):
        raise _damaged(name, key, "can't be read")
    if not (_counts(shape, _MOST_DIMENSIONS) and _counts(offsets, 2) and len(offsets) == 2):  # noqa: PLR2004  begin, end
        raise _damaged(name, key, "can't be read")
    begin, end = offsets
    if end > data_bytes:
        raise ModelFileError(
            f"{name} holds {data_bytes} bytes of weights, its header promises {end}: it is not whole. Fetch it again."
        )
    bits = _BITS.get(kind)
    if begin > end or (bits is not None and prod(shape) * bits // 8 != end - begin):
        raise _damaged(name, key, "has another size than it says")
    return StoredTensor(key, kind, tuple(shape), end - begin)


def _damaged(name: str, key: str, how: str) -> ModelFileError:
    return ModelFileError(f"{name} is damaged: its tensor {key[:80]!r} {how}. Fetch it again.")


def _counts(value: list[Any], most: int) -> bool:
    whole = (isinstance(number, int) and not isinstance(number, bool) and 0 <= number < 2**63 for number in value)
    return len(value) <= most and all(whole)
