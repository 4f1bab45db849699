"""The config as the daemon holds it: frozen, with durations in seconds and sizes in bytes.

``auto`` in a file is None here where it means "work it out". Each field says in ``json_schema_extra["applies"]`` when a
change of it takes effect: ``live``, ``next launch`` or ``restart``.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, ValidationInfo, model_validator

from engines.contract import EngineKind
from supervisor.config.engine_sections import (
    BuildConfig,
    EngineConfig,
    ModelConfig,
    PresetConfig,
    settings_type,
    tag_engines,
)
from supervisor.config.fields import (
    LIVE,
    NEXT_LAUNCH,
    RESTART,
    ConfigPath,
    Name,
    Section,
    SocketFolder,
    file_context,
)
from supervisor.config.places import default_data_dir, default_runtime_dir, default_state_dir
from supervisor.config.sections import (
    AuthConfig,
    BrokerConfig,
    CacheConfig,
    CallerConfig,
    DeviceConfig,
    EvictionConfig,
    HostConfig,
    Lane,
    ListenConfig,
    LivenessConfig,
    PicturesConfig,
    QuarantineConfig,
    QueueConfig,
    ReadinessConfig,
    ReserveConfig,
    RestartConfig,
    Role,
    ShutdownConfig,
    StopConfig,
    SupervisionConfig,
    TlsConfig,
)

__all__ = [
    "AuthConfig",
    "BrokerConfig",
    "BuildConfig",
    "CacheConfig",
    "CallerConfig",
    "Concession",
    "Config",
    "DeviceConfig",
    "EngineConfig",
    "EvictionConfig",
    "HostConfig",
    "Lane",
    "ListenConfig",
    "LivenessConfig",
    "ModelConfig",
    "PicturesConfig",
    "PresetConfig",
    "QuarantineConfig",
    "QueueConfig",
    "ReadinessConfig",
    "ReserveConfig",
    "RestartConfig",
    "Role",
    "ShutdownConfig",
    "StopConfig",
    "SupervisionConfig",
    "TlsConfig",
    "settings_type",
]

Concession = Literal["slots", "cache_type", "ctx_size", "experts_to_cpu", "n_gpu_layers", "cpu"]
_ALL_CONCESSIONS: tuple[Concession, ...] = ("slots", "cache_type", "ctx_size", "experts_to_cpu", "n_gpu_layers", "cpu")


def _only_data_dir(data: dict[str, Any]) -> tuple[Path, ...]:
    return (data["data_dir"],) if "data_dir" in data else ()


class Config(Section):
    """All of it; ``Config()`` is what a machine without a config file gets."""

    version: Literal[1] = Field(1, description="version of this format", json_schema_extra=RESTART)
    listen: ListenConfig = Field(ListenConfig(), description="the address", json_schema_extra=RESTART)
    state_dir: ConfigPath = Field(
        default_factory=lambda: Path(default_state_dir(os.environ)),
        description="what outlives a restart; one daemon each: locked",
        json_schema_extra=RESTART,
    )
    data_dir: ConfigPath = Field(
        default_factory=lambda: Path(default_data_dir(os.environ)),
        description="fetched models",
        json_schema_extra=RESTART,
    )
    runtime_dir: SocketFolder = Field(
        default_factory=lambda: Path(default_runtime_dir(os.environ)),
        description="sockets; auto: $XDG_RUNTIME_DIR/enginehouse, else a private folder in the temp folder",
        json_schema_extra=RESTART,
    )
    auth: AuthConfig = Field(AuthConfig(), description="who may use the address", json_schema_extra=LIVE)
    host: HostConfig = Field(HostConfig(), description="what of the machine may be used", json_schema_extra=LIVE)
    engines: Annotated[dict[EngineKind, EngineConfig], BeforeValidator(tag_engines)] = Field(
        default_factory=dict, validate_default=True, description="engines by kind", json_schema_extra=NEXT_LAUNCH
    )
    model_dirs: tuple[ConfigPath, ...] = Field(
        default_factory=_only_data_dir,
        description="folders that are searched for models; without this key: data_dir",
        json_schema_extra=LIVE,
    )
    models: dict[Name, ModelConfig] = Field({}, description="models by name", json_schema_extra=LIVE)
    concessions: tuple[Concession, ...] = Field(
        _ALL_CONCESSIONS,
        description="what a plan may give up to fit, in this order; leave one out to forbid it",
        json_schema_extra=NEXT_LAUNCH,
    )
    broker: BrokerConfig = Field(BrokerConfig(), description="queue and eviction", json_schema_extra=LIVE)
    pictures: PicturesConfig = Field(
        PicturesConfig(), description="limits of requests for pictures", json_schema_extra=LIVE
    )
    cache: CacheConfig = Field(CacheConfig(), description="conversations that are kept on disk", json_schema_extra=LIVE)
    supervision: SupervisionConfig = Field(
        SupervisionConfig(), description="keeping instances healthy", json_schema_extra=LIVE
    )
    shutdown: ShutdownConfig = Field(ShutdownConfig(), description="how the daemon ends", json_schema_extra=LIVE)

    @model_validator(mode="before")
    @classmethod
    def _default_places(cls, data: Any, info: ValidationInfo) -> Any:
        """A file's defaults follow the environment that it is read with."""
        context = file_context(info)
        if not isinstance(data, dict) or context is None:
            return data
        env = context.env
        filled = {"state_dir": default_state_dir(env), "data_dir": default_data_dir(env), **data}
        if filled.get("runtime_dir", "auto") == "auto":
            filled["runtime_dir"] = default_runtime_dir(env)
        return filled
