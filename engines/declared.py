"""What an engine's log tells of the memory that it takes, line by line, and the sum of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

from engines.plan_parts import MemoryEstimate

HOST = "host"


@dataclass(frozen=True, slots=True)
class DeclaredBuffer:
    """One buffer, in bytes, as the engine rounds them.

    Attributes:
        place: ``host``, or a device by the build's name.
        mapped: it lies in the model's files, mapped.
    """

    place: str
    part: Literal["weights", "kv", "compute"]
    size: int
    mapped: bool = False


@dataclass(frozen=True, slots=True)
class DeviceAddress:
    """Where a device of the build is: its PCI address."""

    device: str
    address: str


Declared = DeclaredBuffer | DeviceAddress


class DeclaredMemory:
    """The sum of what one launch has declared so far."""

    def __init__(self) -> None:
        self._places: dict[str, MemoryEstimate] = {}
        self._addresses: dict[str, str] = {}

    @property
    def places(self) -> Mapping[str, MemoryEstimate]:
        """Bytes by place; empty when nothing was declared. What the program itself takes is never told."""
        return dict(self._places)

    @property
    def addresses(self) -> Mapping[str, str]:
        """PCI addresses by device."""
        return dict(self._addresses)

    def add(self, found: Declared) -> None:
        """Note what one line told."""
        if isinstance(found, DeviceAddress):
            self._addresses[found.device] = found.address
            return
        sum_so_far = self._places.get(found.place, MemoryEstimate())
        changes: dict[str, int] = {found.part: (getattr(sum_so_far, found.part) or 0) + found.size}
        if found.mapped:
            changes["mapped"] = (sum_so_far.mapped or 0) + found.size
        self._places[found.place] = replace(sum_so_far, **changes)
