"""What the supervisor and an adapter say to each other: frozen values, None for unknown, in bytes and seconds."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from pydantic import BaseModel, ConfigDict

from engines.build_facts import BuildFacts, CommandOutput, DeviceListing, KnownPackage
from engines.exits import ExitEvidence, Verdict
from engines.model_facts import ModelMetadata
from engines.plan_parts import ALONE, Beside, Budget, Choice, MemoryEstimate, Movable, Tried
from engines.vocabulary import (
    Blame,
    Capability,
    EngineError,
    EngineKind,
    FailureKind,
    Health,
    LogSignal,
    ModelFileError,
    NotAModelError,
    RunsHere,
    SettingsError,
)

if TYPE_CHECKING:
    from engines.declared import Declared
    from engines.pictures import PictureEngine
    from engines.slots import Slots

# One import for whoever writes an adapter or uses one.
__all__ = [
    "ALONE",
    "Beside",
    "Blame",
    "Budget",
    "BuildFacts",
    "Capability",
    "Choice",
    "Command",
    "CommandOutput",
    "DeviceListing",
    "Endpoint",
    "EngineAdapter",
    "EngineError",
    "EngineKind",
    "Estimator",
    "ExitEvidence",
    "FailureKind",
    "Health",
    "KnownPackage",
    "LaunchPlan",
    "LaunchSettings",
    "LogSignal",
    "MemoryEstimate",
    "ModelFileError",
    "ModelMetadata",
    "Movable",
    "NotAModelError",
    "PlanDraft",
    "RunsHere",
    "SettingsError",
    "Tried",
    "Verdict",
]


class LaunchSettings(BaseModel):
    """Base of each engine's launch settings: frozen, and unknown keys are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid")


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where an engine listens: a Unix socket, or a loopback port."""

    socket_path: Path | None = None
    port: int | None = None

    def __str__(self) -> str:
        return f"unix:{self.socket_path}" if self.socket_path else f"127.0.0.1:{self.port}"


@dataclass(frozen=True, slots=True)
class PlanDraft:
    """The engine-neutral choices of a plan, before they become a command.

    Attributes:
        settings: the model's launch settings over the engine's defaults.
        devices: the build's device names to use; empty: none; None: left to the engine.
        ctx_size: tokens that one request may use.
        build: what the chosen build says of itself, where that is known.
        tensor_split: layers on each of ``devices``, in their order; empty: left to the engine.
        n_cpu_moe: layers, from the first, whose experts stay in host memory.
        slot_files: folder for what slots hold, which the engine may write to; None: it is not asked to.
    """

    model_id: str
    files: tuple[Path, ...]
    metadata: ModelMetadata
    settings: LaunchSettings
    capabilities: frozenset[Capability]
    threads: int | None
    threads_batch: int | None
    devices: tuple[str, ...] | None
    n_gpu_layers: int | None
    ctx_size: int | None
    slots: int
    cache_type: str | None
    build: BuildFacts | None = None
    tensor_split: tuple[int, ...] = ()
    n_cpu_moe: int = 0
    slot_files: Path | None = None


Estimator = Callable[[PlanDraft], Mapping[str, MemoryEstimate]]
"""Predicted bytes of a draft: ``host``, and each device by the build's name for it."""


@dataclass(frozen=True, slots=True)
class Command:
    """Arguments after the executable, and what could not be said to this build."""

    argv: tuple[str, ...]
    choices: tuple[Choice, ...] = ()


@dataclass(frozen=True, slots=True)
class LaunchPlan:
    """Every choice made to start one process, each with its reason.

    Attributes:
        executable: absolute path of the build's executable.
        argv: arguments after it, without the endpoint, which is added at each launch.
        env: environment on top of the minimal one; holds no secret.
        degraded: what was given up to fit.
        warnings: what was asked for and costs.
        devices, tensor_split, n_cpu_moe: see ``PlanDraft``.
        budgets: what there was to fit into, by pool.
        attempts: what was weighed before, where the first wish did not fit.
        pools: physical memories behind the build's device names.
        kind: name of the launches that take the same memory, by which they are learned from; empty: of none.
        gpu_resident: all layers lie on a device, so that the CPU has next to nothing to compute.
        beside: what else ran then: its share of the threads is fixed at launch.
    """

    model_id: str
    engine: EngineKind
    build: str
    fingerprint: str
    executable: Path
    argv: tuple[str, ...]
    env: Mapping[str, str]
    threads: int | None
    threads_batch: int | None
    n_gpu_layers: int | None
    ctx_size: int | None
    slots: int
    cache_type: str | None
    memory: Mapping[str, MemoryEstimate]
    fits: bool
    rationale: tuple[Choice, ...]
    degraded: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    devices: tuple[str, ...] | None = None
    tensor_split: tuple[int, ...] = ()
    n_cpu_moe: int = 0
    budgets: Mapping[str, Budget] = field(default_factory=dict)
    attempts: tuple[Tried, ...] = ()
    pools: Mapping[str, str] = field(default_factory=dict)
    kind: str = ""
    gpu_resident: bool = False
    beside: Beside = ALONE

    @property
    def counts_on_gpu(self) -> bool:
        """Whether it was planned with a device, or with layers or memory on one."""
        if self.devices is not None and not self.devices:
            return False
        return bool(self.devices or self.n_gpu_layers) or any(pool != "host" for pool in self.memory)


class EngineAdapter(Protocol):
    """All our knowledge of one engine. Stateless; every method is quick, pure, and never awaits.

    Attributes:
        devices_args: empty: it can't be asked for devices.
        metrics_path: where it tells of itself as Prometheus text; None: nowhere.
        parts: roles of the files that a model may come in, each with what it is; empty: models are one file.
        has_context: a request takes up context, and there are caches of it.
    """

    kind: ClassVar[EngineKind]
    settings_type: ClassVar[type[LaunchSettings]]
    model_suffixes: ClassVar[tuple[str, ...]]
    executable_names: ClassVar[tuple[str, ...]]
    known_packages: ClassVar[tuple[KnownPackage, ...]]
    version_args: ClassVar[tuple[str, ...]]
    help_args: ClassVar[tuple[str, ...]]
    devices_args: ClassVar[tuple[str, ...]]
    health_path: ClassVar[str]
    slots_path: ClassVar[str | None]
    metrics_path: ClassVar[str | None]
    slots: ClassVar[Slots | None]
    socket_suffix: ClassVar[str | None]
    api_key_variable: ClassVar[str | None]
    pass_through_environment: ClassVar[tuple[str, ...]]
    environment: ClassVar[Mapping[str, str]]
    parts: ClassVar[Mapping[str, str]]
    has_context: ClassVar[bool]

    def parse_version(self, output: CommandOutput) -> str | None:
        """The version in one line, or None."""
        ...

    def parse_flags(self, output: CommandOutput) -> frozenset[str] | None:
        """Option names that the build knows, or None when it did not say."""
        ...

    def parse_devices(self, output: CommandOutput) -> tuple[DeviceListing, ...] | None:
        """The device listing, or None when it can't be trusted."""
        ...

    def build_files(self, executable: Path) -> tuple[Path, ...]:
        """Files that make it this build beside its bytes; where there are any, two names of it may be two builds."""
        ...

    def model_root(self, path: Path) -> Path:
        """What a model is known by, of a file that was found: the file itself, or the folder that it stands for."""
        ...

    def split_files(self, path: Path) -> tuple[Path, ...] | None:
        """All parts of the model that ``path`` begins, in order; None if it is a later part.

        Raises:
            ModelFileError: a part is missing.
        """
        ...

    def read_metadata(self, files: tuple[Path, ...]) -> ModelMetadata:
        """Facts from the header of the model's files.

        Raises:
            ModelFileError: not a model, cut short, or nonsense inside.
        """
        ...

    def read_parts(self, parts: Mapping[str, Path]) -> ModelMetadata:
        """Facts from the headers of a model that comes in parts, by role.

        Raises:
            ModelFileError: one can't be read, or they make no model.
            SettingsError: a role that there isn't.
        """
        ...

    def capabilities(self, metadata: ModelMetadata) -> frozenset[Capability]:
        """What the model serves unless the config says so itself."""
        ...

    def own_threads(self, settings: LaunchSettings) -> bool:
        """Whether the user's extra arguments set the thread count, so that the plan says nothing."""
        ...

    def movable(self, metadata: ModelMetadata, settings: LaunchSettings) -> Movable:
        """What of a launch of this model may lie elsewhere or be made smaller."""
        ...

    def estimate_memory(self, draft: PlanDraft) -> Mapping[str, MemoryEstimate]:
        """Predicted bytes: ``host``, and each device by the build's name for it."""
        ...

    def estimator(self, metadata: ModelMetadata) -> Estimator:
        """The same for many drafts of one model: it remembers what they share. Not for several threads at once."""
        ...

    def command(self, draft: PlanDraft, facts: BuildFacts) -> Command:
        """The arguments for this plan on this build, without the endpoint.

        Raises:
            SettingsError: the settings ask for something that must not be passed.
        """
        ...

    def endpoint_args(self, endpoint: Endpoint) -> tuple[str, ...]:
        """Arguments that make the engine listen there."""
        ...

    def read_line(self, line: str) -> LogSignal | None:
        """What a log line announces; called for each line, so a cheap test comes first."""
        ...

    def read_declared(self, line: str) -> Declared | None:
        """What a log line tells of memory; called for each line of a load, so a cheap test comes first."""
        ...

    def read_health(self, status: int, body: bytes) -> Health:
        """What an answer of ``health_path`` means."""
        ...

    def prepare_generation(self, body: dict[str, Any], *, progress: bool = True) -> dict[str, Any]:
        """The client's body as it is sent upstream: a stream, that reports progress unless told otherwise."""
        ...

    def prepare_whole(self, body: dict[str, Any]) -> dict[str, Any] | None:
        """The same for a short answer at once; None: the engine is asked for a stream nevertheless."""
        ...

    def name_stop(self, sent: dict[str, Any]) -> dict[str, Any]:
        """The same, so that the answer also says which stop string ended it, where the engine can."""
        ...

    def stop_string(self, data: bytes) -> str | None:
        """The stop string that ended the answer, where a frame's data says so; called for each frame then."""
        ...

    def answer_prefix(self, body: dict[str, Any]) -> str:
        """Text that the engine's whole answer to this body begins with, and its stream does not."""
        ...

    def can_stream(self, body: dict[str, Any]) -> bool:
        """Whether the engine can answer this body as a stream; what it can't is asked whole, and runs on to its end."""
        ...

    def takes_media(self, settings: LaunchSettings, metadata: ModelMetadata | None) -> bool:
        """Whether an engine that is launched so, with these files, can read pictures and sounds."""
        ...

    def is_progress(self, data: bytes) -> bool:
        """Whether an SSE data payload is a progress report that carries no content."""
        ...

    def count_tokens(self, body: dict[str, Any]) -> Generator[tuple[str, dict[str, Any]], bytes, int]:
        """What to ask the engine, path and body, and what its answers mean: the tokens of a chat's prompt.

        Raises:
            ValueError: an answer has another shape.
        """
        ...

    def canary(self) -> Mapping[str, bytes] | None:
        """The files of a model of a few hundred KB that every build of this engine loads, by name, the first one first.

        It tells whether a build works here, apart from any model of the owner's. None: this engine has none.
        """
        ...

    def busy_slots(self, body: bytes) -> int | None:
        """Slots at work, from an answer of ``slots_path``; None if it can't be read."""
        ...

    def exclusive_load(self, devices: tuple[str, ...] | None) -> bool:
        """Whether a load onto these devices must not overlap with work of others for which the same holds."""
        ...

    def pictures(self) -> PictureEngine | None:
        """The part of it that draws; None: it serves no pictures."""
        ...
