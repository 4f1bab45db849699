"""What our engines may take of each pool: the machine is read once for each decision, then all is arithmetic."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import anyio.lowlevel
import anyio.to_thread

from engines.contract import DeviceListing
from supervisor.broker.learned import LearnedMemory
from supervisor.broker.seen_devices import SeenDevices
from supervisor.builds.inspect import FoundBuild
from supervisor.host.budget import HostLimits, host_room
from supervisor.host.device_rooms import DeviceWishes, bounded, rooms_of
from supervisor.host.devices import Placed, place_devices
from supervisor.host.lost import LostDevice
from supervisor.host.pools import HOST_POOL, PoolRoom
from supervisor.host.snapshot import HostSnapshot
from supervisor.planning.corrections import Learned
from supervisor.planning.device_loss import Policy
from supervisor.processes.resident import resident_bytes


def _nothing(_pool: str) -> int:
    return 0


@dataclass(frozen=True, slots=True)
class Reading:
    """The machine at one moment.

    Attributes:
        ours: bytes of its memory that our engines hold themselves.
        learned: what launches have shown of their memory, by kind.
    """

    host: HostSnapshot
    ours: int
    learned: Mapping[str, Learned]


@dataclass(frozen=True, slots=True)
class RoomLimits:
    """``host`` of the config, as far as it bounds memory."""

    host: HostLimits
    devices: DeviceWishes
    device_lost: Policy = "fail"


@dataclass(frozen=True, slots=True)
class OurEngines:
    """What must be known of the engines that run meanwhile.

    Attributes:
        pids: leaders of their process groups.
        held: bytes that they are believed to hold of a pool themselves.
        leftovers_gone: returns when those of an earlier daemon have been ended.
    """

    pids: Callable[[], Sequence[int]] = tuple
    held: Callable[[str], int] = _nothing
    leftovers_gone: Callable[[], Awaitable[None]] = anyio.lowlevel.checkpoint


class Rooms:
    """Reads the machine and says what of it is ours to promise; keeps nothing."""

    def __init__(
        self,
        read_host: Callable[[], HostSnapshot],
        limits: Callable[[], RoomLimits],
        ours: OurEngines,
        learned: LearnedMemory,
        seen: SeenDevices,
    ) -> None:
        self._read_host = read_host
        self._limits = limits
        self._ours = ours
        self._learned = learned
        self._seen = seen

    async def read(self) -> Reading:
        """Look at the machine, in a thread, once engines of an earlier daemon are gone from it."""
        await self._ours.leftovers_gone()
        pids = self._ours.pids()
        learned = await self._learned.known()
        host, ours = await anyio.to_thread.run_sync(self._read, pids, abandon_on_cancel=True)
        return Reading(host, ours, learned)

    def whole(self, reading: Reading, build: FoundBuild) -> tuple[PoolRoom, ...]:
        """What our engines may hold of each pool in all, with the names that a build has for them."""
        limits = self._limits()
        host = host_room(reading.host.memory, reading.ours, limits.host)
        placed = self._placed(build, build.facts.devices or (), reading)
        if any(row.pool == HOST_POOL and not row.device.software for row in placed):
            host = bounded(host, reading.host.unified, limits.host.reserve)
        return rooms_of(host, placed, limits.devices, self._ours.held, frozenset(self._ours.pids()))

    def _read(self, pids: Sequence[int]) -> tuple[HostSnapshot, int]:
        return self._read_host(), sum(resident_bytes(pids).values())

    def usable(
        self, listing: tuple[DeviceListing, ...] | None, lost: Iterable[LostDevice]
    ) -> tuple[DeviceListing, ...] | None:
        """The rows that are there, and that ``host.devices`` does not rule out; None stays None."""
        wishes, gone = self._limits().devices, {device.device for device in lost}
        return (
            None if listing is None else tuple(row for row in listing if wishes.of(row.id).use and row.id not in gone)
        )

    @property
    def device_lost(self) -> Policy:
        """``host.device_lost``."""
        return self._limits().device_lost

    async def lost(self, reading: Reading, build: FoundBuild) -> tuple[LostDevice, ...]:
        """Devices of the build that were there and are gone; those that the owner rules out are not missed."""
        limits, listing = self._limits(), build.facts.devices
        cards = reading.host.cards
        placed = None if listing is None else self._placed(build, listing, reading)
        key = (build.name, build.fingerprint or "")
        lost = await self._seen.lost(key, placed, cards, limits.device_lost)
        return tuple(device for device in lost if limits.devices.of(device.device).use)

    def _placed(self, build: FoundBuild, listing: Iterable[DeviceListing], reading: Reading) -> tuple[Placed, ...]:
        return place_devices(listing, reading.host.cards.cards, self._seen.addresses(build.fingerprint or ""))
