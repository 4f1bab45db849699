"""Devices that were there since the machine was started, remembered over restarts of the daemon.

A container that comes back without its cards must not quietly run on the CPU. The pure part is ``host.lost``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Any

import anyio.to_thread

from supervisor.events import DeviceLost, EventBus, StateFileUnusable
from supervisor.host.cards import CardsReading
from supervisor.host.devices import Placed
from supervisor.host.lost import LostDevice, SeenDevice, lost_of, seen_in
from supervisor.storage import JsonFile

SCHEMA = 1

_Builds = dict[str, dict[str, SeenDevice]]


class SeenDevices:
    """Owns the file; what was seen before the machine was last started does not count.

    Args:
        file: None: remembered for as long as this lives.
        boot: the machine's mark of its last start; None: not known.
    """

    def __init__(self, file: JsonFile | None, boot: str | None, bus: EventBus) -> None:
        self._file = file
        self._boot = boot
        self._bus = bus
        self._builds: _Builds | None = None
        self._told: set[tuple[str, str]] = set()
        self._addresses: dict[str, Mapping[str, str]] = {}

    def note_addresses(self, fingerprint: str, addresses: Mapping[str, str]) -> None:
        """A build's own log told where its devices are."""
        if addresses:
            self._addresses[fingerprint] = {**self._addresses.get(fingerprint, {}), **addresses}

    def addresses(self, fingerprint: str) -> Mapping[str, str]:
        """PCI addresses by device, as far as that build has told them since the daemon began."""
        return self._addresses.get(fingerprint, {})

    async def lost(
        self, build: tuple[str, str], placed: Iterable[Placed] | None, cards: CardsReading, policy: str
    ) -> tuple[LostDevice, ...]:
        """Remember a build's devices, and say which are gone; each loss is published once.

        Args:
            build: its name and its fingerprint.
            placed: its devices; None: its listing can't be trusted.
            cards: what the system knows.
            policy: ``host.device_lost``, for the event.
        """
        builds = await self._known()
        name, fingerprint = build
        rows = None if placed is None else tuple(placed)
        before = builds.get(fingerprint, {})
        lost = lost_of(before, rows, cards)
        gone = {device.device for device in lost}
        now = {device: seen for device, seen in seen_in(rows or ()).items() if device not in gone}
        self._tell(name, lost, policy)
        if any(before.get(device) != seen for device, seen in now.items()):
            builds[fingerprint] = {**before, **now}
            await self._write(builds)
        return lost

    def _tell(self, build: str, lost: tuple[LostDevice, ...], policy: str) -> None:
        for device in lost:
            if (build, device.device) not in self._told:
                self._bus.publish(DeviceLost(build, device.device, device.name, device.pool, device.why, policy))
        self._told = {key for key in self._told if key[0] != build} | {(build, device.device) for device in lost}

    async def _known(self) -> _Builds:
        if self._builds is None:
            document: dict[str, Any] | None = None
            if self._file is not None:
                document, problem = await anyio.to_thread.run_sync(self._file.read)
                if problem is not None:
                    await anyio.to_thread.run_sync(self._file.set_aside)
                    self._bus.publish(StateFileUnusable(str(self._file.path), problem))
            if self._builds is None:  # another may have read it meanwhile
                self._builds = _from_document(document or {}, self._boot)
        return self._builds

    async def _write(self, builds: _Builds) -> None:
        if self._file is None:
            return
        rows = {
            fingerprint: {device: asdict(seen) for device, seen in devices.items()}
            for fingerprint, devices in builds.items()
        }
        try:
            await anyio.to_thread.run_sync(self._file.write, {"boot": self._boot, "builds": rows})
        except OSError as error:
            self._bus.publish(StateFileUnusable(str(self._file.path), f"not written: {error}"))


def _from_document(document: Mapping[str, Any], boot: str | None) -> _Builds:
    rows = document.get("builds")
    if boot is None or document.get("boot") != boot or not isinstance(rows, dict):
        return {}
    try:
        return {
            str(fingerprint): {
                str(device): SeenDevice(str(seen["name"]), str(seen["pool"]), by_system=bool(seen["by_system"]))
                for device, seen in devices.items()
            }
            for fingerprint, devices in rows.items()
        }
    except (AttributeError, KeyError, TypeError):
        return {}
