"""The planner: from what is wished, what the build knows and what the host allows to one frozen launch plan. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from engines.contract import (
    ALONE,
    Beside,
    BuildFacts,
    Capability,
    Choice,
    Command,
    EngineAdapter,
    LaunchPlan,
    LaunchSettings,
    ModelMetadata,
    Movable,
    PlanDraft,
    SettingsError,
)
from supervisor.errors import PlanError
from supervisor.host.pools import PoolRoom
from supervisor.host.snapshot import HostSnapshot
from supervisor.planning.concessions import LEAST_CTX, STEPS, Ladder, concede
from supervisor.planning.context import NO_CONTEXT, ContextChoice, ContextRequest, choose_context
from supervisor.planning.corrections import Learned, corrected_by, kind_of, told
from supervisor.planning.explained import memory_choice, place_choices, with_sizes
from supervisor.planning.placement import Offer, Placements, offer_devices
from supervisor.planning.residency import gpu_resident
from supervisor.planning.scales import Scales
from supervisor.planning.threads import ThreadChoice, ThreadRequest, choose_threads

_NOT_EVERYWHERE = frozenset({"cache_type", "n_gpu_layers", "threads_batch"})


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
        rooms: what may be taken of each physical memory.
        concessions: steps that the plan may take to fit, in their order.
        allow_paging: start even when the weights do not fit.
        learned: what launches have shown of their memory, by kind.
        beside: what else runs and shares the CPUs.
        slot_files: folder for what slots hold; None: nothing is kept.
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
    concessions: tuple[str, ...] = STEPS
    learned: Mapping[str, Learned] = field(default_factory=dict)
    beside: Beside = ALONE
    slot_files: Path | None = None


def make_plan(request: PlanRequest, adapter: EngineAdapter) -> LaunchPlan:
    """Decide everything and say why.

    Raises:
        PlanError: ``setting_refused``: the settings hold what must not be passed to this engine.
    """
    wishes = _Wishes(request.launch, request.defaults)
    settings = wishes.merged()
    asked = _thread_request(request, wishes, adapter)
    threads = choose_threads(asked)
    context = choose_context(_context_request(request, wishes, asked)) if adapter.has_context else NO_CONTEXT
    movable = adapter.movable(request.metadata, settings)
    predict = adapter.estimator(request.metadata)
    better = corrected_by(predict, request.build.fingerprint, request.learned)
    scales = Scales(better, request.rooms, allow_paging=request.allow_paging)
    offer = offer_devices(wishes.value("devices"), wishes.value("n_gpu_layers"), request.build.facts.devices, scales)
    if {"devices", "n_gpu_layers"} & movable.owned:
        offer = Offer(None, named=False, layers=offer.layers, why="left to extra_args, which say where layers go")
    _check_devices(request, offer)
    wished = _wished(request, settings, threads, context, offer)
    command_of(wished, adapter)
    placements = Placements(offer, movable, scales)
    outcome = concede(wished, placements, movable, _ladder(request, wishes, movable), scales)
    resident = gpu_resident(outcome.weighed.draft, movable, request.build.facts.devices)
    threads = choose_threads(replace(asked, gpu_resident=resident))
    draft = replace(outcome.weighed.draft, threads=threads.threads, threads_batch=threads.threads_batch)
    command = command_of(draft, adapter)
    place = (*place_choices(offer, movable, outcome.weighed, scales), *with_sizes(context.choices, draft))
    fits = memory_choice(outcome.weighed, scales, allow_paging=request.allow_paging)
    memory = (fits, *told(predict(draft), better(draft)))
    chosen = (Choice("build", request.build.name, request.build.why), *threads.choices, *place, *outcome.choices)
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
        memory=outcome.weighed.memory,
        fits=outcome.weighed.fits,
        rationale=tuple(row for row in (*chosen, *memory, *command.choices) if _is_a_choice(row, request.launch)),
        degraded=outcome.degraded,
        warnings=tuple(choice.reason for choice in threads.choices) if threads.over_budget else (),
        devices=draft.devices,
        tensor_split=draft.tensor_split,
        n_cpu_moe=draft.n_cpu_moe,
        budgets=scales.budgets(outcome.weighed.memory),
        attempts=outcome.attempts,
        pools={device: room.pool for room in request.rooms for device in room.devices},
        kind=kind_of(draft, request.build.fingerprint),
        gpu_resident=resident,
        beside=request.beside,
    )


def _is_a_choice(choice: Choice, settings: LaunchSettings) -> bool:
    """Not every engine has all settings: of those that it lacks there is nothing to explain."""
    return choice.choice not in _NOT_EVERYWHERE or choice.choice in type(settings).model_fields


def _wished(
    request: PlanRequest, settings: LaunchSettings, threads: ThreadChoice, context: ContextChoice, offer: Offer
) -> PlanDraft:
    """What is launched if nothing need be given up; it lies nowhere yet."""
    return PlanDraft(
        model_id=request.model_id,
        files=request.files,
        metadata=request.metadata,
        settings=settings,
        capabilities=request.capabilities,
        threads=threads.threads,
        threads_batch=threads.threads_batch,
        devices=offer.devices,
        n_gpu_layers=offer.layers,
        ctx_size=context.ctx_size,
        slots=context.slots,
        cache_type=context.cache_type,
        build=request.build.facts,
        slot_files=request.slot_files,
    )


def command_of(draft: PlanDraft, adapter: EngineAdapter) -> Command:
    """The draft as the build's arguments.

    Raises:
        PlanError: ``setting_refused``.
    """
    try:
        return adapter.command(draft, draft.build or BuildFacts(None, None, None))
    except SettingsError as error:
        raise PlanError("setting_refused", f"{draft.model_id}: {error}", model=draft.model_id) from error


def _check_devices(request: PlanRequest, offer: Offer) -> None:
    listed = request.build.facts.devices
    if not offer.named or listed is None:
        return
    known = [device.id for device in listed]
    for device in offer.devices or ():
        if device not in known:
            raise PlanError(
                "setting_refused",
                f"{request.model_id}: launch.devices names {device}, and build {request.build.name} lists "
                f"{', '.join(known) or 'no device'}: correct the name, or leave devices out.",
                model=request.model_id,
            )


def _ladder(request: PlanRequest, wishes: _Wishes, movable: Movable) -> Ladder:
    """What a user's own number, or extra arguments, leave open."""
    fixed = {
        name: f"{wishes.source(name)} says {wishes.value(name)}"
        for name in ("slots", "cache_type", "ctx_size")
        if wishes.value(name) is not None
    }
    least = wishes.value("min_ctx_size")
    if least is not None:
        fixed.pop("ctx_size", None)
    elif "ctx_size" in fixed:
        fixed["ctx_size"] += ", and there is no min_ctx_size"
    fixed |= {name: "extra_args say it" for name in ("slots", "cache_type", "ctx_size") if name in movable.owned}
    return Ladder(request.concessions, fixed, LEAST_CTX if least is None else least)


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
        beside=request.beside,
        cpu=request.host.cpu,
    )


def _context_request(request: PlanRequest, wishes: _Wishes, asked: ThreadRequest) -> ContextRequest:
    # Slots by the whole budget: how many may ask at once does not depend on what else happens to run now.
    alone = choose_threads(replace(asked, beside=ALONE))
    return ContextRequest(
        ctx_size=wishes.value("ctx_size"),
        ctx_source=wishes.source("ctx_size"),
        slots=wishes.value("slots"),
        slots_source=wishes.source("slots"),
        cache_type=wishes.value("cache_type"),
        cache_source=wishes.source("cache_type"),
        threads=alone.threads,
        capabilities=request.capabilities,
        metadata=request.metadata,
    )
