"""Launch settings of sd-server, as a config writes them under ``launch`` or ``defaults``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field

from engines.contract import LaunchSettings, SettingsError
from engines.pictures import EditMode
from engines.sd_cpp.extra_args import check_extra_args


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
    offload_to_cpu: bool | None = _setting("weights stay in host memory, and go to the device when they are needed")
    clip_on_cpu: bool | None = _setting("text encoders are computed by the CPU, in host memory")
    vae_on_cpu: bool | None = _setting("the autoencoder is computed by the CPU, in host memory")
    extra_args: Annotated[tuple[str, ...] | None, AfterValidator(_extra_args)] = _setting(
        "more arguments for sd-server, each a string of its own"
    )
