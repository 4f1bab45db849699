"""Loads a model in the thread that will run it, and says what it is."""

from __future__ import annotations

import importlib.metadata
import platform
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engines.mlx.server.options import DEFAULT_CONTEXT, Options
from engines.mlx.server.spelling import Spelling
from engines.mlx.server.work import ModelFacts

_PACKAGES = ("mlx", "mlx-lm", "transformers", "tokenizers", "llguidance")


@dataclass(frozen=True, slots=True)
class Loaded:
    """A model in memory with what is needed to run it; used in the engine's thread alone, ``spelling`` apart."""

    model: Any
    tokenizer: Any
    spelling: Spelling
    config: Mapping[str, Any]
    facts: ModelFacts


def load_model(options: Options) -> Loaded:
    """Load the weights into memory.

    Raises:
        Exception: whatever MLX, mlx_lm or the tokenizer say of a folder that is no model, or a damaged one.
    """
    folder = _existing(options.model)
    from mlx_lm.models.cache import make_prompt_cache  # noqa: PLC0415  takes seconds
    from mlx_lm.utils import load  # noqa: PLC0415

    from engines.mlx.server.dense import on_the_host  # noqa: PLC0415

    model, tokenizer, config = load(str(folder), tokenizer_config={"trust_remote_code": False}, return_config=True)
    on_the_host(model)
    layers = make_prompt_cache(model, options.max_kv_size)
    facts = _facts(options, model, tokenizer, config, layers)
    return Loaded(model, tokenizer, Spelling(tokenizer), config, facts)


def versions() -> dict[str, str]:
    """Of the packages that matter, as far as they are installed, and of Python."""
    found = {"python": platform.python_version()}
    for name in _PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def _existing(folder: Path) -> Path:
    """A name that is no folder would be looked for at a hub."""
    if not (folder / "config.json").is_file():
        raise FileNotFoundError(2, "no config.json there: model path does not exist or is no model", str(folder))
    if not any(folder.glob("model*.safetensors")):
        raise FileNotFoundError(2, "No safetensors found", str(folder))
    return folder


def _facts(options: Options, model: Any, tokenizer: Any, config: Mapping[str, Any], layers: list[Any]) -> ModelFacts:
    from mlx.utils import tree_flatten  # noqa: PLC0415  loaded by now

    weights = sum(int(value.nbytes) for _, value in tree_flatten(model.parameters()))
    trained = trained_context(config)
    context = options.context or min(trained or DEFAULT_CONTEXT, DEFAULT_CONTEXT)
    thoughts = (tokenizer.think_start, tokenizer.think_end) if tokenizer.has_thinking else None
    return ModelFacts(
        vocabulary=_vocabulary(model, tokenizer),
        context=context,
        has_template=bool(tokenizer.has_chat_template),
        thoughts=thoughts,
        tool_family=tokenizer.init_kwargs.get("tool_parser_type"),
        embeds=_width(model) if options.embeddings else None,
        parameters=weights,
        trained=trained,
        batches=options.kv_bits is None and all(hasattr(layer, "merge") for layer in layers),
        versions=versions(),
        details={"architecture": config.get("model_type"), "layers": len(layers), "place": _place()},
    )


def _place() -> str:
    """The adapter's name for the memory that weights lie in."""
    import mlx.core as mx  # noqa: PLC0415  loaded by now

    return "Metal" if mx.metal.is_available() else "host"


def trained_context(config: Mapping[str, Any]) -> int | None:
    """Tokens that a model was trained on, by its config, or the text part of it."""
    for part in (config, config.get("text_config")):
        if isinstance(part, Mapping):
            value = part.get("max_position_embeddings") or part.get("max_sequence_length") or part.get("n_positions")
            if isinstance(value, int) and value > 0:
                return value
    return None


def _vocabulary(model: Any, tokenizer: Any) -> int:
    """Tokens that can be given to the model: those that it has a vector for."""
    for name in ("embed_tokens", "wte", "embeddings", "tok_embeddings"):
        for part in (getattr(model, "model", None), getattr(model, "transformer", None), model):
            weight = getattr(getattr(part, name, None), "weight", None)
            if weight is not None:
                return int(weight.shape[0])
    return len(tokenizer)


def _width(model: Any) -> int | None:
    """Length of the vectors below the output; None where the model can't be asked for them."""
    inner = getattr(model, "model", None)
    weight = getattr(getattr(inner, "norm", None), "weight", None)
    return int(weight.shape[0]) if callable(inner) and weight is not None else None
