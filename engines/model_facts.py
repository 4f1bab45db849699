"""What is known of a model from its files alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class ModelMetadata:
    """Facts read from a model's files.

    Attributes:
        format: file format, such as ``gguf``.
        architecture: the engine's name for the network.
        file_bytes: size of all files together.
        tensor_bytes: size of the weights alone.
        context_length: trained context in tokens.
        pooling: how token vectors become one (``none``, ``mean``, ``cls``, ``last``, ``rank``).
        fields: all scalar metadata of the header, for the memory estimate.
        roles: what each file is, in their order, of a model that comes in parts; empty: it does not.
        beside: facts of the files that go with the model itself, by role.
        layout: where each tensor lies, in a form that only the format's own reader knows.
    """

    format: str
    architecture: str
    file_bytes: int
    tensor_bytes: int
    name: str | None = None
    quantization: str | None = None
    parameter_count: int | None = None
    context_length: int | None = None
    block_count: int | None = None
    embedding_length: int | None = None
    head_count: int | None = None
    head_count_kv: tuple[int, ...] | None = None
    key_length: int | None = None
    value_length: int | None = None
    vocabulary_size: int | None = None
    pooling: str | None = None
    causal: bool | None = None
    has_chat_template: bool = False
    split_count: int = 1
    roles: tuple[str, ...] = ()
    beside: Mapping[str, ModelMetadata] = field(default_factory=dict)
    fields: Mapping[str, str | int | float | bool] = field(default_factory=dict)
    layout: Mapping[str, tuple[str, ...]] = field(default_factory=dict, compare=False, repr=False)
