"""Events of the memory book and of what is decided by it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from supervisor.events import Event, Level


@dataclass(frozen=True, slots=True)
class RequestWaits(Event):
    """Why a request is not served yet, in words with the arithmetic; told when it changes."""

    level: ClassVar[Level] = "debug"
    request_id: str
    model: str
    why: str


@dataclass(frozen=True, slots=True)
class MemoryReserved(Event):
    """A launch was given bytes of a pool: its own (None: not known), and those of the files that it maps."""

    level: ClassVar[Level] = "debug"
    instance: str
    model: str
    pool: str
    anonymous_bytes: int | None
    mapped_bytes: int
    free_bytes: int | None


@dataclass(frozen=True, slots=True)
class MemoryReleased(Event):
    """An ended launch's bytes of a pool can be promised again."""

    level: ClassVar[Level] = "debug"
    instance: str
    model: str
    pool: str
    free_bytes: int | None


@dataclass(frozen=True, slots=True)
class OverCommitted(Event):
    """More of a pool is held than may be promised: growth, others, or a smaller budget; idle engines go."""

    level: ClassVar[Level] = "warning"
    pool: str
    budget_bytes: int
    reserved_bytes: int
    over_bytes: int


@dataclass(frozen=True, slots=True)
class Evicted(Event):
    """An engine is stopped for its memory; ``drained``: it was in use, and ends its running requests first."""

    instance: str
    model: str
    beneficiary: str | None
    why: str
    drained: bool


@dataclass(frozen=True, slots=True)
class HostPressure(Event):
    """The machine has been short of memory for so long that idle engines are let go; None: not known.

    ``some_percent``: of the last ten seconds, in which some task waited for memory.
    """

    level: ClassVar[Level] = "warning"
    why: str
    lasted_seconds: float
    available_bytes: int | None
    whole_bytes: int | None
    some_percent: float | None
