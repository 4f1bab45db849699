"""What the machine leaves while no engine of ours holds any of it: for who looks, since no launch asks then."""

from __future__ import annotations

import traceback
from collections.abc import Awaitable, Callable, Sequence

from engines.contract import EngineKind
from supervisor.broker.memory_book import MemoryBook
from supervisor.errors import SupervisorError
from supervisor.event_bus import EventBus
from supervisor.events import InternalError
from supervisor.host.pools import PoolRoom
from supervisor.models.catalog import ModelEntry


class IdleRooms:
    """Reads the pools into the memory book while it has no entry; with entries the pressure watch does that.

    Args:
        models: those that can be served; each engine's first one is asked for.
        rooms: the pools of the build that a model would be started with.
        memory: the book.
        bus: is told of faults of our own.
    """

    def __init__(
        self,
        models: Callable[[], Sequence[ModelEntry]],
        rooms: Callable[[ModelEntry], Awaitable[Sequence[PoolRoom]]],
        memory: MemoryBook,
        bus: EventBus,
    ) -> None:
        self._models = models
        self._rooms = rooms
        self._memory = memory
        self._bus = bus

    async def look(self) -> None:
        """Once; a pool that several engines know is that of the first one that has a device in it."""
        if self._memory.ledger.entries:
            return
        found: dict[str, PoolRoom] = {}
        firsts: dict[EngineKind, ModelEntry] = {}
        for entry in self._models():
            firsts.setdefault(entry.engine, entry)
        for entry in firsts.values():
            for room in await self._of(entry):
                known = found.get(room.pool)
                if known is None or (room.devices and not known.devices):
                    found[room.pool] = room
        # A launch that began meanwhile was planned by rooms of its own.
        if found and not self._memory.ledger.entries:
            self._memory.use(found.values())

    async def _of(self, entry: ModelEntry) -> Sequence[PoolRoom]:
        try:
            return await self._rooms(entry)
        except SupervisorError:
            return ()  # such as no build for it: told where it concerns somebody
        except Exception as error:  # noqa: BLE001  a fault of our own must not end the page's line
            self._bus.publish(InternalError(f"memory of {entry.id}", repr(error), traceback.format_exc()))
            return ()
