"""Reads the folder of an MLX model: ``config.json``, the index of its weights, and the heads of its safetensors."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from engines.contract import ModelFileError, ModelMetadata, NotAModelError

CONFIG = "config.json"
INDEX = "model.safetensors.index.json"
_WEIGHTS = "model*.safetensors"
_TOKENIZERS = ("tokenizer.json", "tokenizer.model", "tiktoken.model", "tokenizer_config.json")
_ANSWERS = ("ForCausalLM", "ForConditionalGeneration", "LMHeadModel")
_LARGEST_JSON = 64 * 2**20
_LARGEST_HEAD = 100 * 2**20
_SCALARS = (str, int, float, bool)
# Parts of a config whose numbers are those of the text model.
TEXT_PARTS = ("text_config", "language_config", "llm_config")


def model_files(path: Path) -> tuple[Path, ...]:
    """``config.json`` first, then the index if there is one, then all weights, by name.

    Args:
        path: the folder, or its ``config.json``.

    Raises:
        NotAModelError: there is none of the two, or no weights beside it.
        ModelFileError: a part that the index names is missing.
    """
    folder = path.parent if path.name == CONFIG else path
    config = folder / CONFIG
    if path.name != CONFIG and not path.is_dir():
        raise NotAModelError(f"{path.name} is no folder of an MLX model.")
    if not config.is_file():
        raise NotAModelError(f"{folder.name} holds no {CONFIG}: it is no MLX model.")
    weights = tuple(sorted(folder.glob(_WEIGHTS)))
    if not weights:
        raise NotAModelError(f"{folder.name} holds no model*.safetensors: it is no MLX model.")
    index = folder / INDEX
    if not index.is_file():
        return (config, *weights)
    missing = sorted(_named(index) - {part.name for part in weights})
    if missing:
        raise ModelFileError(f"{folder.name} lacks {missing[0]}, which its index names. Fetch it again.")
    return (config, index, *weights)


def read_metadata(files: tuple[Path, ...]) -> ModelMetadata:
    """Facts of a model from its files, in the order of ``model_files``.

    Raises:
        NotAModelError: it is sound, but does not write text, or lacks its tokens.
        ModelFileError: it is damaged.
    """
    folder = files[0].parent
    config = read_json(files[0])
    architecture = config.get("model_type")
    if not isinstance(architecture, str) or not architecture:
        raise NotAModelError(f"{folder.name}/{CONFIG} names no model_type: it is no MLX model.")
    classes = config.get("architectures")
    if isinstance(classes, list) and classes and not any(str(name).endswith(_ANSWERS) for name in classes):
        raise NotAModelError(f"{folder.name} is a {classes[0]}, which writes no text.")
    if not any((folder / name).is_file() for name in _TOKENIZERS):
        raise NotAModelError(f"{folder.name} holds no tokenizer: it is no whole model.")
    weights = [path for path in files if path.suffix == ".safetensors"]
    text = text_part(config)
    heads = _number(text, "num_attention_heads", "n_head")
    quantization = config.get("quantization") or config.get("quantization_config")
    return ModelMetadata(
        format="mlx",
        architecture=architecture,
        file_bytes=sum(path.stat().st_size for path in files),
        tensor_bytes=sum(_tensor_bytes(path) for path in weights),
        name=folder.name,
        quantization=_quantization(quantization, text),
        context_length=_number(text, "max_position_embeddings", "max_sequence_length", "n_positions"),
        block_count=_number(text, "num_hidden_layers", "n_layer", "num_layers"),
        embedding_length=_number(text, "hidden_size", "n_embd"),
        head_count=heads,
        head_count_kv=_kv_heads(text, heads),
        key_length=_number(text, "head_dim", "qk_head_dim"),
        value_length=_number(text, "v_head_dim", "head_dim"),
        vocabulary_size=_number(text, "vocab_size"),
        has_chat_template=_has_template(folder),
        split_count=len(weights),
        fields=_fields(text),
        layout={"layer_types": _strings(text.get("layer_types"))},
    )


def text_part(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The config of the text model: models with eyes keep it in a part of its own."""
    for name in TEXT_PARTS:
        part = config.get(name)
        if isinstance(part, dict):
            return {**config, **part}
    return config


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object.

    Raises:
        ModelFileError: can't be read, or is none.
    """
    try:
        if path.stat().st_size > _LARGEST_JSON:
            raise ModelFileError(f"{path.name} is far too large to be one.")
        document = json.loads(path.read_bytes())
    except OSError as error:
        raise ModelFileError(f"{path.name} can't be opened: {error.strerror}.") from error
    except (ValueError, RecursionError) as error:
        raise ModelFileError(f"{path.parent.name}/{path.name} is no JSON: {error}.") from error
    if not isinstance(document, dict):
        raise ModelFileError(f"{path.parent.name}/{path.name} is no JSON object.")
    return document


def _named(index: Path) -> set[str]:
    """The files that an index names."""
    table = read_json(index).get("weight_map")
    return {str(name) for name in table.values()} if isinstance(table, dict) else set()


def _tensor_bytes(path: Path) -> int:
    """Bytes of the tensors of one file: all but its head, which is checked against the file's size.

    Raises:
        ModelFileError: cut short, or no safetensors.
    """
    try:
        size = path.stat().st_size
        with path.open("rb") as stream:
            (length,) = struct.unpack("<Q", stream.read(8))
            head = json.loads(stream.read(length)) if length <= min(size, _LARGEST_HEAD) else None
    except OSError as error:
        raise ModelFileError(f"{path.name} can't be opened: {error.strerror}.") from error
    except (struct.error, ValueError, RecursionError) as error:
        raise ModelFileError(f"{path.name} is no safetensors file, or cut short. Fetch it again.") from error
    if not isinstance(head, dict):
        raise ModelFileError(f"{path.name} is no safetensors file, or cut short. Fetch it again.")
    ends = [_end(tensor) for name, tensor in head.items() if name != "__metadata__"]
    end = max(ends, default=0)
    if size < 8 + length + end:
        raise ModelFileError(f"{path.name} is cut short: {size} bytes of {8 + length + end}. Fetch it again.")
    return end


def _end(tensor: Any) -> int:
    offsets = tensor.get("data_offsets") if isinstance(tensor, dict) else None
    good = isinstance(offsets, list) and len(offsets) == 2 and all(isinstance(one, int) for one in offsets)  # noqa: PLR2004  begin and end
    return int(offsets[1]) if good and offsets is not None else 0


def _number(config: Mapping[str, Any], *names: str) -> int | None:
    for name in names:
        value = config.get(name)
        if isinstance(value, int) and not isinstance(value, bool) and value > 0:
            return value
    return None


def _kv_heads(config: Mapping[str, Any], heads: int | None) -> tuple[int, ...] | None:
    value = config.get("num_key_value_heads")
    if isinstance(value, list) and value and all(isinstance(one, int) and one > 0 for one in value):
        return tuple(value)
    number = _number(config, "num_key_value_heads", "multi_query_group_num")
    found = number if number is not None else heads
    return None if found is None else (found,)


def _quantization(quantization: Any, config: Mapping[str, Any]) -> str:
    bits = quantization.get("bits") if isinstance(quantization, dict) else None
    if isinstance(bits, int):
        return f"{bits}bit"
    named = config.get("torch_dtype") or config.get("dtype")
    return named if isinstance(named, str) else "unknown"


def _has_template(folder: Path) -> bool:
    if any((folder / name).is_file() for name in ("chat_template.jinja", "chat_template.json")):
        return True
    try:
        return bool(read_json(folder / "tokenizer_config.json").get("chat_template"))
    except ModelFileError:
        return False


def _fields(config: Mapping[str, Any]) -> dict[str, str | int | float | bool]:
    """All scalars; longer texts are no facts."""
    longest = 200
    scalars = {key: value for key, value in config.items() if isinstance(value, _SCALARS)}
    return {key: value for key, value in scalars.items() if not isinstance(value, str) or len(value) <= longest}


def _strings(value: Any) -> tuple[str, ...]:
    return tuple(map(str, value)) if isinstance(value, list) else ()
