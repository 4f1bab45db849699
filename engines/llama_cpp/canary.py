"""The canary: a whole llama model of 300 KB, made here, which any build of llama.cpp loads in a moment.

One layer, a vocabulary of bytes, weights that mean nothing. A build that can't load it can load nothing; one that can
is not to blame for a model that it dies of.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator

FILE_NAME = "canary.gguf"
_WIDTH = 64
_HEADS = 4
_HIDDEN = 128
_CONTEXT = 512
_ALIGNMENT = 32
# Types of values and of tensors in GGUF, version 3.
_U32, _I32, _F32, _BOOL, _STRING, _ARRAY = 4, 5, 6, 7, 8, 9
_TENSOR_F32 = 0
_VERSION = 3
# Token types of a SentencePiece vocabulary.
_NORMAL, _UNKNOWN, _CONTROL, _BYTE = 1, 2, 3, 6
# Weights repeat after so many; a power of 2 that divides every tensor's size.
_PERIOD = 64

_Shape = tuple[int, ...]


def canary_files() -> dict[str, bytes]:
    """The model's one file."""
    return {FILE_NAME: _gguf(list(_metadata()), list(_tensors()))}


def _vocabulary() -> list[tuple[str, float, int]]:
    """(text, score, type) of each token: three marks, every byte, and some letters as words may begin with them."""
    marks = [("<unk>", 0.0, _UNKNOWN), ("<s>", 0.0, _CONTROL), ("</s>", 0.0, _CONTROL)]
    each_byte = [(f"<0x{number:02X}>", 0.0, _BYTE) for number in range(256)]
    letters = "abcdefghijklmnopqrstuvwxyz"
    words = ["▁", *(f"▁{letter}" for letter in letters), *letters]
    return marks + each_byte + [(word, -float(number), _NORMAL) for number, word in enumerate(words)]


def _metadata() -> Iterator[tuple[str, bytes]]:
    """Keys with their values as the format writes them."""
    vocabulary = _vocabulary()
    yield "general.architecture", _string_value("llama")
    yield "general.type", _string_value("model")
    yield "general.name", _string_value("Canary")
    yield "general.file_type", _number(_U32, "I", 0)
    for key, size in (
        ("context_length", _CONTEXT),
        ("embedding_length", _WIDTH),
        ("block_count", 1),
        ("feed_forward_length", _HIDDEN),
        ("attention.head_count", _HEADS),
        ("attention.head_count_kv", _HEADS),
        ("rope.dimension_count", _WIDTH // _HEADS),
        ("vocab_size", len(vocabulary)),
    ):
        yield f"llama.{key}", _number(_U32, "I", size)
    yield "llama.attention.layer_norm_rms_epsilon", _number(_F32, "f", 1e-5)
    yield "tokenizer.ggml.model", _string_value("llama")
    yield "tokenizer.ggml.pre", _string_value("default")
    yield "tokenizer.ggml.tokens", _array(_STRING, [_string(text) for text, _score, _type in vocabulary])
    yield "tokenizer.ggml.scores", _array(_F32, [struct.pack("<f", score) for _text, score, _type in vocabulary])
    yield "tokenizer.ggml.token_type", _array(_I32, [struct.pack("<i", kind) for _text, _score, kind in vocabulary])
    for name, token in (("unknown", 0), ("bos", 1), ("eos", 2)):
        yield f"tokenizer.ggml.{name}_token_id", _number(_U32, "I", token)
    yield "tokenizer.ggml.add_bos_token", _number(_BOOL, "?", 1)
    yield "tokenizer.ggml.add_space_prefix", _number(_BOOL, "?", 0)


def _tensors() -> Iterator[tuple[str, _Shape]]:
    """Names and shapes, the dimension that lies together in memory first."""
    size = len(_vocabulary())
    yield "token_embd.weight", (_WIDTH, size)
    yield "blk.0.attn_norm.weight", (_WIDTH,)
    for part in ("q", "k", "v", "output"):
        yield f"blk.0.attn_{part}.weight", (_WIDTH, _WIDTH)
    yield "blk.0.ffn_norm.weight", (_WIDTH,)
    yield "blk.0.ffn_gate.weight", (_WIDTH, _HIDDEN)
    yield "blk.0.ffn_up.weight", (_WIDTH, _HIDDEN)
    yield "blk.0.ffn_down.weight", (_HIDDEN, _WIDTH)
    yield "output_norm.weight", (_WIDTH,)
    yield "output.weight", (_WIDTH, size)


def _gguf(metadata: list[tuple[str, bytes]], tensors: list[tuple[str, _Shape]]) -> bytes:
    head = struct.pack("<4sIQQ", b"GGUF", _VERSION, len(tensors), len(metadata))
    head += b"".join(_string(key) + value for key, value in metadata)
    data = b""
    for name, shape in tensors:
        head += _string(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, _TENSOR_F32, len(data))
        data += _weights(math.prod(shape), around=1.0 if len(shape) == 1 else 0.0)
    return head + b"\0" * (-len(head) % _ALIGNMENT) + data


def _weights(count: int, around: float) -> bytes:
    """Small numbers of both signs; every tensor's size is a multiple of their period and of the alignment."""
    period = struct.pack(f"<{_PERIOD}f", *(around + 0.05 * math.sin(1 + 2.3 * number) for number in range(_PERIOD)))
    return period * (count // _PERIOD)


def _string(text: str) -> bytes:
    raw = text.encode()
    return struct.pack("<Q", len(raw)) + raw


def _string_value(text: str) -> bytes:
    return struct.pack("<I", _STRING) + _string(text)


def _number(code: int, form: str, value: float) -> bytes:
    return struct.pack(f"<I{form}", code, value)


def _array(code: int, items: list[bytes]) -> bytes:
    return struct.pack("<IIQ", _ARRAY, code, len(items)) + b"".join(items)
