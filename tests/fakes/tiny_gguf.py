"""Writes small GGUF files byte by byte, so that tests can make any file, sound or not."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_CODES = {
    "u8": 0,
    "i8": 1,
    "u16": 2,
    "i16": 3,
    "u32": 4,
    "i32": 5,
    "f32": 6,
    "bool": 7,
    "u64": 10,
    "i64": 11,
    "f64": 12,
}
_FORMATS = dict(zip(_CODES, "BbHhIif?Qqd", strict=True))
_STRING = 8
_ARRAY = 9


@dataclass(frozen=True, slots=True)
class Typed:
    """A number of a stated type; bare ints are u32, floats f32."""

    type: str
    value: float


@dataclass(frozen=True, slots=True)
class Tensor:
    """A row of the tensor table and how many bytes of data it gets (None: those of F32)."""

    name: str = "token_embd.weight"
    dims: tuple[int, ...] = (32, 4)
    type: int = 0
    size: int | None = None

    @property
    def bytes(self) -> int:
        """Bytes of data that are written."""
        weights = 1
        for dim in self.dims:
            weights *= dim
        return weights * 4 if self.size is None else self.size


LLAMA: Mapping[str, Any] = {
    "general.architecture": "llama",
    "general.type": "model",
    "general.name": "Tiny",
    "general.file_type": 15,
    "llama.context_length": 2048,
    "llama.block_count": 3,
    "llama.embedding_length": 64,
    "llama.attention.head_count": 4,
    "llama.attention.head_count_kv": 2,
    "tokenizer.ggml.tokens": ["<s>", "</s>", "a", "b"],
    "tokenizer.chat_template": "{{ messages }}",
}


def gguf_bytes(
    metadata: Mapping[str, Any] = LLAMA,
    tensors: Iterable[Tensor] = (Tensor(),),
    *,
    version: int = 3,
    alignment: int = 32,
) -> bytes:
    """A whole file; lists become arrays of the type of their first element."""
    table = list(tensors)
    head = struct.pack("<4sIQQ", b"GGUF", version, len(table), len(metadata))
    head += b"".join(string(key) + value(item) for key, item in metadata.items())
    offset = 0
    for tensor in table:
        head += string(tensor.name) + struct.pack("<I", len(tensor.dims))
        head += struct.pack(f"<{len(tensor.dims)}QIQ", *tensor.dims, tensor.type, offset)
        offset += tensor.bytes + -tensor.bytes % alignment
    head += b"\0" * (-len(head) % alignment)
    return head + b"\1" * offset


def write_gguf(path: Path, metadata: Mapping[str, Any] = LLAMA, tensors: Iterable[Tensor] = (Tensor(),)) -> Path:
    """Write such a file; the folder is made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gguf_bytes(metadata, tensors))
    return path


def write_parts(folder: Path, stem: str, count: int, metadata: Mapping[str, Any] = LLAMA) -> tuple[Path, ...]:
    """Write a model in ``count`` parts, one tensor each, as llama.cpp's splitter names and marks them."""
    paths = []
    for number in range(count):
        marks = {"split.no": Typed("u16", number), "split.count": Typed("u16", count)}
        marks["split.tensors.count"] = Typed("i32", count)
        own = {**metadata, **marks} if number == 0 else marks
        path = folder / f"{stem}-{number + 1:05d}-of-{count:05d}.gguf"
        paths.append(write_gguf(path, own, [Tensor(f"blk.{number}.weight")]))
    return tuple(paths)


def string(text: str) -> bytes:
    """A string as the format writes it."""
    raw = text.encode()
    return struct.pack("<Q", len(raw)) + raw


def value(item: Any) -> bytes:
    """A value with its type before it."""
    code, raw = _encode(item)
    return struct.pack("<I", code) + raw


def _encode(item: Any) -> tuple[int, bytes]:
    if isinstance(item, str):
        return _STRING, string(item)
    if isinstance(item, list | tuple):
        encoded = [_encode(element) for element in item]
        code = encoded[0][0] if encoded else _CODES["u32"]
        return _ARRAY, struct.pack("<IQ", code, len(item)) + b"".join(raw for _, raw in encoded)
    if isinstance(item, bool):
        item = Typed("bool", item)
    elif isinstance(item, int):
        item = Typed("u32", item)
    elif isinstance(item, float):
        item = Typed("f32", item)
    return _CODES[item.type], struct.pack("<" + _FORMATS[item.type], item.value)
