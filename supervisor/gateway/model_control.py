"""Loading, unloading, pinning and unpinning by hand."""

from __future__ import annotations

from typing import Any

from supervisor.broker.broker import Broker
from supervisor.errors import ModelError
from supervisor.gateway.status_document import StatusDocument
from supervisor.instances.fleet import AT_REST, Fleet
from supervisor.instances.lifecycle import InstanceState
from supervisor.routing.router import Router


class ModelControl:
    """What ``load``, ``unload``, ``pin`` and ``unpin`` of a model do; an operator's load forgives past failures."""

    def __init__(self, router: Router, fleet: Fleet, status: StatusDocument, broker: Broker) -> None:
        self._router = router
        self._fleet = fleet
        self._broker = broker
        self._status = status

    async def load(self, name: str) -> dict[str, Any]:
        """Make the model ready; waits for it, and answers with its row of the status.

        Raises:
            ModelError: ``models_unknown``, ``model_not_found``, ``model_broken``.
            SupervisorError: why it did not start.
        """
        await self._router.ready()
        entry = self._router.find(name)
        if entry.broken is not None:
            raise ModelError("model_broken", f"model {entry.id!r} can't be served: {entry.broken}", model=entry.id)
        await self._broker.load(entry)
        return self._status.instance(self._fleet.instance(entry))

    async def unload(self, name: str) -> dict[str, Any]:
        """Stop the model's instance, cutting what runs on it; waits for the end. One never started stays so.

        Raises:
            ModelError: ``models_unknown``, ``model_not_found``.
        """
        await self._router.ready()
        entry = self._router.find(name)
        instance = self._fleet.known(entry.id)
        if instance is None:
            return {"model": entry.id, "state": InstanceState.STOPPED.value}
        self._broker.unload(instance)
        await instance.until(*AT_REST)
        return self._status.instance(instance)

    async def pin(self, name: str, *, on: bool) -> dict[str, Any]:
        """Never evict the model, or again; starts and stops nothing, and answers with its row of the status.

        Raises:
            ModelError: ``models_unknown``, ``model_not_found``.
        """
        await self._router.ready()
        entry = self._router.find(name)
        self._broker.pin(entry, pinned=on)
        return self._status.instance(self._fleet.instance(entry))
