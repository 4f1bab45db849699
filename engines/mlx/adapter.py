"""MLX's adapter: each method hands on to the file that owns the matter. The server itself is never imported here."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar

from engines.base import AdapterDefaults
from engines.contract import (
    BuildFacts,
    Capability,
    Command,
    CommandOutput,
    DeviceListing,
    Endpoint,
    EngineKind,
    Estimator,
    Health,
    KnownPackage,
    LaunchSettings,
    LogSignal,
    MemoryEstimate,
    ModelMetadata,
    Movable,
    PlanDraft,
)
from engines.declared import Declared
from engines.llama_cpp import generation as llama_generation
from engines.mlx import builds, command, folders, generation, health, memory
from engines.mlx.settings import MlxSettings
from engines.mlx.slots import MlxSlots
from engines.slots import Slots


class MlxAdapter(AdapterDefaults):
    """Implements ``EngineAdapter`` for the MLX server."""

    kind: ClassVar[EngineKind] = EngineKind.MLX
    settings_type: ClassVar[type[LaunchSettings]] = MlxSettings
    model_suffixes: ClassVar[tuple[str, ...]] = (folders.CONFIG,)
    executable_names: ClassVar[tuple[str, ...]] = ()
    known_packages: ClassVar[tuple[KnownPackage, ...]] = (
        KnownPackage(name="mlx", module="mlx_lm", executable="", interpreter=True),
    )
    version_args: ClassVar[tuple[str, ...]] = (str(command.RUN), "--version")
    help_args: ClassVar[tuple[str, ...]] = (str(command.RUN), "--list-options")
    devices_args: ClassVar[tuple[str, ...]] = (str(command.RUN), "--list-devices")
    health_path: ClassVar[str] = health.HEALTH_PATH
    slots_path: ClassVar[str | None] = health.SLOTS_PATH
    slots: ClassVar[Slots | None] = MlxSlots()
    socket_suffix: ClassVar[str | None] = ".sock"
    api_key_variable: ClassVar[str | None] = "ENGINEHOUSE_MLX_API_KEY"
    pass_through_environment: ClassVar[tuple[str, ...]] = ("MLX_*", "METAL_*", "DYLD_*", "LD_LIBRARY_PATH", "OMP_*")
    environment: ClassVar[Mapping[str, str]] = MappingProxyType({"HF_HUB_OFFLINE": "1"})

    def parse_version(self, output: CommandOutput) -> str | None:
        """See ``builds.parse_version``."""
        return builds.parse_version(output)

    def parse_flags(self, output: CommandOutput) -> frozenset[str] | None:
        """See ``builds.parse_flags``."""
        return builds.parse_flags(output)

    def parse_devices(self, output: CommandOutput) -> tuple[DeviceListing, ...] | None:
        """See ``builds.parse_devices``."""
        return builds.parse_devices(output)

    def build_files(self, executable: Path) -> tuple[Path, ...]:
        """See ``builds.build_files``."""
        return builds.build_files(executable)

    def model_root(self, path: Path) -> Path:
        """A model is a folder; its config is how it is found."""
        return path.parent if path.name == folders.CONFIG else path

    def split_files(self, path: Path) -> tuple[Path, ...] | None:
        """See ``folders.model_files``."""
        return folders.model_files(path)

    def read_metadata(self, files: tuple[Path, ...]) -> ModelMetadata:
        """See ``folders.read_metadata``."""
        return folders.read_metadata(files)

    def capabilities(self, metadata: ModelMetadata) -> frozenset[Capability]:
        """Text; vectors only where the config asks for them."""
        del metadata
        return frozenset({Capability.CHAT})

    def movable(self, metadata: ModelMetadata, settings: LaunchSettings) -> Movable:
        """All layers lie in the one memory; the type of the cache is the owner's choice (``kv_bits``)."""
        del settings
        del metadata
        return Movable(layers=None, expert_layers=0, cache_types=(), owned=frozenset())

    def estimate_memory(self, draft: PlanDraft) -> Mapping[str, MemoryEstimate]:
        """See ``memory.estimate_memory``."""
        return memory.estimate_memory(draft)

    def estimator(self, metadata: ModelMetadata) -> Estimator:
        """See ``memory.estimator``."""
        return memory.estimator(metadata)

    def command(self, draft: PlanDraft, facts: BuildFacts) -> Command:
        """See ``command.build_command``."""
        return command.build_command(draft, facts)

    def endpoint_args(self, endpoint: Endpoint) -> tuple[str, ...]:
        """See ``command.endpoint_args``."""
        return command.endpoint_args(endpoint)

    def read_line(self, line: str) -> LogSignal | None:
        """See ``health.read_line``."""
        return health.read_line(line)

    def read_declared(self, line: str) -> Declared | None:
        """See ``health.read_declared``."""
        return health.read_declared(line)

    def read_health(self, status: int, body: bytes) -> Health:
        """See ``health.read_health``."""
        return health.read_health(status, body)

    def prepare_generation(self, body: dict[str, Any], *, progress: bool = True) -> dict[str, Any]:
        """See ``generation.prepare_generation``."""
        return generation.prepare_generation(body, progress=progress)

    def stop_string(self, data: bytes) -> str | None:
        """See ``generation.stop_string``."""
        return generation.stop_string(data)

    def can_stream(self, body: dict[str, Any]) -> bool:
        """Everything."""
        del body
        return True

    def is_progress(self, data: bytes) -> bool:
        """See ``generation.is_progress``."""
        return generation.is_progress(data)

    def count_tokens(self, body: dict[str, Any]) -> Generator[tuple[str, dict[str, Any]], bytes, int]:
        """As llama-server is asked: a chat's prompt by its template, then that one's tokens."""
        return llama_generation.count_tokens(body)

    def exclusive_load(self, devices: tuple[str, ...] | None) -> bool:
        """On Metal: its allocator and queues are shared, and macOS itself has gone down under a load beside work."""
        return bool(devices) and "Metal" in (devices or ())

    def busy_slots(self, body: bytes) -> int | None:
        """See ``health.busy_slots``."""
        return health.busy_slots(body)
