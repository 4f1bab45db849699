"""When an idle instance has stayed long enough. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

FOREVER = math.inf


@dataclass(frozen=True, slots=True)
class IdleInstance:
    """A READY instance that nobody uses and nobody waits for; ``since`` and ``keep_alive`` in seconds."""

    model_id: str
    since: float
    keep_alive: float


@dataclass(frozen=True, slots=True)
class KeepAliveDecision:
    """Whom to stop now, and when to look again (monotonic seconds; None: nobody's time will come)."""

    stop: tuple[IdleInstance, ...]
    next_look: float | None


def keep_alive_of(asked: float | None, own: float | None, *, pinned: bool) -> float:
    """Seconds an instance stays idle: what the last request asked for, else the model's own word.

    Args:
        asked: by the request; None: it said nothing.
        own: of the model's config; None: for ever.
        pinned: the model stays whatever its config says, unless a request asks otherwise.
    """
    if asked is not None:
        return asked
    return FOREVER if pinned or own is None else own


def decide_idle(idle: Iterable[IdleInstance], now: float) -> KeepAliveDecision:
    """Who is due at ``now``, and when the next one will be."""
    stop: list[IdleInstance] = []
    later: list[float] = []
    for instance in idle:
        due = instance.since + instance.keep_alive
        if due <= now:
            stop.append(instance)
        elif due < FOREVER:
            later.append(due)
    return KeepAliveDecision(tuple(stop), min(later, default=None))
