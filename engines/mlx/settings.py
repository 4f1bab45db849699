"""Launch settings of the MLX server, as a config writes them under ``launch`` or ``defaults``."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, WithJsonSchema

from engines.contract import LaunchSettings

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
    """``256MiB`` or ``1GiB`` to MiB."""
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


def _setting(description: str, default: Any = None, **limits: Any) -> Any:
    return Field(default=default, description=description, json_schema_extra={"applies": "next launch"}, **limits)


Auto = BeforeValidator(_auto)
Size = Annotated[int | None, BeforeValidator(_mebibytes), WithJsonSchema(_MIB_FORM)]


class MlxSettings(LaunchSettings):
    """Wishes for one launch; None means that the plan works it out."""

    ctx_size: Annotated[int | None, Auto] = _setting(
        "tokens that one request may use; auto: see the plan", ge=8, strict=True
    )
    min_ctx_size: Annotated[int | None, Auto] = _setting(
        "the context is never made smaller than this", ge=8, strict=True
    )
    slots: Annotated[int | None, Auto] = _setting(
        "requests computed together; auto: see the plan", ge=1, le=256, strict=True
    )
    threads: Annotated[int | None, Auto] = _setting(
        "threads of the libraries around MLX; MLX itself takes one on a CPU", ge=1, le=1024, strict=True
    )
    prefill_step: Annotated[int | None, Auto] = _setting(
        "tokens of a prompt read at once while no answer waits; auto: 512", ge=16, le=16384, strict=True
    )
    decode_pause: Annotated[int | None, Auto] = _setting(
        "milliseconds that reading a prompt may hold up running answers; auto: 100", ge=1, le=10000, strict=True
    )
    kv_bits: Annotated[Literal[4, 8] | None, Auto] = _setting(
        "bits of the KV cache; requests are then computed one by one; auto: as the model computes"
    )
    max_kv_size: Annotated[int | None, Auto] = _setting(
        "tokens of a rotating window, beyond which the oldest are forgotten; auto: all are kept", ge=64, strict=True
    )
    cache_ram: Size = _setting("host memory for prompts that may come again, as a size; 0 for none; auto: 256MiB")
    cache_disk: Size = _setting("what of it may lie on disk, to outlive the engine; 0 for none; auto: 2GiB")
    draft_model: Annotated[str | None, Auto] = _setting(
        "folder of a smaller model with the same tokens, for speculative decoding; auto: none"
    )
    draft_tokens: Annotated[int | None, Auto] = _setting(
        "tokens that the draft model is ahead; auto: 3", ge=1, le=64, strict=True
    )
