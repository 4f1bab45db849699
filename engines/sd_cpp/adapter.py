"""stable-diffusion.cpp's adapter: each method hands on to the file that owns the matter."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import ClassVar

from engines.base import AdapterDefaults
from engines.contract import (
    BuildFacts,
    Capability,
    Command,
    CommandOutput,
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
from engines.formats import diffusion
from engines.pictures import PictureEngine
from engines.sd_cpp import command, devices, extra_args, health, memory
from engines.sd_cpp.drawing import SdCppPictures
from engines.sd_cpp.placement import place
from engines.sd_cpp.settings import SdCppSettings

# One picture at a time: the server locks its one context.
_NOT_MOVABLE = Movable(layers=None, expert_layers=0, cache_types=(), owned=frozenset())


class SdCppAdapter(AdapterDefaults):
    """Implements ``EngineAdapter`` for ``sd-server``."""

    kind: ClassVar[EngineKind] = EngineKind.SD_CPP
    settings_type: ClassVar[type[LaunchSettings]] = SdCppSettings
    model_suffixes: ClassVar[tuple[str, ...]] = (".safetensors",)
    executable_names: ClassVar[tuple[str, ...]] = ("sd-server",)
    known_packages: ClassVar[tuple[KnownPackage, ...]] = ()
    version_args: ClassVar[tuple[str, ...]] = ("--version",)
    help_args: ClassVar[tuple[str, ...]] = ("--help",)
    devices_args: ClassVar[tuple[str, ...]] = ()
    health_path: ClassVar[str] = health.HEALTH_PATH
    parts: ClassVar[Mapping[str, str]] = command.PARTS
    has_context: ClassVar[bool] = False
    pass_through_environment: ClassVar[tuple[str, ...]] = (
        "CUDA_*",
        "NVIDIA_*",
        "GGML_*",
        "HIP_*",
        "HSA_*",
        "ROCR_*",
        "VK_*",
        "LD_LIBRARY_PATH",
        "OMP_*",
        "KMP_*",
        "GOMP_*",
    )
    # Without it a failed check starts a debugger, where there is one, and waits for it.
    environment: ClassVar[Mapping[str, str]] = MappingProxyType(
        {"GGML_NO_BACKTRACE": "1", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    )

    def parse_version(self, output: CommandOutput) -> str | None:
        """See ``devices.parse_version``."""
        return devices.parse_version(output)

    def parse_flags(self, output: CommandOutput) -> frozenset[str] | None:
        """See ``devices.parse_flags``."""
        return devices.parse_flags(output)

    def read_metadata(self, files: tuple[Path, ...]) -> ModelMetadata:
        """See ``diffusion.read_checkpoint``."""
        return diffusion.read_checkpoint(files[0])

    def read_parts(self, parts: Mapping[str, Path]) -> ModelMetadata:
        """See ``diffusion.read_parts``."""
        return diffusion.read_parts(parts)

    def capabilities(self, metadata: ModelMetadata) -> frozenset[Capability]:
        """Pictures, unless the network makes videos only."""
        return frozenset({Capability.IMAGES}) if diffusion.picture_kind(metadata).draws else frozenset()

    def own_threads(self, settings: LaunchSettings) -> bool:
        """Whether ``extra_args`` set the thread count themselves."""
        return isinstance(settings, SdCppSettings) and extra_args.own_threads(settings.extra_args or ())

    def movable(self, _metadata: ModelMetadata, _settings: LaunchSettings) -> Movable:
        """Nothing: what its builds have of devices can't be asked."""
        return _NOT_MOVABLE

    def estimate_memory(self, draft: PlanDraft) -> Mapping[str, MemoryEstimate]:
        """See ``memory.estimate_memory``."""
        placed = place(draft.metadata, command.settings_of(draft))
        return memory.estimate_memory(draft.metadata, placed.host_weights)

    def estimator(self, _metadata: ModelMetadata) -> Estimator:
        """See ``memory.estimate_memory``."""
        return self.estimate_memory

    def command(self, draft: PlanDraft, facts: BuildFacts) -> Command:
        """See ``command.build_command``."""
        return command.build_command(draft, facts)

    def endpoint_args(self, endpoint: Endpoint) -> tuple[str, ...]:
        """See ``command.endpoint_args``."""
        return command.endpoint_args(endpoint)

    def read_line(self, line: str) -> LogSignal | None:
        """See ``health.read_line``."""
        return health.read_line(line)

    def read_health(self, status: int, body: bytes) -> Health:
        """See ``health.read_health``."""
        return health.read_health(status, body)

    def pictures(self) -> PictureEngine | None:
        """See ``drawing.SdCppPictures``."""
        return SdCppPictures()
