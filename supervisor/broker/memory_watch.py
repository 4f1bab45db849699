"""Looks at what engines hold: when one is ready, and every now and then while it runs."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass

import anyio
import anyio.to_thread
from anyio.abc import TaskStatus

from engines.contract import LaunchPlan
from supervisor.broker.broker import Broker
from supervisor.broker.learned import LearnedMemory
from supervisor.broker.memory_book import declared_by_pool
from supervisor.broker.seen_devices import SeenDevices
from supervisor.events import EventBus, InternalError, MemoryObserved
from supervisor.host.cards import CardsReading
from supervisor.host.pools import HOST_POOL
from supervisor.instances.instance import Instance
from supervisor.processes.resident import resident_bytes

# Memory grows with prompts that are kept, over minutes.
TICK_SECONDS = 15.0


@dataclass(frozen=True, slots=True)
class _Watched:
    instance: Instance
    pid: int
    plan: LaunchPlan


class MemoryWatch:
    """Tells each instance what its engine holds, and has it learned; ``run`` must be running."""

    def __init__(
        self,
        instances: Callable[[], Iterable[Instance]],
        cards: Callable[[], CardsReading],
        learned: LearnedMemory,
        seen: SeenDevices,
        broker: Broker,
        bus: EventBus,
    ) -> None:
        self._instances = instances
        self._cards = cards
        self._learned = learned
        self._seen = seen
        self._broker = broker
        self._bus = bus
        self._news = anyio.Event()
        self._told: dict[str, int] = {}

    def instance_changed(self, instance: Instance) -> None:
        """Look at once when an engine has become ready."""
        if instance.is_ready:
            self._news.set()

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Look until cancelled."""
        task_status.started()
        while True:
            with anyio.move_on_after(TICK_SECONDS):
                await self._news.wait()
            self._news = anyio.Event()
            try:
                await self.look()
            except Exception as error:  # noqa: BLE001  a fault of our own; the next look may do
                self._bus.publish(InternalError("memory watch", repr(error), traceback.format_exc()))

    async def look(self) -> None:
        """Look at all engines that are ready, once."""
        watched = [
            _Watched(instance, instance.pid, instance.plan)
            for instance in self._instances()
            if instance.is_ready and instance.pid is not None and instance.plan is not None
        ]
        if not watched:
            return
        on_cards = any(pool != HOST_POOL for one in watched for pool in one.plan.pools.values())
        held, cards = await anyio.to_thread.run_sync(self._read, [one.pid for one in watched], on_cards)
        seen = [one for one in watched if one.instance.pid == one.pid]
        first = {one.instance.id for one in seen if self._told.get(one.instance.id) != one.pid}
        for one in seen:
            observed = _observed(one, held, cards)
            one.instance.note_memory(observed)
            own = declared_by_pool(one.plan, one.instance.declared.places)
            self._broker.memory_seen(one.instance.id, own, observed)
            self._tell(one)
            self._seen.note_addresses(one.plan.fingerprint, one.instance.declared.addresses)
        for one in seen:
            if one.plan.kind:
                declared = one.instance.declared.places
                places = _by_place(_observed(one, held, cards), one.plan, declared)
                new = one.instance.id in first
                await self._learned.note(one.plan.kind, declared, places, just_ready=new)

    def _tell(self, one: _Watched) -> None:
        """Once a launch."""
        if self._told.get(one.instance.id) != one.pid:
            self._told[one.instance.id] = one.pid
            columns = {pool: asdict(memory) for pool, memory in one.instance.memory.items()}
            self._bus.publish(MemoryObserved(one.instance.id, one.instance.model_id, columns))

    def _read(self, pids: Sequence[int], on_cards: bool) -> tuple[Mapping[int, int], CardsReading]:
        return resident_bytes(pids), self._cards() if on_cards else CardsReading()


def _observed(one: _Watched, held: Mapping[int, int], cards: CardsReading) -> dict[str, int]:
    """Bytes by pool; a pool of which nothing is known is left out."""
    observed = {HOST_POOL: held[one.pid]} if one.pid in held else {}
    for card in cards.cards:
        if card.pool in one.plan.pools.values() and one.pid in (card.by_process or {}):
            observed[card.pool] = (card.by_process or {})[one.pid]
    return observed


def _by_place(observed: Mapping[str, int], plan: LaunchPlan, declared: Iterable[str]) -> dict[str, int]:
    """The same by the names that the estimate has: pools of one place only, since of several nobody knows the parts."""
    behind: dict[str, list[str]] = {HOST_POOL: [HOST_POOL]}
    for place in declared:
        if place != HOST_POOL:
            behind.setdefault(plan.pools.get(place, place), []).append(place)
    return {behind[pool][0]: size for pool, size in observed.items() if len(behind.get(pool, ())) == 1}
