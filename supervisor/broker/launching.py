"""From a model to a launch plan: look at the builds, choose one, plan on it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import anyio.to_thread

from engines.contract import Beside, EngineAdapter, EngineKind, LaunchPlan, LaunchSettings, ModelMetadata
from supervisor.broker.build_care import BuildCare
from supervisor.broker.cpus import Cpus
from supervisor.broker.ledger import LOADS_ALONE, Ledger
from supervisor.broker.ports import Options
from supervisor.broker.promised import rooms_beside
from supervisor.broker.rooms import Reading, Rooms
from supervisor.builds.inspect import FoundBuild
from supervisor.builds.shelf import BuildShelf
from supervisor.errors import ModelError
from supervisor.events import EventBus, PlanMade, PlanWarning
from supervisor.host.lost import LostDevice
from supervisor.host.pools import HOST_POOL, PoolRoom
from supervisor.models.catalog import ModelEntry
from supervisor.planning.device_loss import told_of, without_lost
from supervisor.planning.planner import BuildForPlan, PlanRequest, make_plan


@dataclass(frozen=True, slots=True)
class _Basis:
    """What was found for one model on one build at one moment, from which plans for any rooms are made.

    Attributes:
        settings: the model's launch settings, without devices that are gone.
        missed: those devices.
        warnings: what there is to say of the choice of the build.
    """

    metadata: ModelMetadata
    settings: LaunchSettings
    missed: tuple[LostDevice, ...]
    build: BuildForPlan
    reading: Reading
    rooms: tuple[PoolRoom, ...]
    warnings: tuple[str, ...] = ()


class Launching:
    """Makes plans for launches; commits nothing."""

    def __init__(
        self,
        adapters: Mapping[EngineKind, EngineAdapter],
        shelf: BuildShelf,
        rooms: Rooms,
        concessions: Callable[[], tuple[str, ...]],
        bus: EventBus,
        care: BuildCare,
        cpus: Cpus,
        *,
        slot_files: Callable[[], Path | None] = lambda: None,
    ) -> None:
        self._slot_files = slot_files
        self._adapters = adapters
        self._shelf = shelf
        self._rooms = rooms
        self._concessions = concessions
        self._bus = bus
        self._care = care
        self._cpus = cpus

    async def plan(self, entry: ModelEntry, ledger: Ledger | None = None, beside: Beside | None = None) -> LaunchPlan:
        """The plan as it would be made now, whether it fits or not; publishes nothing.

        Args:
            entry: the model.
            ledger: who holds memory beside it; None: nobody.
            beside: what it shares the CPUs with; None: with what runs now.

        Raises:
            PlanError: ``no_build``, ``build_unusable``, ``setting_refused``, ``device_lost``.
            ModelError: ``model_broken``.
        """
        basis = await self._look(entry)
        return await self._make(entry, basis, rooms_beside(basis.rooms, ledger or Ledger(), entry), beside)

    async def plan_on(self, entry: ModelEntry, build: FoundBuild, why: str = "to be tried") -> LaunchPlan:
        """The plan for a launch with this very build, whatever is held against it; ``why`` goes into the rationale.

        Raises:
            PlanError: ``setting_refused``.
            ModelError: ``model_broken``.
        """
        basis = await self._look_on(entry, build, why)
        return await self._make(entry, basis, basis.rooms)

    async def options(self, entry: ModelEntry, ledger: Ledger) -> Options:
        """See ``ports.Planner``."""
        basis = await self._look(entry)
        self._cpus.saw(basis.reading.host.cpu)
        best = await self._make(entry, basis, basis.rooms)
        beside = rooms_beside(basis.rooms, ledger, entry)
        smaller = None if beside == basis.rooms else await self._make(entry, basis, beside)
        # Two loads at once could not be told apart in a device's figures; the host's are read for each process.
        serial = frozenset(pool for pool in best.memory if pool != HOST_POOL)
        if self._adapters[entry.engine].exclusive_load(best.devices):
            serial |= {LOADS_ALONE}
        return Options(best, smaller, basis.rooms, serial)

    async def rooms(self, entry: ModelEntry) -> tuple[PoolRoom, ...]:
        """See ``ports.Planner``."""
        return (await self._look(entry)).rooms

    def announce(self, entry: ModelEntry, plan: LaunchPlan) -> None:
        """Tell of a plan that is launched now, with its reasons and warnings."""
        for warning in plan.warnings:
            self._bus.publish(PlanWarning(plan.model_id, warning))
        choices = tuple((choice.choice, choice.value, choice.reason) for choice in plan.rationale)
        self._bus.publish(PlanMade(plan.model_id, plan.build, choices, plan.degraded))
        self._care.began(entry, plan)

    async def _look(self, entry: ModelEntry) -> _Basis:
        """With the build that is chosen for the model now."""
        if entry.metadata is None:
            raise ModelError("model_broken", f"model {entry.id!r} can't be served: {entry.broken}", model=entry.id)
        await self._care.load()
        builds = await self._shelf.look(entry.engine)
        while True:
            selection = self._care.select(entry, builds)
            build = selection.build
            if build is None:
                raise self._care.refusal(entry, builds, selection)
            basis = await self._look_on(entry, build, self._care.why(entry, selection, build))
            # Looking takes a while, in which something may have been found out about the build.
            if self._care.select(entry, builds).build is build:
                return replace(basis, warnings=() if selection.warning is None else (selection.warning,))

    async def _look_on(self, entry: ModelEntry, build: FoundBuild, why: str) -> _Basis:
        if entry.metadata is None:
            raise ModelError("model_broken", f"model {entry.id!r} can't be served: {entry.broken}", model=entry.id)
        reading = await self._rooms.read()
        lost = await self._rooms.lost(reading, build)
        build = replace(build, facts=replace(build.facts, devices=self._rooms.usable(build.facts.devices, lost)))
        wish = without_lost(entry.id, _wished_devices(entry), lost, self._rooms.device_lost)
        settings = entry.settings.model_copy(update={"devices": wish.wished}) if wish.missed else entry.settings
        rooms = self._rooms.whole(reading, build)
        return _Basis(entry.metadata, settings, wish.missed, _for_plan(build, why), reading, rooms)

    async def _make(
        self, entry: ModelEntry, basis: _Basis, rooms: tuple[PoolRoom, ...], beside: Beside | None = None
    ) -> LaunchPlan:
        request = PlanRequest(
            model_id=entry.id,
            files=entry.files,
            metadata=basis.metadata,
            capabilities=entry.serves,
            launch=basis.settings,
            defaults=entry.defaults,
            build=basis.build,
            host=basis.reading.host,
            rooms=rooms,
            concessions=self._concessions(),
            allow_paging=entry.allow_paging,
            learned=basis.reading.learned,
            beside=self._cpus.beside(entry.id) if beside is None else beside,
            slot_files=self._slot_files(),
        )
        # A search takes a while.
        adapter = self._adapters[entry.engine]
        plan = await anyio.to_thread.run_sync(make_plan, request, adapter, abandon_on_cancel=True)
        return told_of(replace(plan, warnings=(*plan.warnings, *basis.warnings)), basis.missed)


def _wished_devices(entry: ModelEntry) -> tuple[str, ...] | None:
    own = getattr(entry.settings, "devices", None)
    wished: tuple[str, ...] | None = own if own is not None else getattr(entry.defaults, "devices", None)
    return wished


def _for_plan(build: FoundBuild, why: str) -> BuildForPlan:
    return BuildForPlan(
        name=build.name,
        fingerprint=build.fingerprint or "",
        executable=build.executable,
        env=build.env,
        facts=build.facts,
        why=why,
    )
