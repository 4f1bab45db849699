"""Launch settings of sd-server, as a config writes them under ``launch`` or ``defaults``."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field, WithJsonSchema

from engines.contract import LaunchSettings, SettingsError
from engines.pictures import EditMode
from engines.sd_cpp.extra_args import check_extra_args

_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*(MiB|GiB)", re.IGNORECASE)
_SIZE_FORM = {
    "anyOf": [{"type": "string", "pattern": r"^\s*\d+(\.\d+)?\s*[MmGg][Ii][Bb]\s*$"}, {"type": "null"}],
    "form": "size",
    "unit": "bytes",
}


def _bytes(value: object) -> object:
    """``8GiB`` to bytes."""
    if value is None or value == "auto" or (isinstance(value, int) and not isinstance(value, bool)):
        return _auto(value)
    match = _SIZE.fullmatch(value.strip()) if isinstance(value, str) else None
    if match is None:
        raise ValueError(f"{value!r} is not a size: write a number and a unit, such as 512MiB or 8GiB")
    return int(float(match[1]) * (2**30 if match[2].lower() == "gib" else 2**20))


def _auto(value: object) -> object:
    return None if value == "auto" else value


def _extra_args(value: tuple[str, ...] | None) -> tuple[str, ...] | None:
    try:
        check_extra_args(value or ())
    except SettingsError as error:
        raise ValueError(str(error)) from error
    return value


def _folder(value: Path | None) -> Path | None:
    if value is None:
        return None
    try:
        value = value.expanduser()
    except RuntimeError as error:
        raise ValueError(f"{value} can't be resolved: {error}") from error
    if not value.is_absolute():
        raise ValueError(f"{value} is not an absolute path: write it from / on")
    return value


def _setting(description: str, default: Any = None, **limits: Any) -> Any:
    return Field(default=default, description=description, json_schema_extra={"applies": "next launch"}, **limits)


Auto = BeforeValidator(_auto)


class SdCppSettings(LaunchSettings):
    """Wishes for one launch; None means that the plan, or the model's own kind, says it."""

    threads: Annotated[int | None, Auto] = _setting("threads; auto: see the plan", ge=1, le=1024, strict=True)
    lora_dir: Annotated[Path | None, AfterValidator(_folder)] = _setting(
        "folder of installed LoRAs, each with a YAML file beside it"
    )
    edit_mode: Annotated[EditMode | None, Auto] = _setting(
        "how source pictures are used; auto: as the kind of model does"
    )
    max_source_images: Annotated[int | None, Auto] = _setting(
        "source pictures that the model uses; auto: as its kind does", ge=0, le=16, strict=True
    )
    edit_only: bool | None = _setting("true: it draws nothing without a source picture")
    width: Annotated[int | None, Auto] = _setting("pixels, where a request says no size", ge=64, le=8192, strict=True)
    height: Annotated[int | None, Auto] = _setting("pixels, where a request says no size", ge=64, le=8192, strict=True)
    steps: Annotated[int | None, Auto] = _setting("steps, where a request says none", ge=1, le=100, strict=True)
    cfg_scale: Annotated[float | None, Auto] = _setting(
        "how strictly the prompt is kept to, where a request says nothing", ge=0, le=100
    )
    flash_attention: bool | None = _setting("true: attention in less memory; some devices are slower with it")
    vae_tiling: Annotated[bool | None, Auto] = _setting(
        "decode pictures in tiles: less memory, more time; auto: where they would not fit otherwise"
    )
    device_memory: Annotated[int | None, BeforeValidator(_bytes), WithJsonSchema(_SIZE_FORM)] = _setting(
        "memory of the build's device that is this engine's; not set: not known, and all is counted as host memory",
        ge=2**20,
        le=2**50,
    )
    offload_to_cpu: Annotated[bool | None, Auto] = _setting(
        "weights stay in host memory, and go to the device when needed; auto: where device_memory holds no more"
    )
    clip_on_cpu: Annotated[bool | None, Auto] = _setting(
        "text encoders are computed by the CPU, in host memory; auto: where device_memory holds no more"
    )
    vae_on_cpu: Annotated[bool | None, Auto] = _setting(
        "the autoencoder is computed by the CPU, in host memory; auto: where device_memory holds no more"
    )
    extra_args: Annotated[tuple[str, ...] | None, AfterValidator(_extra_args)] = _setting(
        "more arguments for sd-server, each a string of its own"
    )
