"""After an exit: how long to wait, and when to give up. Pure."""

from __future__ import annotations

from dataclasses import dataclass

# Of a wait, at most.
_SPREAD = 0.25


@dataclass(frozen=True, slots=True)
class RestartLimits:
    """Seconds and counts of ``supervision.restart``."""

    initial: float = 1.0
    factor: float = 2.0
    longest: float = 60.0
    budget: int = 3
    window: float = 120.0
    stable_after: float = 60.0


@dataclass(frozen=True, slots=True)
class RestartDecision:
    """Wait ``delay`` seconds, or, when ``gave_up``, stay FAILED for that long."""

    delay: float
    gave_up: bool
    failures: tuple[float, ...]
    reason: str


def after_request_crash(limits: RestartLimits, failures: tuple[float, ...], now: float) -> RestartDecision:
    """Decide on an exit at ``now`` that a request is to blame for: it spends nothing and waits for nothing."""
    recent = tuple(at for at in failures if now - at < limits.window)
    return RestartDecision(0.0, gave_up=False, failures=recent, reason="a request is blamed for it, which is refused")


def after_exit(
    limits: RestartLimits, failures: tuple[float, ...], now: float, ready_for: float | None, jitter: float = 0.0
) -> RestartDecision:
    """Decide on the exit at ``now``.

    Args:
        limits: the settings.
        failures: monotonic times of earlier exits, oldest first.
        now: monotonic time of this exit, in seconds.
        ready_for: how long the launch had been ready, in seconds; None if it never was.
        jitter: 0 to 1: by how much of a quarter the wait is cut short, so that instances that were lost together, as
            after a driver's reset, do not all load at once.
    """
    if ready_for is not None and ready_for >= limits.stable_after:
        failures = ()
    recent = (*(at for at in failures if now - at < limits.window), now)
    if len(recent) > limits.budget:
        rest = max(limits.initial, recent[-limits.budget] + limits.window - now)
        why = f"{len(recent)} exits within {limits.window:g} s, {limits.budget} are allowed"
        return RestartDecision(rest, gave_up=True, failures=recent, reason=why)
    if ready_for is not None and len(recent) == 1:
        return RestartDecision(
            0.0, gave_up=False, failures=recent, reason="it had been ready: the next start is at once"
        )
    delay = min(limits.longest, limits.initial * limits.factor ** (len(recent) - 1)) * (1 - _SPREAD * jitter)
    return RestartDecision(delay, gave_up=False, failures=recent, reason=f"exit {len(recent)} of {limits.budget}")
