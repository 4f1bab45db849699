"""What is told of engines that serve: probes, requests that crash them, and a GPU that they do not find."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from supervisor.events import Event, Level


@dataclass(frozen=True, slots=True)
class GpuNotUsed(Event):
    """A launch was planned with a GPU and computes on the CPU, by the engine's own word; ``line`` is what it said."""

    level: ClassVar[Level] = "warning"
    instance: str
    model: str
    launch: str
    line: str


@dataclass(frozen=True, slots=True)
class ProbeMissed(Event):
    """A ready engine did not answer a probe, and no request heard of it: ``missed`` in a row of ``allowed``."""

    level: ClassVar[Level] = "warning"
    instance: str
    model: str
    launch: str
    missed: int
    allowed: int


@dataclass(frozen=True, slots=True)
class CrashBlamedOnRequest(Event):
    """The crashes of these launches are one request's doing: they count against no build, and the body is refused."""

    level: ClassVar[Level] = "warning"
    model: str
    launches: tuple[str, ...]
    refused_seconds: float
