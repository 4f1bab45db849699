"""Pictures, wired: the engines as drawing sees them, and what the listing says of picture models."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from engines.contract import FailureKind
from engines.registry import adapter_for
from supervisor.broker.admission import Evict
from supervisor.broker.broker import Broker
from supervisor.broker.launching import Launching
from supervisor.clock import Clock
from supervisor.config.schema import PicturesConfig
from supervisor.errors import SupervisorError
from supervisor.events import EventBus
from supervisor.gateway.gate import Gate
from supervisor.gateway.pictures.answers import listed_abilities
from supervisor.gateway.pictures.asking import Pictures, PictureService
from supervisor.gateway.pictures.host import Room
from supervisor.gateway.pictures.jobs import PictureJobs
from supervisor.gateway.ports import Crashes
from supervisor.instances.fleet import Fleet
from supervisor.instances.instance import Instance
from supervisor.models.catalog import ModelEntry
from supervisor.models.lora_shelves import LoraShelves
from supervisor.routing.router import Router

_FOR_MEMORY = frozenset({FailureKind.OUT_OF_HOST_MEMORY, FailureKind.OUT_OF_DEVICE_MEMORY})


class Engines:
    """Implements ``gateway.pictures.host.PictureHost``."""

    def __init__(self, fleet: Fleet, broker: Broker, launching: Launching) -> None:
        self._fleet = fleet
        self._broker = broker
        self._launching = launching

    def position(self, request_id: str) -> int | None:
        """See ``PictureHost``."""
        rows = self._broker.queue_view()
        return next((int(row["position"]) for row in rows if row["request_id"] == request_id), None)

    def is_loading(self, model_id: str) -> bool:
        """See ``PictureHost``."""
        instance = self._instance(model_id)
        return instance is not None and instance.is_starting

    def load_seconds(self, model_id: str) -> float | None:
        """See ``PictureHost``."""
        instance = self._instance(model_id)
        return None if instance is None or not instance.load_seconds else instance.load_seconds

    def stop(self, model_id: str, why: str) -> None:
        """See ``PictureHost``."""
        instance = self._instance(model_id)
        if instance is not None:
            instance.request_stop(why)

    def make_room(self, model_id: str, why: str) -> int:
        """See ``PictureHost``."""
        idle = [
            name
            for name, book in self._broker.books.items()
            if name != model_id and book.idle and not book.pinned and book.instance.is_ready
        ]
        for name in idle:
            self._broker.evict(Evict(name, why, beneficiary=model_id))
        return len(idle)

    def ended_for_memory(self, model_id: str) -> bool:
        """See ``PictureHost``."""
        instance = self._instance(model_id)
        report = None if instance is None else instance.last_exit
        return report is not None and report.verdict.kind in _FOR_MEMORY

    async def room(self, entry: ModelEntry) -> Room | None:
        """By the plan that its engine runs with, else by the one that it would get."""
        instance = self._instance(entry.id)
        try:
            running = instance.plan if instance is not None and instance.is_ready else None
            plan = running or await self._launching.plan(entry)
        except SupervisorError:
            return None  # whoever waits for its engine hears why
        pools = self._broker.memory.ledger.pools
        budgets = {pool: budget.bytes for pool, budget in plan.budgets.items()}
        budgets |= {name: pool.budget for name, pool in pools.items() if name in plan.memory}
        return Room(budgets, {pool: part.anonymous or 0 for pool, part in plan.memory.items()})

    def _instance(self, model_id: str) -> Instance | None:
        return next((one for one in self._fleet.instances() if one.model_id == model_id), None)


class PictureRoom:
    """Everything that has to do with pictures.

    Attributes:
        jobs: to be run.
        service: for the gateway.
    """

    def __init__(
        self,
        router: Router,
        engines: Engines,
        broker: Broker,
        crashes: Crashes,
        limits: Callable[[], PicturesConfig],
        gate: Gate,
        clock: Clock,
        bus: EventBus,
    ) -> None:
        self._router = router
        self._shelves = LoraShelves()
        self.jobs = PictureJobs(broker, crashes, engines, gate, clock, bus, limits)
        pictures = Pictures(router, self.jobs, lambda kind: adapter_for(kind).pictures(), limits)
        self.service = PictureService(pictures, self.known, lambda: limits().keep)

    async def known(self) -> None:
        """Wait until the models are known, and look at the LoRAs of those that draw."""
        await self._router.ready()
        catalog = self._router.catalog
        folders = []
        for entry in catalog.usable if catalog else ():
            engine = adapter_for(entry.engine).pictures()
            folder = None if engine is None else engine.lora_folder(entry.launch)
            folders += [] if folder is None else [folder]
        await self._shelves.refresh(folders)

    def listed(self, entry: ModelEntry) -> dict[str, Any] | None:
        """What ``/v1/models`` says of a model's pictures; None: it draws none."""
        engine = adapter_for(entry.engine).pictures()
        if engine is None or entry.metadata is None or entry.broken is not None:
            return None
        shelf = self._shelves.last(engine.lora_folder(entry.launch))
        return listed_abilities(engine.abilities(entry.metadata, entry.launch), shelf, entry.id)
