"""What the machine leaves, read while no engine runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from engines.contract import EngineKind
from supervisor.broker.idle_rooms import IdleRooms
from supervisor.broker.ledger import Claim
from supervisor.broker.memory_book import MemoryBook
from supervisor.errors import InstanceError
from supervisor.event_bus import EventBus
from supervisor.events import Event, InternalError
from supervisor.host.pools import PoolRoom
from supervisor.models.catalog import ModelEntry
from tests.fakes.clock import HandClock
from tests.fakes.instances import model_entry

GIB = 2**30
HOST = PoolRoom("host", 8 * GIB, 16 * GIB, "", foreign=3 * GIB, reserve=GIB)
SHARED = replace(HOST, budget=6 * GIB, devices=("Vulkan0",))
CARD = PoolRoom("gpu-1", 20 * GIB, 24 * GIB, "", ("CUDA0",), foreign=GIB)
CHAT = model_entry("chat")
PICTURES = replace(model_entry("pictures"), engine=EngineKind.SD_CPP)


class Machine:
    """Rooms by model, each asking kept; ``before`` runs in the middle of one."""

    def __init__(self, rooms: dict[str, Sequence[PoolRoom] | Exception]) -> None:
        self.rooms = rooms
        self.asked: list[str] = []
        self.told: list[Event] = []
        bus = EventBus(HandClock())
        bus.listen(lambda record: self.told.append(record.event))
        self.memory = MemoryBook(bus)
        self.meanwhile: Callable[[], None] | None = None
        models = (CHAT, model_entry("another"), PICTURES)
        self.idle = IdleRooms(lambda: models, self._read, self.memory, bus)

    async def _read(self, entry: ModelEntry) -> Sequence[PoolRoom]:
        self.asked.append(entry.id)
        if self.meanwhile is not None:
            self.meanwhile()
        found = self.rooms[entry.id]
        if isinstance(found, Exception):
            raise found
        return found

    def reserve(self) -> None:
        """An engine is launched."""
        self.memory.reserve("i", "m", {"host": Claim(GIB)})


async def test_the_pools_of_all_engines_are_seen_before_the_first_launch() -> None:
    """Once the page showed no memory at all until something ran, and an owner saw not who fills the card."""
    machine = Machine({"chat": [HOST, CARD], "pictures": [SHARED]})
    await machine.idle.look()
    assert machine.asked == ["chat", "pictures"]
    document = machine.memory.document()
    assert {name: row["foreign"] for name, row in document.items()} == {"host": 3 * GIB, "gpu-1": GIB}
    assert document["host"]["budget"] == 6 * GIB, "the one with a device in it"
    assert document["host"]["reserve"] == GIB


async def test_where_an_engine_runs_others_look() -> None:
    """Neither asked for, nor taken when a launch began meanwhile: it was planned by rooms of its own."""
    machine = Machine({"chat": [HOST], "pictures": [HOST]})
    machine.meanwhile = machine.reserve
    await machine.idle.look()
    assert machine.memory.document() == {}
    machine.asked.clear()
    await machine.idle.look()
    assert machine.asked == []


async def test_what_can_not_be_read_ends_nothing() -> None:
    """No build for one engine, a fault of ours with the other: told, and the rest is seen."""
    machine = Machine({"chat": InstanceError("no_build", "none"), "pictures": [HOST]})
    await machine.idle.look()
    assert set(machine.memory.document()) == {"host"}
    machine.rooms["chat"] = ValueError("a fault")
    await machine.idle.look()
    assert [event for event in machine.told if isinstance(event, InternalError)]
