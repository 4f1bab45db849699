"""Files of recorded models, made from their headers: the same metadata and tensor table, and holes for weights.

Such a file loads in the real engine as the recorded one did, and declares the same bytes; it only can't be asked.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from engines.formats.gguf_tables import TENSOR_TYPES
from tests.fakes.tiny_gguf import Typed, string, value

_TYPES = {kind.name: number for number, kind in TENSOR_TYPES.items()}
_ALIGNMENT = 32
_NORMAL, _UNKNOWN, _CONTROL, _BYTE = 1, 2, 3, 6
_LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"


def write_model(header: Mapping[str, Any], folder: Path) -> tuple[Path, ...]:
    """The files of a recorded model, in order."""
    files = 1 + max(tensor[5] for tensor in header["tensors"])
    paths = []
    for number in range(files):
        name = "m.gguf" if files == 1 else f"m-{number + 1:05d}-of-{files:05d}.gguf"
        metadata = _metadata(header) if number == 0 else {}
        if files > 1:
            metadata |= {
                "split.no": Typed("u16", number),
                "split.count": Typed("u16", files),
                "split.tensors.count": Typed("i32", len(header["tensors"])),
            }
        tensors = [tensor for tensor in header["tensors"] if tensor[5] == number]
        paths.append(_write(folder / name, metadata, tensors))
    return tuple(paths)


def _write(path: Path, metadata: Mapping[str, Any], tensors: Sequence[Sequence[Any]]) -> Path:
    head = struct.pack("<4sIQQ", b"GGUF", 3, len(tensors), len(metadata))
    head += b"".join(string(key) + value(item) for key, item in metadata.items())
    offset = 0
    for name, kind, dims, size, _start, _file in tensors:
        head += string(name) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, _TYPES[kind.upper()], offset)
        offset += size + -size % _ALIGNMENT
    head += b"\0" * (-len(head) % _ALIGNMENT)
    with path.open("wb") as file:
        file.write(head)
        file.truncate(len(head) + offset)
    return path


def _metadata(header: Mapping[str, Any]) -> dict[str, Any]:
    plain = {key: item for key, item in header["kv"].items() if not isinstance(item, dict)}
    metadata = {key: _listed(item) if isinstance(item, list) else item for key, item in plain.items()}
    metadata = {key: item for key, item in metadata.items() if not key.startswith("split.")}
    return metadata | _vocabulary(header["kv"])


def _listed(items: Sequence[Any]) -> list[Any]:
    """Arrays of numbers are signed in real files."""
    whole = all(isinstance(item, int) and not isinstance(item, bool) for item in items)
    return [Typed("i32", item) for item in items] if whole else list(items)


def _vocabulary(metadata: Mapping[str, Any]) -> dict[str, Any]:
    count = metadata["tokenizer.ggml.tokens"]["len"]
    if metadata["tokenizer.ggml.model"] == "bert":
        first = [(name, _CONTROL) for name in ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")]
        first += [(letter, _NORMAL) for letter in _LETTERS]
    else:
        first = [("<unk>", _UNKNOWN), ("<s>", _CONTROL), ("</s>", _CONTROL)]
        first += [(f"<0x{byte:02X}>", _BYTE) for byte in range(256)]
        first += [("\u2581", _NORMAL), *((letter, _NORMAL) for letter in _LETTERS)]
    first += [(f"\u2581w{number}", _NORMAL) for number in range(count - len(first))]
    names, kinds = zip(*first[:count], strict=True)
    return {
        "tokenizer.ggml.tokens": list(names),
        "tokenizer.ggml.token_type": [Typed("i32", kind) for kind in kinds],
        "tokenizer.ggml.scores": [Typed("f32", -float(number)) for number in range(count)],
    }
