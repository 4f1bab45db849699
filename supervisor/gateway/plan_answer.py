"""``/admin/v1/plan``: how a model would be launched now, and what the memory book says to it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from supervisor.broker.broker import Broker
from supervisor.broker.launching import Launching
from supervisor.broker.ledger import Pool
from supervisor.broker.queue_rows import expected_wait
from supervisor.broker.starting import thought_of
from supervisor.broker.what_if import Times, forecast
from supervisor.gateway.status_document import plan_document
from supervisor.models.catalog import ModelEntry
from supervisor.routing.router import Router


class PlanAnswer:
    """Asks, commits nothing, and publishes nothing."""

    def __init__(self, router: Router, launching: Launching, broker: Broker) -> None:
        self._router = router
        self._launching = launching
        self._broker = broker

    async def __call__(self, name: str) -> dict[str, Any]:
        """The plan beside what runs now, and as ``ledger`` what a request would meet.

        Raises:
            ModelError: ``models_unknown``, ``model_not_found``, ``model_broken``.
            PlanError: as a launch's.
        """
        await self._router.ready()
        entry = self._router.find(name)
        options = await self._launching.options(entry, self._broker.memory.ledger)
        world = self._broker.world()
        pools = {room.pool: Pool(room.budget) for room in options.rooms}
        world = replace(world, ledger=world.ledger.with_pools(pools))
        thought = thought_of(options, entry, world.now)
        found = forecast(world, entry.id, thought.prospect, self._times(entry))
        return {**plan_document(options.beside or options.best), "ledger": found.document()}

    def _times(self, entry: ModelEntry) -> Times:
        book = self._broker.books.get(entry.id)
        if book is None:
            return Times()
        instance = book.instance
        free = instance.accepting and not book.queue and bool(book.free_slots(1))
        slot = 0.0 if free else expected_wait(book, len(book.queue) + 1)
        return Times(load=instance.load_seconds if instance.load_seconds > 0 else None, slot=slot)
