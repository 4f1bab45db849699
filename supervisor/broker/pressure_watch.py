"""Looks every now and then, while an engine holds memory, at what the machine has left: budgets and pressure."""

from __future__ import annotations

import traceback
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

import anyio
import anyio.to_thread
from anyio.abc import TaskStatus

from supervisor.broker.admission import Evict, Phase
from supervisor.broker.broker import Broker
from supervisor.broker.ports import BrokeredInstance
from supervisor.broker.pressure import PressureReading, choose_let_go, short_of_memory
from supervisor.clock import Clock
from supervisor.errors import SupervisorError
from supervisor.event_bus import EventBus
from supervisor.events import InternalError
from supervisor.host.pools import PoolRoom
from supervisor.memory_events import HostPressure
from supervisor.models.catalog import ModelEntry

TICK_SECONDS = 15.0


@dataclass(frozen=True, slots=True)
class PressurePorts:
    """What the watch looks at.

    Attributes:
        read: one look at the machine; blocks for a millisecond.
        rooms: the pools of a model's build as they are now, with nothing of ours taken off.
        grace: ``broker.eviction.pressure_grace``, in seconds.
    """

    read: Callable[[], PressureReading]
    rooms: Callable[[ModelEntry], Awaitable[Sequence[PoolRoom]]]
    grace: Callable[[], float]


class PressureWatch:
    """See the module; ``run`` must be running, and ``instance_changed`` observe the fleet."""

    def __init__(self, ports: PressurePorts, broker: Broker, clock: Clock, bus: EventBus) -> None:
        self._ports = ports
        self._broker = broker
        self._clock = clock
        self._bus = bus
        self._changed = anyio.Event()
        self._since: float | None = None
        self._told = False

    def instance_changed(self, instance: BrokeredInstance) -> None:
        """Observer of every instance: there is something to look after."""
        if instance.is_ready:
            self._changed.set()

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Look until cancelled; while nothing is resident it sleeps."""
        task_status.started()
        while True:
            if not self._broker.memory.ledger.entries:
                self._since = None
                self._changed = anyio.Event()
                await self._changed.wait()
            await anyio.sleep(TICK_SECONDS)
            try:
                await self.look()
            except Exception as error:  # noqa: BLE001  a fault of our own; the next look may do
                self._bus.publish(InternalError("pressure watch", repr(error), traceback.format_exc()))

    async def look(self) -> None:
        """Once: read budgets anew, so that what others took and smaller limits are seen, and let go if need be."""
        await self._refresh()
        reading = await anyio.to_thread.run_sync(self._ports.read)
        why, now = short_of_memory(reading), self._clock.monotonic()
        if why is None:
            self._since, self._told = None, False
            return
        self._since = now if self._since is None else self._since
        grace, world = self._ports.grace(), self._broker.world()
        residents = [view.resident for view in world.models.values() if view.phase is Phase.READY and view.resident]
        chosen = choose_let_go(why, self._since, now, grace, residents, world.ledger)
        if now - self._since >= grace and not self._told:
            self._told = True
            figures = (reading.available, reading.whole, reading.some)
            self._bus.publish(HostPressure(why, round(now - self._since, 1), *figures))
        if chosen is not None:
            self._broker.evict(Evict(chosen.model, chosen.why))

    async def _refresh(self) -> None:
        """Not while one loads or ends: what it holds and what all hold are read a moment apart."""
        entries = {}
        for book in self._broker.books.values():
            if book.instance.id not in self._broker.memory.ledger.entries:
                continue
            if not book.instance.is_ready:
                return
            entries[book.instance.entry.engine] = book.instance.entry
        for entry in entries.values():
            try:
                rooms = await self._ports.rooms(entry)
            except SupervisorError:
                continue  # told where it concerns somebody; the budget stays as it was
            if any(book.instance.is_starting for book in self._broker.books.values()):
                return
            self._broker.memory.use(rooms)
        self._broker.pump()
