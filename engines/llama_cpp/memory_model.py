"""A model as the memory estimate sees it: its shapes layer by layer, from the header's facts and nothing else.

Facts from llama.cpp's ``load_arch_hparams`` of each architecture.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from engines.contract import ModelMetadata
from engines.formats.gguf_layout import PlacedTensor, number_arrays, placed_tensors

# Networks that read a whole input at once and keep no cache.
ENCODERS = frozenset(
    {
        "bert",
        "nomic-bert",
        "nomic-bert-moe",
        "jina-bert-v2",
        "jina-bert-v3",
        "modern-bert",
        "neo-bert",
        "eurobert",
        "gemma-embedding",
        "llama-embed",
        "t5encoder",
        "dream",
        "llada",
        "llada-moe",
        "rnd1",
    }
)
_WITHOUT_OUTPUT = ENCODERS - {"gemma-embedding", "llama-embed", "dream", "llada", "llada-moe", "rnd1"}
# Every so many layers one sees the whole context, the others a window, unless the header says which.
_WINDOW_PERIODS = {
    "gemma2": 2,
    "gemma3": 6,
    "gemma3n": 5,
    "gemma-embedding": 6,
    "cohere2": 4,
    "gpt-oss": 2,
    "olmo2": 4,
    "exaone4": 4,
    "exaone-moe": 4,
    "afmoe": 4,
    "llama4": 4,
    "plamo3": 8,
    "mellum": 4,
    "muse-glimmer": 4,
    "cohere2moe": 4,
    "smallthinker": 4,
    "laguna": 4,
    "modern-bert": 3,
}
_FULL_LAYER_FIRST = frozenset({"cohere2moe", "smallthinker", "laguna", "modern-bert"})
_DEFAULT_WINDOWS = {"gemma2": 4096, "llama4": 8192}
_WITHOUT_WINDOW = frozenset({"phi3"})  # the header names one, llama.cpp leaves it aside
_RECURRENT = frozenset({"mamba", "mamba2", "rwkv6", "rwkv7", "arwkv7", "rwkv6qwen2"})
_RECURRENT_AND_ATTENTION = frozenset({"falcon-h1"})
_RECURRENT_WITHOUT_HEADS = frozenset(
    {"jamba", "granitehybrid", "lfm2", "lfm2moe", "plamo2", "nemotron_h", "nemotron_h_moe", "kimi-linear"}
)
DELTA_NETS = frozenset({"qwen3next", "qwen35", "qwen35moe"})
_FULL_ATTENTION_INTERVAL = 4


@dataclass(frozen=True, slots=True)
class LayerShape:
    """One layer.

    Attributes:
        heads, heads_kv: attention heads; 0: none.
        key, value: numbers a head.
        window: tokens that it sees; None: all of them.
        attends: has a cache of keys and values, or reads another layer's.
        owns_cache: has its own.
        recurrent: keeps a state instead of, or beside, a cache.
        feed_forward: width of the dense feed-forward part; 0: none.
    """

    heads: int
    heads_kv: int
    key: int
    value: int
    window: int | None
    attends: bool
    owns_cache: bool
    recurrent: bool
    feed_forward: int


@dataclass(frozen=True, slots=True)
class ModelShape:
    """What of a model decides its memory.

    Attributes:
        conv_state, scan_state: numbers of recurrent state a layer and sequence, in two parts.
        mla: keys are kept compressed, and serve as values too.
        tensors: all tensors by name, in file order; empty: not known.
    """

    architecture: str
    layers: tuple[LayerShape, ...]
    embedding: int
    vocabulary: int
    trained_context: int
    conv_state: int
    scan_state: int
    mla: bool
    encoder: bool
    causal: bool
    pooling: str | None
    tokenizer: str
    tensors: Mapping[str, PlacedTensor]
    numbers: Mapping[str, int]
    scales: Mapping[str, float]

    def number(self, key: str, default: int = 0) -> int:
        """A whole number of the header, by its key without the architecture."""
        return self.numbers.get(key, default)

    @property
    def tied(self) -> bool:
        """Whether the token embedding serves as the output too."""
        return (
            self.architecture not in _WITHOUT_OUTPUT
            and "output.weight" not in self.tensors
            and "token_embd.weight" in self.tensors
        )


def model_shape(metadata: ModelMetadata) -> ModelShape | None:
    """The shape; None where the header does not say how many layers there are, or how wide."""
    tensors = {tensor.name: tensor for tensor in placed_tensors(metadata.layout)}
    count, embedding = metadata.block_count, metadata.embedding_length
    if count is None or embedding is None:
        return None
    facts = _Facts(metadata)
    vocabulary = metadata.vocabulary_size or 0
    if "token_embd.weight" in tensors and not vocabulary:
        vocabulary = tensors["token_embd.weight"].dims[-1]
    conv_state, scan_state = _states(facts, embedding)
    encoder = metadata.architecture in ENCODERS
    return ModelShape(
        architecture=metadata.architecture,
        layers=_layers(facts, count, embedding),
        embedding=embedding,
        vocabulary=vocabulary,
        trained_context=metadata.context_length or 0,
        conv_state=conv_state,
        scan_state=scan_state,
        mla="attention.key_length_mla" in facts.numbers,
        encoder=encoder,
        causal=metadata.causal is not False and not encoder,
        pooling=metadata.pooling,
        tokenizer=str(metadata.fields.get("tokenizer.ggml.model", "")),
        tensors=tensors,
        numbers=facts.numbers,
        scales=facts.scales,
    )


class _Facts:
    """The header's numbers, by key without the architecture, single or by layer."""

    def __init__(self, metadata: ModelMetadata) -> None:
        self.architecture = metadata.architecture
        prefix = metadata.architecture + "."
        own = {key.removeprefix(prefix): value for key, value in metadata.fields.items() if key.startswith(prefix)}
        self.numbers = {key: int(value) for key, value in own.items() if isinstance(value, int)}
        self.scales = {key: float(value) for key, value in own.items() if isinstance(value, float)}
        self._arrays = {
            key.removeprefix(prefix): values
            for key, values in number_arrays(metadata.layout).items()
            if key.startswith(prefix)
        }
        if metadata.head_count is not None and "attention.head_count" not in self._arrays:
            self.numbers.setdefault("attention.head_count", metadata.head_count)
        if metadata.head_count_kv is not None and "attention.head_count_kv" not in self.numbers:
            self._arrays.setdefault("attention.head_count_kv", metadata.head_count_kv)

    def by_layer(self, key: str, count: int, default: int = 0) -> tuple[int, ...]:
        """One number a layer."""
        values = self._arrays.get(key)
        if values is None:
            return (self.numbers.get(key, default),) * count
        return (*values, *(default,) * count)[:count]

    def array(self, key: str) -> tuple[int, ...] | None:
        """An array, where the header has one."""
        return self._arrays.get(key)

    def largest(self, key: str) -> int:
        """A number, or the largest of an array."""
        return max(self._arrays.get(key, (self.numbers.get(key, 0),)), default=0)


def _windows(facts: _Facts, count: int) -> tuple[int | None, ...]:
    width = facts.numbers.get("attention.sliding_window", _DEFAULT_WINDOWS.get(facts.architecture, 0))
    if not width or facts.architecture in _WITHOUT_WINDOW:
        return (None,) * count
    pattern = facts.array("attention.sliding_window_pattern")
    if pattern is not None:
        return tuple(width if place < len(pattern) and pattern[place] else None for place in range(count))
    period = facts.numbers.get("attention.sliding_window_pattern", _WINDOW_PERIODS.get(facts.architecture))
    if period is None:
        return (None,) * count
    full = 0 if facts.architecture in _FULL_LAYER_FIRST else period - 1
    return tuple(None if period and place % period == full else width for place in range(count))


def _recurrent(facts: _Facts, heads_kv: tuple[int, ...], feed_forward: tuple[int, ...]) -> tuple[bool, ...]:
    count, name = len(heads_kv), facts.architecture
    if name in _RECURRENT or name in _RECURRENT_AND_ATTENTION:
        return (True,) * count
    if name.startswith("nemotron_h"):
        return tuple(not heads and not width for heads, width in zip(heads_kv, feed_forward, strict=True))
    if name in _RECURRENT_WITHOUT_HEADS:
        return tuple(not heads for heads in heads_kv)
    if name in DELTA_NETS:
        listed = facts.array("attention.recurrent_layers")
        if listed is not None:
            return tuple(bool(value) for value in (*listed, *(0,) * count)[:count])
        interval = facts.numbers.get("full_attention_interval", _FULL_ATTENTION_INTERVAL)
        return tuple((place + 1) % interval != 0 for place in range(count))
    return (False,) * count


def _layers(facts: _Facts, count: int, embedding: int) -> tuple[LayerShape, ...]:
    # Layers that only predict further tokens come last and are loaded, but have no part in the main graph.
    count -= facts.numbers.get("nextn_predict_layers", 0)
    heads = facts.by_layer("attention.head_count", count)
    most_heads = max(heads, default=0) or 1
    heads_kv = facts.by_layer("attention.head_count_kv", count, most_heads if any(heads) else 0)
    feed_forward = facts.by_layer("feed_forward_length", count)
    recurrent = _recurrent(facts, heads_kv, feed_forward)
    windows = _windows(facts, count)
    key = facts.numbers.get("attention.key_length", embedding // most_heads)
    value = facts.numbers.get("attention.value_length", embedding // most_heads)
    key_window = facts.numbers.get("attention.key_length_swa", key)
    value_window = facts.numbers.get("attention.value_length_swa", value)
    first_shared = count - facts.numbers.get("attention.shared_kv_layers", 0)
    both = facts.architecture in _RECURRENT_AND_ATTENTION
    return tuple(
        LayerShape(
            heads=heads[place],
            heads_kv=heads_kv[place],
            key=key if windows[place] is None else key_window,
            value=value if windows[place] is None else value_window,
            window=windows[place],
            attends=(attends := heads_kv[place] > 0 and (both or not recurrent[place])),
            owns_cache=attends and place < first_shared and facts.architecture not in ENCODERS,
            recurrent=recurrent[place],
            feed_forward=feed_forward[place],
        )
        for place in range(count)
    )


def _states(facts: _Facts, embedding: int) -> tuple[int, int]:
    numbers = facts.numbers
    if "wkv.head_size" in numbers:
        shifts = 1 if "qwen" in facts.architecture or facts.architecture == "arwkv7" else 2
        return shifts * embedding, embedding * numbers["wkv.head_size"]
    if "shortconv.l_cache" in numbers:
        return embedding * (numbers["shortconv.l_cache"] - 1), 0
    inner, state = numbers.get("ssm.inner_size", 0), numbers.get("ssm.state_size", 0)
    groups = numbers.get("ssm.group_count", 0)
    return max(numbers.get("ssm.conv_kernel", 1) - 1, 0) * (inner + 2 * groups * state), state * inner
