"""From the headers of a model's files to ``ModelMetadata``."""

from __future__ import annotations

import math
from collections.abc import Sequence

from engines.contract import ModelFileError, ModelMetadata, NotAModelError
from engines.formats.gguf_header import GgufHeader
from engines.formats.gguf_layout import pack_layout
from engines.formats.gguf_reader import Scalar
from engines.formats.gguf_tables import FILE_TYPE_GUESSED, FILE_TYPES, POOLINGS

_CHAT_TEMPLATE = "tokenizer.chat_template"
_TOKENS = "tokenizer.ggml.tokens"
_LARGEST_COUNT = 2**32 - 1  # the format's own counts are 32 bits wide
_MOST_LAYERS = 2048  # llama.cpp stops at 512
# What else comes as GGUF, by general.type or architecture: (what it is, what to do with it).
_PROJECTOR = "a projector for pictures or sound (mmproj), not a model of its own: it belongs to a model"
_OTHERS_BY_TYPE = {
    "mmproj": _PROJECTOR,
    "adapter": "an adapter (LoRA), not a model of its own: it is loaded on top of one",
    "imatrix": "an importance matrix, not a model: it is used to make one",
}
_OTHERS_BY_ARCHITECTURE = {
    "clip": _PROJECTOR,
    "controlvector": "a control vector, not a model of its own: it is loaded on top of one",
}


def is_model(header: GgufHeader) -> bool:
    """Whether the file is a model of its own (or its first part), not a projector, an adapter or the like."""
    return _what_else(header) is None


def metadata_of(headers: Sequence[GgufHeader], file_bytes: int | None = None) -> ModelMetadata:
    """Facts of the model whose files have these headers, in order; ``file_bytes`` is their sum unless given.

    ``head_count_kv`` has one entry for each layer where the number of layers is known. ``head_count_kv`` and the two
    lengths have the defaults of the format: as many KV heads as heads, and embedding_length / head_count.

    Raises:
        ModelFileError: no architecture, no weights, or parts that don't belong together.
        NotAModelError: sound, but no model of its own.
    """
    first = headers[0]
    if other := _what_else(first):
        raise NotAModelError(f"{first.file_name} is {other}.")
    architecture = first.metadata.get("general.architecture")
    if not isinstance(architecture, str) or not architecture:
        raise ModelFileError(f"{first.file_name} names no architecture in its header, so no engine can load it.")
    _check_parts(headers)
    reader = _Reader(first, architecture)
    heads = reader.per_layer("attention.head_count")
    embedding_length = reader.count("embedding_length")
    head_length = embedding_length // heads[0] if embedding_length and heads and heads[0] else None
    return ModelMetadata(
        format="gguf",
        architecture=architecture,
        file_bytes=sum(header.file_bytes for header in headers) if file_bytes is None else file_bytes,
        tensor_bytes=sum(header.tensor_bytes for header in headers),
        name=reader.text("general.name"),
        quantization=_quantization(first),
        parameter_count=sum(tensor.weights for header in headers for tensor in header.tensors),
        context_length=reader.count("context_length"),
        block_count=reader.block_count,
        embedding_length=embedding_length,
        head_count=max(heads) if heads else None,
        head_count_kv=reader.per_layer("attention.head_count_kv") or heads,
        key_length=reader.count("attention.key_length") or head_length,
        value_length=reader.count("attention.value_length") or head_length,
        vocabulary_size=first.array_counts.get(_TOKENS) or reader.count("vocab_size"),
        pooling=POOLINGS.get(number) if (number := reader.count("pooling_type")) is not None else None,
        causal=reader.flag("attention.causal"),
        has_chat_template=any(_is_chat_template(key) and bool(value) for key, value in first.metadata.items()),
        split_count=len(headers),
        fields={key: value for key, value in first.metadata.items() if _is_kept(key, value)},
        layout=pack_layout(headers),
    )


def projector_of(header: GgufHeader) -> ModelMetadata:
    """Facts of a projector, which has no layers and no vocabulary of its own.

    Raises:
        ModelFileError: it is something else.
    """
    if _what_else(header) != _PROJECTOR:
        raise ModelFileError(f"{header.file_name} is no projector: look for a file with mmproj in its name.")
    return ModelMetadata(
        format="gguf",
        architecture="clip",
        file_bytes=header.file_bytes,
        tensor_bytes=header.tensor_bytes,
        name=name if isinstance(name := header.metadata.get("general.name"), str) else None,
        fields={key: value for key, value in header.metadata.items() if _is_kept(key, value)},
    )


class _Reader:
    """Looks up the values of an architecture; a value of another type than it must be reads as not said."""

    def __init__(self, header: GgufHeader, architecture: str) -> None:
        self._header = header
        self._prefix = architecture + "."
        self.block_count = self.count("block_count")
        if self.block_count is not None and self.block_count > _MOST_LAYERS:
            raise ModelFileError(f"{header.file_name} is damaged: its header claims {self.block_count} layers.")

    def text(self, key: str) -> str | None:
        value = self._header.metadata.get(key)
        return value if isinstance(value, str) and value else None

    def flag(self, key: str) -> bool | None:
        value = self._header.metadata.get(self._prefix + key)
        return value if isinstance(value, bool) else None

    def count(self, key: str) -> int | None:
        return _count(self._header.metadata.get(self._prefix + key))

    def per_layer(self, key: str) -> tuple[int, ...] | None:
        """One number for each layer, from an array or from a number that holds for all of them."""
        single = self.count(key)
        if single is not None:
            return (single,) * (self.block_count or 1)
        counts = [_count(value) for value in self._header.arrays.get(self._prefix + key, ())]
        known = tuple(value for value in counts if value is not None)
        return known if known and len(known) == len(counts) else None


def _count(value: Scalar | None) -> int | None:
    """A number that can be meant: beyond it, sums and products would outgrow what JSON readers take."""
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _LARGEST_COUNT else None


def _what_else(header: GgufHeader) -> str | None:
    kind, architecture = header.metadata.get("general.type"), header.metadata.get("general.architecture")
    return _OTHERS_BY_TYPE.get(str(kind)) or _OTHERS_BY_ARCHITECTURE.get(str(architecture))


def _check_parts(headers: Sequence[GgufHeader]) -> None:
    """llama.cpp trusts ``split.count`` over the names: both must say the same, or it would not load the model."""
    first, named = headers[0], len(headers)
    for index, header in enumerate(headers):
        count = _count(header.metadata.get("split.count")) or 1
        number = _count(header.metadata.get("split.no")) or 0
        if count != named or number != index:
            raise ModelFileError(
                f"{header.file_name} is part {index + 1} of {named} by its name, but part {number + 1} of {count} "
                "by its header. Give it back the name that it was fetched under."
            )
    tensors = sum(len(header.tensors) for header in headers)
    if tensors == 0:
        raise ModelFileError(f"{first.file_name} holds no weights, only a vocabulary: it is no model to serve.")
    promised = _count(first.metadata.get("split.tensors.count"))
    if named > 1 and promised is not None and promised != tensors:
        raise ModelFileError(f"{first.file_name}: its parts hold {tensors} tensors, its header promises {promised}.")


def _quantization(header: GgufHeader) -> str | None:
    number = _count(header.metadata.get("general.file_type"))
    return None if number is None else FILE_TYPES.get(number & ~FILE_TYPE_GUESSED)


def _is_chat_template(key: str) -> bool:
    return key == _CHAT_TEMPLATE or key.startswith(_CHAT_TEMPLATE + ".")


def _is_kept(key: str, value: Scalar) -> bool:
    # A template is cut, so it would mislead; NaN and infinity have no place in JSON.
    return not _is_chat_template(key) and (not isinstance(value, float) or math.isfinite(value))
