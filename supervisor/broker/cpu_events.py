"""Events of the CPU budget; those of the other rooms are in ``supervisor.events``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from supervisor.events import Event, Level


@dataclass(frozen=True, slots=True)
class CpuBudgetChanged(Event):
    """The CPUs that may be used are others than at the last look: ``old`` and ``new``, None: not known."""

    old: float | None
    new: float | None
    threads: int
    why: str
    source: str | None


@dataclass(frozen=True, slots=True)
class CpuThrottled(Event):
    """Engines stood still for want of quota in ``throttled`` of ``periods``; ``seconds`` summed over CPUs."""

    level: ClassVar[Level] = "warning"
    instances: tuple[str, ...]
    quota: float
    periods: int
    throttled: int
    seconds: float | None
    advice: str
