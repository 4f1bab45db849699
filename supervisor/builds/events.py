"""What is told of builds' health."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from supervisor.events import Event, Level


@dataclass(frozen=True, slots=True)
class BuildHealthChanged(Event):
    """A build is trusted more or less than before; ``reason`` is None once nothing is held against it."""

    level: ClassVar[Level] = "warning"
    build: str
    engine: str
    fingerprint: str | None
    old: str
    new: str
    reason: str | None


@dataclass(frozen=True, slots=True)
class ModelSetAside(Event):
    """A build that works is not used for this model: it ended ``crashes`` times before the model was ready."""

    level: ClassVar[Level] = "warning"
    build: str
    engine: str
    model: str
    crashes: int
    why: str


@dataclass(frozen=True, slots=True)
class BuildFellBack(Event):
    """A launch failed with one build; the same request is served by another one, or refused where there is none."""

    level: ClassVar[Level] = "warning"
    model: str
    build: str
    next_build: str | None
    why: str


@dataclass(frozen=True, slots=True)
class CanaryTried(Event):
    """The tiny model was loaded with a build. ``outcome``: ``lived``, ``died`` or ``unknown``."""

    build: str
    engine: str
    cause: str
    outcome: str
    why: str
    seconds: float


@dataclass(frozen=True, slots=True)
class BuildPinned(Event):
    """An operator prefers this build for its engine; None: no build any more."""

    engine: str
    build: str | None
