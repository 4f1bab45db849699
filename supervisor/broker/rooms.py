"""What a launch may take of each pool: the machine is read once for each decision, then all is arithmetic."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import anyio.to_thread

from engines.contract import DeviceListing
from supervisor.broker.promised import Holder, rooms_for
from supervisor.host.budget import HostLimits, host_room
from supervisor.host.pools import PoolRoom
from supervisor.host.snapshot import HostSnapshot
from supervisor.models.catalog import ModelEntry
from supervisor.processes.resident import resident_bytes


@dataclass(frozen=True, slots=True)
class Reading:
    """The machine at one moment, and bytes of its memory that our engines hold themselves."""

    host: HostSnapshot
    ours: int


class Rooms:
    """Reads the machine and says what is left of it; keeps nothing."""

    def __init__(
        self,
        read_host: Callable[[], HostSnapshot],
        limits: Callable[[], HostLimits],
        holders: Callable[[], Sequence[Holder]],
    ) -> None:
        self._read_host = read_host
        self._limits = limits
        self._holders = holders

    async def read(self) -> Reading:
        """Look at the machine, in a thread."""
        pids = [holder.pid for holder in self._holders() if holder.pid is not None]
        return await anyio.to_thread.run_sync(self._read, pids, abandon_on_cancel=True)

    def left(self, reading: Reading, entry: ModelEntry) -> tuple[PoolRoom, ...]:
        """What ``entry`` may take of each pool, by that reading and what is promised by now."""
        whole = host_room(reading.host.memory, reading.ours, self._limits())
        return rooms_for([whole], self._holders(), entry.id, entry.files)

    def _read(self, pids: Sequence[int]) -> Reading:
        return Reading(self._read_host(), sum(resident_bytes(pids).values()))


def with_listed(rooms: tuple[PoolRoom, ...], listed: Sequence[DeviceListing]) -> tuple[PoolRoom, ...]:
    """The rooms, and for each device that is in none of them one by the build's own listing."""
    known = {device for room in rooms for device in room.devices}
    own = (
        PoolRoom(f"gpu-{device.id}", device.free_bytes, device.total_bytes, "free by the build's listing", (device.id,))
        for device in listed
        if device.usable and device.id not in known
    )
    return (*rooms, *own)
