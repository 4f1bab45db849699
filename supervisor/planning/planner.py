"""The planner: from what is wished, what the build knows and what the host allows to one frozen launch plan. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engines.contract import (
    BuildFacts,
    Capability,
    Choice,
    EngineAdapter,
    LaunchPlan,
    LaunchSettings,
    MemoryEstimate,
    ModelMetadata,
    PlanDraft,
    SettingsError,
)
from supervisor.errors import PlanError
from supervisor.host.pools import HOST_POOL, PoolRoom
from supervisor.host.snapshot import HostSnapshot
from supervisor.planning.context import ContextRequest, choose_context
from supervisor.planning.placement import choose_placement
from supervisor.planning.threads import ThreadRequest, choose_threads
from supervisor.units import format_size


@dataclass(frozen=True, slots=True)
class BuildForPlan:
    """The chosen build, as the planner needs it; ``why`` is why it was chosen."""

    name: str
    fingerprint: str
    executable: Path
    env: Mapping[str, str]
    facts: BuildFacts
    why: str


@dataclass(frozen=True, slots=True)
class PlanRequest:
    """Everything a plan is made from.

    Attributes:
        launch: the model's own launch settings.
        defaults: the engine's defaults.
        rooms: what may be taken of each pool.
        allow_paging: start even when the weights do not fit.
    """

    model_id: str
    files: tuple[Path, ...]
    metadata: ModelMetadata
    capabilities: frozenset[Capability]
    launch: LaunchSettings
    defaults: LaunchSettings
    build: BuildForPlan
    host: HostSnapshot
    rooms: tuple[PoolRoom, ...]
    allow_paging: bool


def make_plan(request: PlanRequest, adapter: EngineAdapter) -> LaunchPlan:
    """Decide everything and say why.

    Raises:
        PlanError: ``setting_refused``: the settings hold what must not be passed to this engine.
    """
    wishes = _Wishes(request.launch, request.defaults)
    threads = choose_threads(_thread_request(request, wishes, adapter))
    placement = choose_placement(wishes.value("devices"), wishes.value("n_gpu_layers"), request.build.facts.devices)
    context = choose_context(_context_request(request, wishes, threads.threads))
    draft = PlanDraft(
        model_id=request.model_id,
        files=request.files,
        metadata=request.metadata,
        settings=wishes.merged(),
        capabilities=request.capabilities,
        threads=threads.threads,
        threads_batch=threads.threads_batch,
        devices=placement.devices,
        n_gpu_layers=placement.n_gpu_layers,
        ctx_size=context.ctx_size,
        slots=context.slots,
        cache_type=context.cache_type,
        build=request.build.facts,
    )
    try:
        command = adapter.command(draft, request.build.facts)
    except SettingsError as error:
        raise PlanError("setting_refused", f"{request.model_id}: {error}", model=request.model_id) from error
    memory = adapter.estimate_memory(draft)
    fits, room = _fits(request, memory)
    build = Choice("build", request.build.name, request.build.why)
    return LaunchPlan(
        model_id=request.model_id,
        engine=adapter.kind,
        build=request.build.name,
        fingerprint=request.build.fingerprint,
        executable=request.build.executable,
        argv=command.argv,
        env=request.build.env,
        threads=draft.threads,
        threads_batch=draft.threads_batch,
        n_gpu_layers=draft.n_gpu_layers,
        ctx_size=draft.ctx_size,
        slots=draft.slots,
        cache_type=draft.cache_type,
        memory=memory,
        fits=fits,
        rationale=(build, *threads.choices, *placement.choices, *context.choices, room, *command.choices),
        warnings=tuple(choice.reason for choice in threads.choices) if threads.over_budget else (),
    )


class _Wishes:
    """The model's settings over the engine's defaults, each with its place in the config."""

    def __init__(self, launch: LaunchSettings, defaults: LaunchSettings) -> None:
        self._launch = launch
        self._defaults = defaults

    def value(self, name: str) -> Any:
        own = getattr(self._launch, name, None)
        return own if own is not None else getattr(self._defaults, name, None)

    def source(self, name: str) -> str:
        where = "launch" if getattr(self._launch, name, None) is not None else "the engine's defaults"
        return f"{where}.{name}" if where == "launch" else where

    def merged(self) -> LaunchSettings:
        own = {name: value for name, value in self._launch if value is not None}
        return self._launch.model_copy(update={**dict(self._defaults), **own})


def _thread_request(request: PlanRequest, wishes: _Wishes, adapter: EngineAdapter) -> ThreadRequest:
    return ThreadRequest(
        launch_threads=getattr(request.launch, "threads", None),
        default_threads=getattr(request.defaults, "threads", None),
        launch_threads_batch=getattr(request.launch, "threads_batch", None),
        default_threads_batch=getattr(request.defaults, "threads_batch", None),
        extra_args_own=adapter.own_threads(wishes.merged()),
        cpu=request.host.cpu,
    )


def _context_request(request: PlanRequest, wishes: _Wishes, threads: int | None) -> ContextRequest:
    return ContextRequest(
        ctx_size=wishes.value("ctx_size"),
        ctx_source=wishes.source("ctx_size"),
        slots=wishes.value("slots"),
        slots_source=wishes.source("slots"),
        cache_type=wishes.value("cache_type"),
        cache_source=wishes.source("cache_type"),
        threads=threads,
        capabilities=request.capabilities,
        metadata=request.metadata,
    )


def _fits(request: PlanRequest, memory: Mapping[str, MemoryEstimate]) -> tuple[bool, Choice]:
    """Whether the host's part fits; what is not known counts as fitting, and is said."""
    estimate = memory.get(HOST_POOL)
    needed = estimate.total if estimate else None
    room = next((room for room in request.rooms if room.pool == HOST_POOL), None)
    if needed is None or room is None or room.budget is None:
        why = room.why if room else "no room is known"
        return True, Choice("memory", format_size(needed), f"not compared: {why}")
    numbers = f"at least {format_size(needed)} of {format_size(room.budget)} in host memory ({room.why})"
    if needed <= room.budget:
        return True, Choice("memory", format_size(needed), f"{numbers}: fits")
    if request.allow_paging:
        return True, Choice("memory", format_size(needed), f"{numbers}: does not fit, but allow_paging is set")
    return False, Choice("memory", format_size(needed), f"{numbers}: does not fit")
