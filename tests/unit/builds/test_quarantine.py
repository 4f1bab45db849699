"""What is held against a build: which failures, for how long, and what forgives them."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from engines.contract import Blame, FailureKind, RunsHere, Verdict
from supervisor.builds.quarantine import advice, after, aged, is_due, wants_canary
from supervisor.builds.standing import (
    BuildHealth,
    CanaryDied,
    CanaryLived,
    CooldownOver,
    LaunchBegan,
    LaunchEnded,
    LaunchesExcused,
    LaunchGood,
    LaunchReady,
    ModelMark,
    OperatorClear,
    QuarantineLimits,
    Standing,
    Until,
)

LIMITS = QuarantineLimits(strikes=3, window=3600.0, cooldown=21600.0)
M, OTHER = ModelMark("m", "1"), ModelMark("other", "1")
K, B, R = FailureKind, Blame, RunsHere
SIGILL = Verdict(K.INCOMPATIBLE_CPU, B.BUILD, R.NO, "no such instruction")
NO_DRIVER = Verdict(K.INCOMPATIBLE_DRIVER, B.HOST, R.NO, "no driver")
CRASH = Verdict(K.CRASH, B.BUILD, R.UNKNOWN, "it crashed")
SILENT = Verdict(K.UNKNOWN, B.NOBODY, R.UNKNOWN, "nothing says why")
HARMLESS = [
    Verdict(K.OUT_OF_DEVICE_MEMORY, B.PLAN, R.YES, "memory"),
    Verdict(K.OUT_OF_HOST_MEMORY, B.PLAN, R.UNKNOWN, "memory"),
    Verdict(K.MODEL_UNREADABLE, B.MODEL, R.YES, "bad model"),
    Verdict(K.MODEL_UNSUPPORTED, B.MODEL, R.YES, "unknown model"),
    Verdict(K.BAD_ARGUMENT, B.PLAN, R.YES, "bad argument"),
    Verdict(K.ADDRESS_IN_USE, B.HOST, R.YES, "busy address"),
    Verdict(K.KILLED, B.NOBODY, R.UNKNOWN, "stopped from outside"),
    Verdict(K.DEVICE_LOST, B.HOST, R.UNKNOWN, "the card fell off"),
    None,
]


def ended(at: float, verdict: Verdict | None, *, ready: bool = False, model: ModelMark = M, **more: Any) -> LaunchEnded:
    """The end of a launch."""
    return LaunchEnded(at, model, verdict, was_ready=ready, **more)


def told(*happenings: Any, limits: QuarantineLimits = LIMITS) -> Standing:
    """A build's standing after all of it."""
    standing = Standing()
    for happened in happenings:
        standing = after(standing, happened, limits)
    return standing


def test_a_build_that_cannot_run_here_is_set_aside_at_its_first_start() -> None:
    """SIGILL is not tried again and again: time heals nothing, and the reason is the verdict's."""
    standing = told(ended(0, SIGILL))
    assert (standing.health, standing.until) == (BuildHealth.QUARANTINED, Until.BYTES)
    assert [(strike.kind, strike.model) for strike in standing.strikes] == [("INCOMPATIBLE_CPU", "m")]
    assert "no such instruction" in str(advice(standing, OTHER, 10**9, LIMITS).refused)
    assert not is_due(standing, 10**9, LIMITS)


def test_what_the_host_lacks_holds_until_the_host_changes() -> None:
    """A missing driver is nobody's strike to be forgotten: its key changes with the driver."""
    standing = told(ended(0, NO_DRIVER))
    assert (standing.health, standing.until) == (BuildHealth.QUARANTINED, Until.HOST)
    assert not is_due(standing, 10**9, LIMITS)


@pytest.mark.parametrize("verdict", HARMLESS, ids=lambda verdict: verdict.kind if verdict else "as asked")
def test_some_failures_never_strike(verdict: Verdict | None) -> None:
    """Memory, models, arguments, addresses, kills and planned stops say nothing of the build."""
    for ready in (False, True):
        standing = told(*(ended(at, verdict, ready=ready) for at in range(9)))
        assert standing == Standing()
        assert wants_canary(standing, 9, LIMITS) is None


def test_crashes_of_ready_launches_set_aside_at_the_third() -> None:
    """Two make it suspect and usable; the third within the window sets it aside, with the arithmetic."""
    two = told(ended(0, CRASH, ready=True), ended(60, CRASH, ready=True))
    assert two.health is BuildHealth.SUSPECT
    assert advice(two, M, 60, LIMITS).refused is None
    three = after(two, ended(120, CRASH, ready=True), LIMITS)
    assert (three.health, three.until, len(three.strikes)) == (BuildHealth.QUARANTINED, Until.COOLDOWN, 3)
    assert "3 crashes within 1h" in str(advice(three, M, 121, LIMITS).refused)


def test_old_strikes_do_not_count() -> None:
    """Three crashes in three weeks set nothing aside, and a suspect becomes usable by waiting."""
    standing = told(*(ended(at, CRASH, ready=True) for at in (0, 4000, 8000)))
    assert len(standing.strikes) == 1
    assert aged(standing, 12000, LIMITS).health is BuildHealth.USABLE


def test_a_start_that_stays_ready_clears_what_was_before_it() -> None:
    """What another model's crash did meanwhile stays."""
    standing = told(
        ended(0, CRASH, ready=True), ended(20, CRASH, ready=True, model=OTHER), LaunchGood(70, M, ready_at=10)
    )
    assert [strike.at for strike in standing.strikes] == [20]
    assert after(standing, LaunchGood(90, M, ready_at=30), LIMITS) == Standing()


def test_after_the_cooldown_there_is_one_trial() -> None:
    """Canary, one launch for one model at a time; staying ready acquits it, a crash sets it aside anew."""
    aside = told(*(ended(at, CRASH, ready=True) for at in range(3)))
    assert wants_canary(aside, 1000, LIMITS) is None
    late = 2 + LIMITS.cooldown
    assert wants_canary(aside, late, LIMITS)
    assert advice(aside, M, late, LIMITS).last_resort
    trial = after(after(aside, CanaryLived(late), LIMITS), LaunchBegan(late, M), LIMITS)
    assert (trial.health, trial.trial) == (BuildHealth.PROBATION, "m")
    assert advice(trial, M, late, LIMITS) == advice(Standing(), M, late, LIMITS)
    assert "on trial with m" in str(advice(trial, OTHER, late, LIMITS).last_resort)
    good = after(trial, LaunchGood(late + 60, M, ready_at=late), LIMITS)
    assert good.health is BuildHealth.USABLE
    assert good.strikes == ()
    bad = after(trial, ended(late + 1, SILENT), LIMITS)
    assert bad.health is BuildHealth.QUARANTINED
    assert not is_due(bad, late + 2, LIMITS)
    assert is_due(bad, late + 1 + LIMITS.cooldown, LIMITS)


def test_a_trial_that_was_stopped_proves_nothing() -> None:
    """A planned stop ends the trial; the next launch is the trial then."""
    aside = told(*(ended(at, CRASH, ready=True) for at in range(3)))
    late = 2 + LIMITS.cooldown
    stopped = after(after(aside, LaunchBegan(late, M), LIMITS), ended(late + 1, None), LIMITS)
    assert (stopped.health, stopped.trial) == (BuildHealth.PROBATION, None)


def test_an_engine_without_a_canary_goes_on_trial_by_time_alone() -> None:
    """And its undecided crashes are strikes, since nothing else can decide."""
    aside = told(*(ended(at, SILENT, can_check=False) for at in range(3)))
    assert aside.health is BuildHealth.QUARANTINED
    assert after(aside, CooldownOver(100), LIMITS).health is BuildHealth.QUARANTINED
    assert after(aside, CooldownOver(2 + LIMITS.cooldown), LIMITS).health is BuildHealth.PROBATION


def test_two_undecided_starts_put_the_pair_in_question() -> None:
    """The build is still used for other models, and for this one where there is no other build."""
    one = told(ended(0, SILENT))
    assert wants_canary(one, 1, LIMITS) is None
    assert one.health is BuildHealth.SUSPECT
    two = after(one, ended(5, SILENT), LIMITS)
    assert wants_canary(two, 6, LIMITS)
    assert advice(two, M, 6, LIMITS).last_resort
    assert advice(two, OTHER, 6, LIMITS) == advice(Standing(), OTHER, 6, LIMITS)


def test_a_canary_that_lives_blames_the_model() -> None:
    """The pair is set aside for the cool-down, the build is as good as new; other files are another pair."""
    standing = told(ended(0, SILENT), ended(5, SILENT), CanaryLived(6))
    assert (standing.health, standing.all_strikes) == (BuildHealth.USABLE, ())
    assert "tiny model" in str(advice(standing, M, 7, LIMITS).refused)
    assert advice(standing, OTHER, 7, LIMITS).refused is None
    assert advice(standing, ModelMark("m", "2"), 7, LIMITS).refused is None
    assert advice(standing, M, 6 + LIMITS.cooldown, LIMITS).refused is None


def test_a_canary_that_dies_blames_the_build() -> None:
    """It is set aside for all models, with the starts that led to it as strikes."""
    standing = told(ended(0, SILENT), ended(5, SILENT), CanaryDied(6, SILENT))
    assert (standing.health, standing.until) == (BuildHealth.QUARANTINED, Until.COOLDOWN)
    assert [strike.model for strike in standing.strikes] == ["m", "m", None]
    assert advice(standing, OTHER, 7, LIMITS).refused
    firm = told(ended(0, SILENT), ended(5, SILENT), CanaryDied(6, SIGILL))
    assert firm.until is Until.BYTES


def test_a_canary_acquits_a_build_that_one_model_had_set_aside() -> None:
    """Three crashes in one model's load set the build aside; when the tiny model loads, only the pair stays aside."""
    standing = told(*(ended(at, CRASH) for at in range(3)))
    assert standing.health is BuildHealth.QUARANTINED
    acquitted = after(standing, CanaryLived(4), LIMITS)
    assert (acquitted.health, acquitted.strikes) == (BuildHealth.USABLE, ())
    assert advice(acquitted, M, 5, LIMITS).refused
    assert advice(acquitted, OTHER, 5, LIMITS).refused is None


def test_crashes_that_a_request_is_to_blame_for_are_taken_back() -> None:
    """The first of them looked like the build's fault, and may have set it aside."""
    first = ended(0, CRASH, ready=True, launch="a")
    others = [ended(at, CRASH, ready=True, launch=f"b{at}") for at in (1, 2)]
    excused = LaunchesExcused(9, frozenset({"a", "c"}))
    assert told(first, excused) == Standing()
    assert told(first, *others).health is BuildHealth.QUARANTINED
    lifted = told(first, *others, excused)
    assert (lifted.health, len(lifted.strikes)) == (BuildHealth.SUSPECT, 2)


def test_a_launch_that_becomes_ready_takes_its_pair_out_of_question() -> None:
    """The model loads after all: the two starts before had another cause."""
    standing = told(ended(0, SILENT), ended(5, SILENT), LaunchReady(9, M))
    assert standing == Standing(checked=True), "and the build needs no canary"


def test_an_operator_clears_everything() -> None:
    """Also what time would not heal."""
    assert told(ended(0, SIGILL), OperatorClear(1)) == Standing()
    assert told(ended(0, SILENT), ended(1, SILENT), CanaryLived(2), OperatorClear(3)) == Standing(checked=True)


def test_a_clock_that_jumps_back_does_not_lengthen_a_quarantine() -> None:
    """What lies ahead counts as now: the wait is one cool-down at most."""
    standing = told(*(ended(at, CRASH, ready=True) for at in (10**9, 10**9 + 1, 10**9 + 2)))
    assert standing.health is BuildHealth.QUARANTINED
    back = after(standing, LaunchReady(1000, OTHER), LIMITS)
    assert is_due(back, 1000 + LIMITS.cooldown, LIMITS)


VERDICTS = [SIGILL, NO_DRIVER, CRASH, SILENT, *HARMLESS]


class QuarantineMachine(RuleBasedStateMachine):
    """Any order of launches, canaries, waits and operators: what is said holds."""

    @initialize()
    def begin(self) -> None:
        """A build of which nothing is known."""
        self.now = 1000.0
        self.standing = Standing()
        self.cleared = True
        self.could_not_run = False

    def happens(self, happened: Any) -> None:
        """Tell it, and tell nothing twice."""
        self.standing = after(self.standing, happened, LIMITS)

    @rule(seconds=st.sampled_from([1, 59, 1000, 3600, 21600, 90000]))
    def wait(self, seconds: int) -> None:
        """Time goes by."""
        self.now += seconds

    @rule(
        model=st.sampled_from([M, OTHER]), verdict=st.sampled_from(VERDICTS), ready=st.booleans(), check=st.booleans()
    )
    def launch(self, model: ModelMark, verdict: Verdict | None, ready: bool, check: bool) -> None:
        """One launch from its begin to its end."""
        before = advice(self.standing, model, self.now, LIMITS)
        self.happens(LaunchBegan(self.now, model))
        if before.refused is None:
            assert advice(self.standing, model, self.now, LIMITS).refused is None
        if ready:
            self.happens(LaunchReady(self.now, model))
        self.happens(ended(self.now, verdict, ready=ready, model=model, can_check=check))
        if verdict is not None and verdict.runs_here is R.NO:
            self.could_not_run = True
            assert self.standing.health is BuildHealth.QUARANTINED

    @rule(model=st.sampled_from([M, OTHER]))
    def stays_ready(self, model: ModelMark) -> None:
        """A start that begins now and stays: whatever was held against the build is forgiven."""
        self.happens(LaunchBegan(self.now, model))
        self.happens(LaunchReady(self.now, model))
        self.now += 60
        self.happens(LaunchGood(self.now, model, ready_at=self.now - 60))
        self.could_not_run = False
        assert self.standing.strikes == ()
        assert self.standing.health in {BuildHealth.USABLE, BuildHealth.SUSPECT}

    @rule(lives=st.booleans(), verdict=st.sampled_from([SIGILL, CRASH, SILENT]))
    def canary(self, lives: bool, verdict: Verdict) -> None:
        """Afterwards nothing is in question."""
        self.happens(CanaryLived(self.now) if lives else CanaryDied(self.now, verdict))
        self.could_not_run |= not lives and verdict.runs_here is R.NO
        assert self.standing.in_question == ()
        assert lives or self.standing.health is BuildHealth.QUARANTINED

    @rule()
    def clear(self) -> None:
        """An operator."""
        self.happens(OperatorClear(self.now))
        self.could_not_run = False
        assert self.standing.health is BuildHealth.USABLE

    @invariant()
    def what_cannot_run_here_stays_aside(self) -> None:
        """No wait and no canary of the same bytes takes it back."""
        if self.could_not_run:
            assert self.standing.health is BuildHealth.QUARANTINED
            assert self.standing.until is not Until.COOLDOWN
            assert advice(self.standing, M, self.now + 10**7, LIMITS).refused

    @invariant()
    def it_says_why(self) -> None:
        """A reason goes with every health but usable, an end with every quarantine, evidence with every strike."""
        standing = aged(self.standing, self.now, LIMITS)
        assert (standing.reason is None) == (standing.health is BuildHealth.USABLE)
        quarantined = standing.health is BuildHealth.QUARANTINED
        assert quarantined == (standing.until is not None) == (standing.since is not None)
        assert standing.health is not BuildHealth.SUSPECT or standing.all_strikes
        assert standing.trial is None or standing.health is BuildHealth.PROBATION

    @precondition(lambda self: self.standing.until is Until.COOLDOWN)
    @invariant()
    def it_is_tried_again_in_time(self) -> None:
        """Nothing that time heals is set aside for longer than one cool-down from now."""
        assert advice(self.standing, OTHER, self.now + LIMITS.cooldown, LIMITS).refused is None or self.standing.pairs


TestQuarantineMachine = QuarantineMachine.TestCase
TestQuarantineMachine.settings = settings(max_examples=40, stateful_step_count=25, deadline=None)
