"""Tiny models for MLX, written in a second: real files of the real format, with answers that are words.

Attention and MLP weights are small random numbers; the output layer is fitted to the bigrams of ``TEXT``. Every kernel
of the engine runs, and what comes out can be told apart: a toy, not a model. Greedy answers hardly depend on the
prompt.
Needs numpy and tokenizers, which come with ``mlx-lm``.
"""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

TEXT = (
    """The quick brown fox jumps over the lazy dog. A farm of small machines answers questions all day long.
Hello! How are you today? I am fine, thank you. What is the capital of France? The capital of France is Paris.
One two three four five six seven eight nine ten. Models, tokens, prompts, queues and workers share the same memory.
Write a short story about a cat and a river. Once upon a time there was a cat who lived near a wide river.
def main(): return 0 # code words too { } [ ] ( ) < > = + - * / ; : , . ! ? 0 1 2 3 4 5 6 7 8 9
"""
    * 4
)
SPECIAL = ["<|bos|>", "<|pad|>", "<|im_start|>", "<|im_end|>"]
THINKING = ["<think>", "</think>", "<tool_call>", "</tool_call>"]
CHATML = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
THINKING_CHATML = (
    "{% if tools %}<|im_start|>system\n# Tools\n{% for tool in tools %}{{ tool | tojson }}\n{% endfor %}"
    'Answer with <tool_call>\n{"name": ..., "arguments": ...}\n</tool_call><|im_end|>\n{% endif %}'
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}"
    "{% for tool_call in m.tool_calls or [] %}{% set tool_call = tool_call.function %}<tool_call>\n"
    '{"name": "{{ tool_call.name }}", "arguments": {{ tool_call.arguments | tojson }}}\n</tool_call>{% endfor %}'
    "<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>\n\n{% endif %}{% endif %}"
)


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes of a toy; ``random``: its answers are no words."""

    architecture: str = "llama"
    layers: int = 2
    hidden: int = 256
    heads: int = 4
    kv_heads: int = 2
    head_size: int = 64
    context: int = 2048
    template: str | None = CHATML
    special: tuple[str, ...] = tuple(SPECIAL)
    random: bool = False


LLAMA = Shape()
DRAFT = Shape(layers=1)
QWEN3 = Shape("qwen3", template=THINKING_CHATML, special=(*SPECIAL, *THINKING))
_NAMES = {"llama": "LlamaForCausalLM", "qwen3": "Qwen3ForCausalLM"}


def write_model(folder: Path, shape: Shape = LLAMA, seed: int = 7) -> Path:
    """A model folder of this shape."""
    import numpy as np  # noqa: PLC0415  not for tests that never come here

    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = _tokenizer(shape.special)
    size = tokenizer.get_vocab_size()
    end = tokenizer.token_to_id("<|im_end|>")
    config = {
        "model_type": shape.architecture,
        "architectures": [_NAMES.get(shape.architecture, "Unknown")],
        "hidden_size": shape.hidden,
        "intermediate_size": shape.hidden,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_size,
        "rms_norm_eps": 1e-5,
        "vocab_size": size,
        "rope_theta": 10000.0,
        "max_position_embeddings": shape.context,
        "tie_word_embeddings": False,
        "torch_dtype": "float16",
        "bos_token_id": tokenizer.token_to_id("<|bos|>"),
        "eos_token_id": end,
    }
    _write_json(folder / "config.json", config)
    tokenizer.save(str(folder / "tokenizer.json"))
    about: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<|bos|>",
        "eos_token": "<|im_end|>",
        "pad_token": "<|pad|>",
        "model_max_length": shape.context,
        "clean_up_tokenization_spaces": False,
    }
    if shape.template is not None:
        about["chat_template"] = shape.template
    _write_json(folder / "tokenizer_config.json", about)
    weights = _weights(np, np.random.default_rng(seed), tokenizer, shape)
    _save(folder / "model.safetensors", weights)
    index = {
        "metadata": {"total_size": int(sum(value.nbytes for value in weights.values()))},
        "weight_map": dict.fromkeys(weights, "model.safetensors"),
    }
    _write_json(folder / "model.safetensors.index.json", index)
    return folder


def _tokenizer(special: tuple[str, ...]) -> Any:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers  # noqa: PLC0415  as above

    made = Tokenizer(models.BPE(unk_token=None))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.post_processor = processors.ByteLevel(trim_offsets=False)
    trainer = trainers.BpeTrainer(
        vocab_size=640,
        special_tokens=list(special),
        show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    made.train_from_iterator([TEXT], trainer)
    return made


def _weights(np: Any, random: Any, tokenizer: Any, shape: Shape) -> dict[str, Any]:
    hidden, vocabulary = shape.hidden, tokenizer.get_vocab_size()

    def normal(rows: int, columns: int, gain: float = 1.0) -> Any:
        scale = gain / np.sqrt(columns)
        return (random.standard_normal((rows, columns), dtype=np.float32) * scale).astype(np.float16)

    embedding = random.standard_normal((vocabulary, hidden), dtype=np.float32)
    embedding /= np.sqrt((embedding**2).mean(1, keepdims=True))
    weights = {
        "model.embed_tokens.weight": embedding.astype(np.float16),
        "model.norm.weight": np.ones(hidden, np.float16),
        "lm_head.weight": normal(vocabulary, hidden) if shape.random else _fitted(np, tokenizer, embedding),
    }
    for layer in range(shape.layers):
        prefix = f"model.layers.{layer}."
        weights[prefix + "self_attn.q_proj.weight"] = normal(shape.heads * shape.head_size, hidden)
        weights[prefix + "self_attn.k_proj.weight"] = normal(shape.kv_heads * shape.head_size, hidden)
        weights[prefix + "self_attn.v_proj.weight"] = normal(shape.kv_heads * shape.head_size, hidden)
        weights[prefix + "self_attn.o_proj.weight"] = normal(hidden, shape.heads * shape.head_size, 0.3)
        weights[prefix + "mlp.gate_proj.weight"] = normal(hidden, hidden)
        weights[prefix + "mlp.up_proj.weight"] = normal(hidden, hidden)
        weights[prefix + "mlp.down_proj.weight"] = normal(hidden, hidden, 0.3)
        weights[prefix + "input_layernorm.weight"] = np.ones(hidden, np.float16)
        weights[prefix + "post_attention_layernorm.weight"] = np.ones(hidden, np.float16)
        if shape.architecture == "qwen3":
            weights[prefix + "self_attn.q_norm.weight"] = np.ones(shape.head_size, np.float16)
            weights[prefix + "self_attn.k_norm.weight"] = np.ones(shape.head_size, np.float16)
    return weights


def _fitted(np: Any, tokenizer: Any, embedding: Any) -> Any:
    """An output layer that gives each token the scores of what follows it in ``TEXT``."""
    vocabulary, hidden = embedding.shape
    tokens = np.array(tokenizer.encode(TEXT).ids)
    pairs = np.zeros((vocabulary, vocabulary), np.float32)
    np.add.at(pairs, (tokens[:-1], tokens[1:]), 1.0)
    single = np.bincount(tokens, minlength=vocabulary).astype(np.float32)
    likely = pairs + 0.02 * (single / single.sum())[None, :] + 1e-6
    likely /= likely.sum(1, keepdims=True)
    question, end = tokenizer.token_to_id("?"), tokenizer.token_to_id("<|im_end|>")
    likely[question] *= 0.2  # a question mark ends an answer
    likely[question, end] += 0.8
    scores = np.maximum(np.log(likely), -9.0)
    weight = (0.02 + np.sqrt(single))[:, None]  # tokens that the text uses count most
    square = embedding.T @ (weight * embedding) + 1e-3 * np.eye(hidden)
    return np.linalg.solve(square, embedding.T @ (weight * scores)).T.astype(np.float16)


def _save(path: Path, tensors: dict[str, Any]) -> None:
    names = {"float16": "F16", "float32": "F32"}
    head: dict[str, Any] = {"__metadata__": {"format": "mlx"}}
    offset = 0
    for name, value in tensors.items():
        span = [offset, offset + value.nbytes]
        head[name] = {"dtype": names[str(value.dtype)], "shape": list(value.shape), "data_offsets": span}
        offset += value.nbytes
    header = json.dumps(head).encode()
    header += b" " * (-len(header) % 8)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(header)) + header)
        for value in tensors.values():
            file.write(value.tobytes())


def _write_json(path: Path, document: Any) -> None:
    path.write_text(json.dumps(document, indent=1), encoding="utf-8")
