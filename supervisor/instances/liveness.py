"""Whether a ready engine still works: from one look at it and what was known before, to a verdict. Pure.

``/health`` alone proves little: a busy engine may answer it late, and one whose device is dead may go on answering. So
a probe without an answer counts only if no request made progress meanwhile, and an answered one does not excuse an
engine that has a request wait in vain for all of its time.
"""

from __future__ import annotations

from dataclasses import dataclass

from supervisor.units import format_duration

# Our own loop may be late by this much on a loaded machine without having been stopped.
_SLACK_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class LivenessLimits:
    """Seconds and counts of ``supervision.liveness``."""

    interval: float = 10.0
    timeout: float = 3.0
    failures: int = 3

    @property
    def longest(self) -> float:
        """Seconds within which an engine that stops answering is found out, whatever else it does."""
        return self.failures * (self.interval + self.timeout)


@dataclass(frozen=True, slots=True)
class Look:
    """One look at an engine; times are monotonic seconds.

    Attributes:
        began, ended: of the probe.
        asleep: seconds that the machine has been suspended since it booted.
        answered: whether ``/health`` said that it is ready.
        progress_at: when a request last heard anything of this engine.
        overdue: seconds that a request has waited in vain and may not wait longer; None: there is none.
        busy: slots at work by the engine's own word; None where it did not say.
    """

    began: float
    ended: float
    asleep: float
    answered: bool
    progress_at: float
    overdue: float | None = None
    busy: int | None = None


@dataclass(frozen=True, slots=True)
class Standing:
    """What is known between two looks: probes missed in a row, and when the last look ended."""

    ended: float
    asleep: float
    missed: int = 0


@dataclass(frozen=True, slots=True)
class Judgement:
    """What follows from a look.

    Attributes:
        missed: this look counts as a missed probe.
        unresponsive: why the engine is given up; None: it goes on.
    """

    standing: Standing
    missed: bool = False
    unresponsive: str | None = None


def judge(limits: LivenessLimits, before: Standing, look: Look) -> Judgement:
    """Decide on one look."""
    if _stood_still(limits, before, look):
        return Judgement(Standing(look.ended, look.asleep))
    if look.answered:
        return Judgement(Standing(look.ended, look.asleep), unresponsive=_stuck(look))
    if look.progress_at > before.ended:
        return Judgement(Standing(look.ended, look.asleep))
    missed = before.missed + 1
    standing = Standing(look.ended, look.asleep, missed)
    why = None
    if missed >= limits.failures:
        why = (
            f"{missed} probes in a row were not answered within {format_duration(limits.timeout)} "
            f"({limits.failures} are allowed), and no request heard anything of it meanwhile"
        )
    return Judgement(standing, missed=True, unresponsive=why)


def _stood_still(limits: LivenessLimits, before: Standing, look: Look) -> bool:
    """Whether the machine slept, or we did: then nothing can be said of the engine, which may have done so too."""
    late = look.began - before.ended > 2 * limits.interval + _SLACK_SECONDS
    slow = look.ended - look.began > 2 * limits.timeout + _SLACK_SECONDS
    return late or slow or look.asleep - before.asleep > _SLACK_SECONDS


def _stuck(look: Look) -> str | None:
    silent = look.ended - look.progress_at
    if look.overdue is None or silent < look.overdue or look.busy == 0:
        return None
    slots = "does not say which slots work" if look.busy is None else f"says that {look.busy} slots work"
    return (
        f"it answers its health address and {slots}, but no request heard anything of it for {format_duration(silent)}"
    )
