"""From a model to a launch plan: look at the builds, choose one, plan on it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import anyio.to_thread

from engines.contract import EngineAdapter, EngineKind, LaunchPlan
from supervisor.broker.build_care import BuildCare
from supervisor.broker.rooms import Rooms
from supervisor.builds.inspect import FoundBuild
from supervisor.builds.shelf import BuildShelf
from supervisor.errors import ModelError
from supervisor.events import EventBus, PlanMade, PlanWarning
from supervisor.models.catalog import ModelEntry
from supervisor.planning.device_loss import told_of, without_lost
from supervisor.planning.explained import does_not_fit
from supervisor.planning.planner import BuildForPlan, PlanRequest, make_plan


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
    ) -> None:
        self._adapters = adapters
        self._shelf = shelf
        self._rooms = rooms
        self._concessions = concessions
        self._bus = bus
        self._care = care

    async def prepare(self, entry: ModelEntry) -> LaunchPlan:
        """A plan that fits, published with its reasons.

        Raises:
            PlanError: ``no_build``, ``build_unusable``, ``setting_refused``, ``device_lost``, ``does_not_fit``.
            ModelError: ``model_broken``.
        """
        plan = await self.plan(entry)
        for warning in plan.warnings:
            self._bus.publish(PlanWarning(entry.id, warning))
        if not plan.fits:
            raise does_not_fit(plan)
        choices = tuple((choice.choice, choice.value, choice.reason) for choice in plan.rationale)
        self._bus.publish(PlanMade(entry.id, plan.build, choices))
        self._care.began(entry, plan)
        return plan

    async def plan(self, entry: ModelEntry) -> LaunchPlan:
        """The plan as it would be made now, whether it fits or not; publishes nothing.

        Raises:
            PlanError: ``no_build``, ``build_unusable``, ``setting_refused``, ``device_lost``.
            ModelError: ``model_broken``.
        """
        if entry.metadata is None:
            raise ModelError("model_broken", f"model {entry.id!r} can't be served: {entry.broken}", model=entry.id)
        await self._care.load()
        builds = await self._shelf.look(entry.engine)
        while True:
            selection = self._care.select(entry, builds)
            build = selection.build
            if build is None:
                raise self._care.refusal(entry, builds, selection)
            plan = await self.plan_on(entry, build, self._care.why(entry, selection, build))
            # A search takes a while, in which something may have been found out about the build.
            if self._care.select(entry, builds).build is build:
                said = () if selection.warning is None else (selection.warning,)
                return replace(plan, warnings=(*plan.warnings, *said))

    async def plan_on(self, entry: ModelEntry, build: FoundBuild, why: str = "to be tried") -> LaunchPlan:
        """The plan for a launch with this very build, whatever is held against it; ``why`` goes into the rationale.

        Raises:
            PlanError: ``setting_refused``.
            ModelError: ``model_broken``.
        """
        if entry.metadata is None:
            raise ModelError("model_broken", f"model {entry.id!r} can't be served: {entry.broken}", model=entry.id)
        reading = await self._rooms.read()
        lost = await self._rooms.lost(reading, build)
        build = replace(build, facts=replace(build.facts, devices=self._rooms.usable(build.facts.devices, lost)))
        wish = without_lost(entry.id, _wished_devices(entry), lost, self._rooms.device_lost)
        settings = entry.settings.model_copy(update={"devices": wish.wished}) if wish.missed else entry.settings
        while True:
            rooms = self._rooms.left(reading, entry, build)
            request = PlanRequest(
                model_id=entry.id,
                files=entry.files,
                metadata=entry.metadata,
                capabilities=entry.serves,
                launch=settings,
                defaults=entry.defaults,
                build=_for_plan(build, why),
                host=reading.host,
                rooms=rooms,
                concessions=self._concessions(),
                allow_paging=entry.allow_paging,
                learned=reading.learned,
            )
            adapter = self._adapters[entry.engine]
            plan = await anyio.to_thread.run_sync(make_plan, request, adapter, abandon_on_cancel=True)
            # A search takes a while, in which others may have been promised what this plan counts on.
            if self._rooms.left(reading, entry, build) == rooms:
                return told_of(plan, wish.missed)


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
