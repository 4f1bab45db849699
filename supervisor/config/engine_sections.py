"""The sections of a config that depend on an engine: its builds and defaults, and the models it serves."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, SerializeAsAny, ValidationInfo, field_validator, model_validator

from engines.contract import Capability, EngineKind, LaunchSettings
from engines.registry import ADAPTERS
from supervisor.config.fields import (
    LIVE,
    NEXT_LAUNCH,
    RESTART,
    Auto,
    ConfigPath,
    Environment,
    HomePath,
    Name,
    Section,
    Switch,
)
from supervisor.config.sections import KeepAlive


def settings_type(kind: EngineKind) -> type[LaunchSettings]:
    """The type of an engine's launch settings."""
    return ADAPTERS[kind].settings_type


def _validate_settings(kind: EngineKind, value: object, context: object) -> LaunchSettings:
    """``value`` as launch settings of ``kind``.

    Raises:
        ValueError: it is not; pydantic's own error keeps the path to each wrong field.
    """
    wanted = settings_type(kind)
    try:
        return wanted.model_validate(value, context=context)
    except ArithmeticError:
        raise ValueError("holds a number that is too large") from None


@dataclass(frozen=True, slots=True)
class _OfEngine:
    """A raw value on its way to a validator that must know the engine."""

    kind: EngineKind
    value: Any


class BuildConfig(Section):
    """One executable of an engine."""

    name: Name = Field(description="name in plans, logs and a model's build key", json_schema_extra=NEXT_LAUNCH)
    executable: ConfigPath = Field(description="path of the executable", json_schema_extra=NEXT_LAUNCH)
    env: Environment = Field(
        {}, repr=False, description="environment for this build, over the engine's", json_schema_extra=NEXT_LAUNCH
    )

    @field_validator("name")
    @classmethod
    def _not_auto(cls, value: str) -> str:
        if value == "auto":
            raise ValueError("a build can't be called auto: that word stands for the builds found by themselves")
        return value


def _build_entry(value: Any, info: ValidationInfo) -> Any:
    if value == "auto" or isinstance(value, BuildConfig):
        return value
    if isinstance(value, dict):
        return BuildConfig.model_validate(value, context=info.context)
    raise ValueError("must be auto, or a build with name and executable")


def _build_list(value: Any) -> Any:
    return ["auto"] if value == "auto" else value


BuildEntry = Annotated[BuildConfig | Literal["auto"], BeforeValidator(_build_entry)]


class EngineConfig(Section):
    """One kind of engine: its environment, its defaults, its builds."""

    env: Environment = Field(
        {}, repr=False, description="environment for every build of this engine", json_schema_extra=NEXT_LAUNCH
    )
    defaults: SerializeAsAny[LaunchSettings] = Field(
        default_factory=LaunchSettings,
        description="launch settings for every model of this engine",
        json_schema_extra=NEXT_LAUNCH,
    )
    builds: Annotated[tuple[BuildEntry, ...], BeforeValidator(_build_list)] = Field(
        ("auto",),
        description="in order of preference; auto: those on PATH and in installed packages",
        json_schema_extra=NEXT_LAUNCH,
    )

    @model_validator(mode="before")
    @classmethod
    def _pass_engine_on(cls, data: Any) -> Any:
        if isinstance(data, _OfEngine) and isinstance(data.value, dict):
            defaults = data.value.get("defaults")
            return {**data.value, "defaults": _OfEngine(data.kind, {} if defaults is None else defaults)}
        return data.value if isinstance(data, _OfEngine) else data

    @field_validator("defaults", mode="before")
    @classmethod
    def _settings_of_engine(cls, value: Any, info: ValidationInfo) -> Any:
        return _validate_settings(value.kind, value.value, info.context) if isinstance(value, _OfEngine) else value


class PresetConfig(Section):
    """What is done to a request that comes under one name: first ``strip``, then ``default``, then ``set``."""

    strip: tuple[str, ...] = Field((), description="fields that are taken out", json_schema_extra=LIVE)
    default: dict[str, Any] = Field(
        {}, description="fields and their values where the request has none", json_schema_extra=LIVE
    )
    set: dict[str, Any] = Field(
        {}, description="fields and their values, whatever the request says", json_schema_extra=LIVE
    )


class ModelConfig(Section):
    """A name that clients ask for."""

    engine: EngineKind = Field(EngineKind.LLAMA_CPP, description="kind of engine", json_schema_extra=NEXT_LAUNCH)
    file: HomePath | None = Field(
        None,
        description="the model's (first) file: absolute, or relative to one of model_dirs",
        json_schema_extra=NEXT_LAUNCH,
    )
    files: dict[str, HomePath] = Field(
        {},
        description="files by role: parts of a model that comes in several, or what goes with `file`: for llama.cpp "
        "mmproj (a projector: the model reads pictures or sound) and draft (a smaller model that guesses ahead)",
        json_schema_extra=NEXT_LAUNCH,
    )
    serves: Annotated[tuple[Capability, ...] | None, Auto] = Field(
        None, min_length=1, description="what it is asked for; auto: read from the files", json_schema_extra=NEXT_LAUNCH
    )
    aliases: tuple[Name, ...] = Field((), description="more names for it", json_schema_extra=LIVE)
    presets: dict[Name, PresetConfig] = Field(
        {}, description="by name (its own, or an alias): what is done to requests under it", json_schema_extra=LIVE
    )
    unlisted: Switch = Field(default=False, description="true: served by name, in no list", json_schema_extra=LIVE)
    keep_alive: KeepAlive = Field(
        600,
        description="an idle instance stays for this long; 0: stops at once; never or forever: never stops for that",
        json_schema_extra=LIVE,
    )
    pinned: Switch = Field(default=False, description="true: never evicted", json_schema_extra=LIVE)
    preload: Switch = Field(default=False, description="true: started with the daemon", json_schema_extra=RESTART)
    build: Annotated[Name | None, Auto] = Field(
        None, description="a build's name, used even when set aside; auto: chosen", json_schema_extra=NEXT_LAUNCH
    )
    allow_paging: Switch = Field(
        default=False,
        description="true: may be started when its weights do not fit in memory",
        json_schema_extra=NEXT_LAUNCH,
    )
    launch: SerializeAsAny[LaunchSettings] = Field(
        default_factory=LaunchSettings,
        validate_default=True,
        description="launch settings, over the engine's defaults",
        json_schema_extra=NEXT_LAUNCH,
    )

    @field_validator("launch", mode="before")
    @classmethod
    def _settings_of_engine(cls, value: Any, info: ValidationInfo) -> Any:
        kind = info.data.get("engine")
        if kind is None:
            return LaunchSettings()  # the engine is wrong already, so nothing can be said of its settings
        if type(value) is LaunchSettings:
            value = {}
        return _validate_settings(kind, value, info.context)


def tag_engines(value: Any) -> Any:
    """Hand each engine's kind down to its settings, and add the engines that are not named."""
    if not isinstance(value, dict):
        return value
    tagged: dict[Any, Any] = {}
    for key, entry in value.items():
        try:
            kind = EngineKind(key)
        except ValueError:
            tagged[key] = entry
            continue
        if isinstance(entry, EngineConfig) and type(entry.defaults) is LaunchSettings:
            tagged[kind] = entry.model_copy(update={"defaults": settings_type(kind)()})
        else:
            tagged[kind] = entry if isinstance(entry, EngineConfig) else _OfEngine(kind, entry)
    for kind in EngineKind:
        tagged.setdefault(kind, _OfEngine(kind, {}))
    return tagged
