"""What is told of leftovers: of launches that could not be written down, and of what earlier daemons left."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from supervisor.events import Event, Level


@dataclass(frozen=True, slots=True)
class LaunchRecordFailed(Event):
    """A launch could not be written down: were the daemon killed, its leftovers might not be found."""

    level: ClassVar[Level] = "warning"
    launch: str
    path: str
    reason: str


@dataclass(frozen=True, slots=True)
class LeftoversFound(Event):
    """An earlier daemon left these processes behind; they are being ended, and nothing is launched before."""

    level: ClassVar[Level] = "warning"
    launches: tuple[str, ...]
    pids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class OrphanReaped(Event):
    """A process that an earlier daemon left behind was ended; ``forced``: it took SIGKILL."""

    level: ClassVar[Level] = "warning"
    launch: str
    model: str
    pid: int
    command: str
    why: str
    forced: bool


@dataclass(frozen=True, slots=True)
class OrphanRemains(Event):
    """A process that an earlier daemon left behind can't be ended: it hangs in the kernel, or is another user's."""

    level: ClassVar[Level] = "error"
    launch: str
    model: str
    pid: int
    command: str


@dataclass(frozen=True, slots=True)
class EngineRemains(Event):
    """Processes of a launch outlived SIGKILL: they hang in the kernel, and hold what memory they have."""

    level: ClassVar[Level] = "error"
    instance: str
    model: str
    launch: str
    pids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class MemoryNotBack(Event):
    """An engine is gone, and what it held was not seen to be free in time; it is not waited for any longer."""

    level: ClassVar[Level] = "warning"
    instance: str
    model: str
    launch: str
    waited_seconds: float
