"""Launch settings of llama-server, as a config writes them under ``launch`` or ``defaults``."""

from __future__ import annotations

import re
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field, WithJsonSchema

from engines.contract import LaunchSettings, SettingsError
from engines.llama_cpp.extra_args import check_extra_args

_CACHE_TYPES = ("f32", "f16", "bf16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl")
_LARGEST_CACHE = 2**30  # MiB
_MIB = re.compile(r"(\d+(?:\.\d+)?)\s*(MiB|GiB)", re.IGNORECASE)
# How a config writes it, for editors and the generated page; held in MiB.
_MIB_FORM = {
    "anyOf": [
        {"type": "string", "pattern": r"^\s*\d+(\.\d+)?\s*[MmGg][Ii][Bb]\s*$"},
        {"enum": [0, "0"]},
        {"type": "null"},
    ],
    "form": "size",
    "unit": "MiB",
}


def _auto(value: object) -> object:
    return None if value == "auto" else value


def _mebibytes(value: object) -> object:
    """``256MiB`` or ``1GiB`` to MiB; llama-server counts its prompt cache in MiB."""
    if value == "auto" or value is None:
        return None
    if value in (0, "0"):
        return 0
    match = _MIB.fullmatch(value.strip()) if isinstance(value, str) else None
    if match is None:
        raise ValueError(f"{value!r} is not a size: write a number and a unit, such as 256MiB or 1GiB, or 0 for none")
    mebibytes = float(match[1]) * (1024 if match[2].lower() == "gib" else 1)
    if mebibytes > _LARGEST_CACHE:
        raise ValueError(f"{value!r} is more memory than any machine has")
    return round(mebibytes)


def _cache_type(value: object) -> object:
    if value is not None and value not in _CACHE_TYPES:
        raise ValueError(f"{value!r} is not a KV type: one of {', '.join(_CACHE_TYPES)}")
    return value


def _extra_args(value: tuple[str, ...] | None) -> tuple[str, ...] | None:
    try:
        check_extra_args(value or ())
    except SettingsError as error:
        raise ValueError(str(error)) from error
    return value


def _setting(description: str, default: Any = None, **limits: Any) -> Any:
    return Field(default=default, description=description, json_schema_extra={"applies": "next launch"}, **limits)


Auto = BeforeValidator(_auto)


class LlamaCppSettings(LaunchSettings):
    """Wishes for one launch; None means that the plan works it out."""

    ctx_size: Annotated[int | None, Auto] = _setting(
        "tokens that one request may use; auto: see the plan", ge=8, strict=True
    )
    min_ctx_size: Annotated[int | None, Auto] = _setting(
        "the context is never made smaller than this", ge=8, strict=True
    )
    slots: Annotated[int | None, Auto] = _setting(
        "requests served at once; auto: see the plan", ge=1, le=256, strict=True
    )
    kv_unified: bool | None = _setting("true: all slots share one pool of ctx_size tokens")
    threads: Annotated[int | None, Auto] = _setting(
        "threads for generation; auto: see the plan", ge=1, le=1024, strict=True
    )
    threads_batch: Annotated[int | None, Auto] = _setting(
        "threads for prompts; auto: see the plan", ge=1, le=1024, strict=True
    )
    batch_size: Annotated[int | None, Auto] = _setting(
        "tokens of a prompt between two looks at the clients", ge=1, strict=True
    )
    ubatch_size: Annotated[int | None, Auto] = _setting(
        "tokens computed at once; auto: the engine's own", ge=1, strict=True
    )
    devices: Annotated[tuple[str, ...] | None, Auto] = _setting("the build's device names to use; [] for CPU only")
    n_gpu_layers: Annotated[int | None, Auto] = _setting("layers on devices; auto: see the plan", ge=0, strict=True)
    cache_type: Annotated[
        str | None, BeforeValidator(_cache_type), Auto, WithJsonSchema({"enum": [*_CACHE_TYPES, None]})
    ] = _setting("type of the KV cache")
    cache_ram: Annotated[int | None, BeforeValidator(_mebibytes), WithJsonSchema(_MIB_FORM)] = _setting(
        "host memory for the prompt cache, a size; 0 for none; auto: none where `cache` does as well, else 256MiB"
    )
    draft_tokens: Annotated[int | None, Auto] = _setting(
        "tokens that the draft model (`files.draft`) is ahead; auto: the engine's own", ge=1, le=64, strict=True
    )
    warmup: bool | None = _setting("run the model once empty before it is ready")
    extra_args: Annotated[tuple[str, ...] | None, AfterValidator(_extra_args)] = _setting(
        "more arguments for llama-server, each a string of its own"
    )
