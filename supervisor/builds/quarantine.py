"""What is held against a build, and when it is set aside: pure, from what is known and what happened to what is known.

::

    USABLE ──strike──▶ SUSPECT ──strikes within the window──▶ QUARANTINED
    any ──can't run here, canary died──▶ QUARANTINED
    QUARANTINED ──canary lived, or a launch after the cool-down──▶ PROBATION
    PROBATION ──stayed ready──▶ USABLE        PROBATION ──crash──▶ QUARANTINED
    any ──operator──▶ USABLE

A crash before a launch was ready may be the build's fault or the model's. At the second one the pair of the two is *in
question*: used only where there is nothing else, until the canary, a tiny model of our own, says whose fault it was.
A crash that blames nobody is no strike until then; one that blames the build is, and is taken back if the canary lives.

Times are seconds since 1970: what is known outlives the daemon.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from engines.contract import Blame, FailureKind, RunsHere, Verdict
from supervisor.builds.standing import (
    GOOD,
    Advice,
    BuildHealth,
    CanaryDied,
    CanaryLived,
    CooldownOver,
    Happening,
    LaunchBegan,
    LaunchEnded,
    LaunchesExcused,
    LaunchGood,
    LaunchReady,
    ModelMark,
    OperatorClear,
    Pair,
    QuarantineLimits,
    Standing,
    Strike,
    Until,
)
from supervisor.units import format_duration

_KEEP_STRIKES = 20
_CRASHES = frozenset(
    {
        FailureKind.CRASH,
        FailureKind.ENGINE_ASSERT,
        FailureKind.DEVICE_LOST,
        FailureKind.UNKNOWN,
        FailureKind.MISSING_LIBRARY,
        FailureKind.INCOMPATIBLE_CPU,
        FailureKind.INCOMPATIBLE_DRIVER,
    }
)


def strikes_build(verdict: Verdict) -> bool:
    """Whether a failure is a crash that may be the build's fault. Memory, models, arguments, addresses never are."""
    return verdict.kind in _CRASHES and verdict.blames in {Blame.BUILD, Blame.NOBODY}


def after(standing: Standing, happened: Happening, limits: QuarantineLimits) -> Standing:
    """What is known once this has happened too."""
    standing = aged(standing, happened.at, limits)
    match happened:
        case LaunchBegan() | LaunchReady() | LaunchGood():
            return _after_a_start(standing, happened, limits)
        case LaunchEnded() | LaunchesExcused():
            return _after_an_end(standing, happened, limits)
        case CanaryLived():
            return _canary_lived(standing, happened.at, limits)
        case CanaryDied():
            return _canary_died(standing, happened)
        case CooldownOver():
            due = is_due(standing, happened.at, limits)
            return _to_probation(standing, "its cool-down is over") if due else standing
        case OperatorClear():
            return Standing(checked=standing.checked)


def aged(standing: Standing, now: float, limits: QuarantineLimits) -> Standing:
    """The same without what lies too far back; a time that lies ahead, after a jump of the clock, counts as now."""
    strikes = tuple(
        replace(strike, at=min(strike.at, now)) for strike in standing.strikes if now - strike.at < limits.window
    )
    if standing.health in {BuildHealth.QUARANTINED, BuildHealth.PROBATION}:
        strikes = standing.strikes  # the evidence stays with the sentence
    pairs = tuple(
        pair for old in standing.pairs if (pair := _aged_pair(old, now, limits)).crashes or pair.set_aside is not None
    )
    since = None if standing.since is None else min(standing.since, now)
    return _settled(replace(standing, strikes=strikes, pairs=pairs, since=since))


def is_due(standing: Standing, now: float, limits: QuarantineLimits) -> bool:
    """Whether it has been set aside for long enough to be tried once."""
    if standing.health is not BuildHealth.QUARANTINED or standing.until is not Until.COOLDOWN:
        return False
    return standing.since is None or now - standing.since >= limits.cooldown


def advice(standing: Standing, model: ModelMark, now: float, limits: QuarantineLimits) -> Advice:
    """Whether the build may be used for the model."""
    standing = aged(standing, now, limits)
    if is_due(standing, now, limits):
        return Advice(last_resort=f"its cool-down is over, but it has not been tried yet ({standing.reason})")
    if standing.health is BuildHealth.QUARANTINED:
        return Advice(refused=f"set aside: {standing.reason}")
    pair = next((pair for pair in standing.pairs if pair.of == model), None)
    if pair is not None and pair.set_aside is not None:
        return Advice(refused=f"set aside for {model.model}: {_pair_reason(pair)}")
    if pair is not None and pair.in_question:
        return Advice(last_resort=f"it ended {len(pair.crashes)} times before {model.model} was ready: {_last(pair)}")
    if standing.health is BuildHealth.PROBATION and standing.trial not in {None, model.model}:
        return Advice(last_resort=f"it is on trial with {standing.trial}")
    return GOOD


def wants_canary(standing: Standing, now: float, limits: QuarantineLimits) -> str | None:
    """Why the canary should be asked, in words; None: there is nothing to find out, but for a build never checked."""
    if standing.in_question:
        return f"{standing.in_question[0].of.model} or the build"
    return "its cool-down is over" if is_due(standing, now, limits) else None


def set_aside_until(verdict: Verdict) -> Until | None:
    """What must change before this build can start here; None: it may start as it is."""
    if verdict.runs_here is not RunsHere.NO:
        return None
    return Until.BYTES if verdict.blames is Blame.BUILD else Until.HOST


def _after_a_start(
    standing: Standing, happened: LaunchBegan | LaunchReady | LaunchGood, limits: QuarantineLimits
) -> Standing:
    if isinstance(happened, LaunchBegan):
        return _began(standing, happened.at, happened.model, limits)
    if isinstance(happened, LaunchReady):
        # What has loaded a real model needs no tiny one.
        return _settled(replace(standing, checked=True, pairs=_without(standing.pairs, happened.model)))
    return _good(standing, happened)


def _after_an_end(standing: Standing, happened: LaunchEnded | LaunchesExcused, limits: QuarantineLimits) -> Standing:
    if isinstance(happened, LaunchEnded):
        return _ended(standing, happened, limits)
    kept = tuple(strike for strike in standing.strikes if strike.launch not in happened.launches)
    return _settled(_with_only(standing, kept, limits))


def _ended(standing: Standing, ended: LaunchEnded, limits: QuarantineLimits) -> Standing:
    on_trial = standing.health is BuildHealth.PROBATION and standing.trial in {None, ended.model.model}
    if standing.trial == ended.model.model:
        standing = replace(standing, trial=None)
    verdict = ended.verdict
    if verdict is None:
        return standing
    strike = Strike(ended.at, verdict.kind.value, ended.model.model, verdict.why, ended.log, ended.launch)
    hold = set_aside_until(verdict)
    if hold is not None:
        return _set_aside(standing, (strike,), hold, f"it can't run on this machine: {verdict.why}", ended.at)
    if not strikes_build(verdict):
        return standing
    if on_trial:
        return _set_aside(standing, (strike,), Until.COOLDOWN, f"it failed on trial: {verdict.why}", ended.at)
    if not ended.was_ready and ended.can_check:
        standing = replace(standing, pairs=_with_crash(standing.pairs, ended.model, strike))
        if verdict.blames is not Blame.BUILD:
            return _settled(standing)
    return _struck(standing, strike, limits)


def _struck(standing: Standing, strike: Strike, limits: QuarantineLimits) -> Standing:
    struck = replace(standing, strikes=(*standing.strikes, strike)[-_KEEP_STRIKES:])
    count = len(struck.strikes)
    if standing.health is not BuildHealth.QUARANTINED and count < limits.strikes:
        return _settled(struck)
    reason = f"{_crashes(count)} within {format_duration(limits.window)}, the last one: {strike.why}"
    return _set_aside(standing, (strike,), Until.COOLDOWN, reason, strike.at)


def _set_aside(standing: Standing, strikes: tuple[Strike, ...], until: Until, reason: str, at: float) -> Standing:
    """QUARANTINED; a reason that holds until something changes is not replaced by one that time heals."""
    all_strikes = (*standing.strikes, *strikes)[-_KEEP_STRIKES:]
    firm = standing.health is BuildHealth.QUARANTINED and standing.until is not Until.COOLDOWN
    if firm and until is Until.COOLDOWN:
        return replace(standing, strikes=all_strikes)
    return replace(
        standing,
        health=BuildHealth.QUARANTINED,
        strikes=all_strikes,
        until=until,
        reason=reason,
        since=at,
        trial=None,
        checked=False,
    )


def _began(standing: Standing, at: float, model: ModelMark, limits: QuarantineLimits) -> Standing:
    if is_due(standing, at, limits):
        standing = _to_probation(standing, "its cool-down is over")
    if standing.health is BuildHealth.PROBATION and standing.trial is None:
        return replace(standing, trial=model.model)
    return standing


def _good(standing: Standing, good: LaunchGood) -> Standing:
    """It forgives what was before that start, not what happened since."""
    if standing.since is not None and standing.since > good.ready_at:
        return standing
    strikes = tuple(strike for strike in standing.strikes if strike.at > good.ready_at)
    cleared = replace(standing, strikes=strikes, pairs=_without(standing.pairs, good.model))
    if standing.health in {BuildHealth.QUARANTINED, BuildHealth.PROBATION}:
        cleared = replace(cleared, health=BuildHealth.USABLE, since=None, until=None, reason=None, trial=None)
    return _settled(cleared)


def _canary_lived(standing: Standing, at: float, limits: QuarantineLimits) -> Standing:
    """What was in question is the model's fault; a build whose time is over may be tried once."""
    acquitted = {crash for pair in standing.in_question for crash in pair.crashes}
    strikes = tuple(strike for strike in standing.strikes if strike not in acquitted)
    pairs = tuple(replace(pair, set_aside=at) if pair.in_question else pair for pair in standing.pairs)
    due = is_due(standing, at, limits)
    standing = replace(_with_only(standing, strikes, limits), pairs=pairs, checked=True)
    if due:
        return _to_probation(standing, "its cool-down is over, and it loaded a tiny model of ours")
    return _settled(standing)


def _with_only(standing: Standing, strikes: tuple[Strike, ...], limits: QuarantineLimits) -> Standing:
    """Some strikes were taken back: it is no longer set aside if too few are left, and nothing else holds it."""
    lifted = len(strikes) < min(limits.strikes, len(standing.strikes)) and standing.until is Until.COOLDOWN
    standing = replace(standing, strikes=strikes)
    if not lifted:
        return standing
    return replace(standing, health=BuildHealth.USABLE, since=None, until=None, reason=None)


def _canary_died(standing: Standing, died: CanaryDied) -> Standing:
    crashes = tuple(crash for pair in standing.in_question for crash in pair.crashes)
    pairs = tuple(pair for pair in standing.pairs if not pair.in_question)
    verdict = died.verdict
    strike = Strike(died.at, verdict.kind.value, None, verdict.why, died.log)
    until = set_aside_until(verdict) or Until.COOLDOWN
    reason = f"it does not load a tiny model of ours either: {verdict.why}"
    new = tuple(crash for crash in crashes if crash not in standing.strikes)
    return _set_aside(replace(standing, pairs=pairs), (*new, strike), until, reason, died.at)


def _to_probation(standing: Standing, why: str) -> Standing:
    return replace(
        standing, health=BuildHealth.PROBATION, since=None, until=None, trial=None, reason=f"on trial: {why}"
    )


def _settled(standing: Standing) -> Standing:
    """SUSPECT with strikes, USABLE without; the other two are left by what happens, not by time."""
    if standing.health in {BuildHealth.QUARANTINED, BuildHealth.PROBATION}:
        return standing
    strikes = standing.all_strikes
    if not strikes:
        return replace(standing, health=BuildHealth.USABLE, reason=None)
    reason = f"{_crashes(len(strikes))} lately, the last one: {strikes[-1].why}"
    return replace(standing, health=BuildHealth.SUSPECT, reason=reason)


def _without(pairs: Iterable[Pair], model: ModelMark) -> tuple[Pair, ...]:
    return tuple(pair for pair in pairs if pair.of.model != model.model)


def _with_crash(pairs: tuple[Pair, ...], model: ModelMark, crash: Strike) -> tuple[Pair, ...]:
    """Crashes of the model as it was before its files or settings changed are forgotten."""
    old = next((pair for pair in pairs if pair.of == model), Pair(model))
    changed = replace(old, crashes=(*old.crashes, crash)[-_KEEP_STRIKES:])
    return (*_without(pairs, model), changed)


def _aged_pair(pair: Pair, now: float, limits: QuarantineLimits) -> Pair:
    if pair.set_aside is not None:
        since = min(pair.set_aside, now)
        return Pair(pair.of) if now - since >= limits.cooldown else replace(pair, set_aside=since)
    crashes = tuple(replace(crash, at=min(crash.at, now)) for crash in pair.crashes if now - crash.at < limits.window)
    return replace(pair, crashes=crashes)


def _pair_reason(pair: Pair) -> str:
    return (
        f"it loads a tiny model of ours, but ended {len(pair.crashes)} times before this one was ready: {_last(pair)}"
    )


def _crashes(count: int) -> str:
    return "1 crash" if count == 1 else f"{count} crashes"


def _last(pair: Pair) -> str:
    return pair.crashes[-1].why if pair.crashes else "nothing is known of why"
