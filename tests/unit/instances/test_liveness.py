"""When a ready engine is given up, and when silence says nothing of it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from supervisor.instances.liveness import LivenessLimits, Look, Standing, judge

LIMITS = LivenessLimits(interval=10, timeout=3, failures=3)
FRESH = Standing(ended=0.0, asleep=5.0)


def look(began: float, *, seconds: float = 3.0, asleep: float = 5.0, answered: bool = False, **more: float) -> Look:
    """A look that began then; without an answer and without progress unless said."""
    progress = more.pop("progress_at", -100.0)
    busy = more.pop("busy", None)
    return Look(
        began,
        began + seconds,
        asleep,
        answered,
        progress,
        overdue=more.pop("overdue", None),
        busy=None if busy is None else int(busy),
    )


def test_so_many_missed_probes_in_a_row_are_the_end() -> None:
    """The third of three allowed failures gives it up, with the arithmetic in the reason."""
    standing = FRESH
    for began in (10.0, 23.0):
        judgement = judge(LIMITS, standing, look(began))
        assert (judgement.missed, judgement.unresponsive) == (True, None)
        standing = judgement.standing
    judgement = judge(LIMITS, standing, look(36.0))
    assert judgement.unresponsive is not None
    assert "3 probes" in judgement.unresponsive
    assert LIMITS.longest >= 36.0 + 3.0


def test_an_answer_forgives_the_probes_before_it() -> None:
    """Only probes in a row count."""
    standing = Standing(ended=13.0, asleep=5.0, missed=2)
    assert judge(LIMITS, standing, look(23.0, seconds=0.01, answered=True)).standing.missed == 0


def test_a_busy_engine_may_answer_late() -> None:
    """A probe that is missed while a request makes progress does not count: prevents the kill of a long prefill."""
    standing = Standing(ended=13.0, asleep=5.0, missed=2)
    judgement = judge(LIMITS, standing, look(23.0, progress_at=14.0))
    assert (judgement.missed, judgement.unresponsive) == (False, None)
    assert judge(LIMITS, standing, look(23.0, progress_at=12.0)).unresponsive is not None


def test_after_a_gap_counting_begins_anew() -> None:
    """A daemon that was stopped for minutes knows nothing of its engine yet: prevents kills after a resume."""
    standing = Standing(ended=13.0, asleep=5.0, missed=2)
    assert judge(LIMITS, standing, look(300.0)).standing.missed == 0
    assert judge(LIMITS, standing, look(23.0, seconds=120.0)).standing.missed == 0


def test_a_suspended_machine_fails_nobody() -> None:
    """The monotonic clock stands still while the machine sleeps; the boot clock shows that it did."""
    standing = Standing(ended=13.0, asleep=5.0, missed=2)
    judgement = judge(LIMITS, standing, look(23.0, asleep=3600.0))
    assert (judgement.standing.missed, judgement.missed, judgement.unresponsive) == (0, False, None)


def test_health_that_answers_does_not_excuse_requests_that_stand_still() -> None:
    """`/health` is 200 and the device is dead: a request waited for all of its time, and slots say that they work."""
    stuck = look(400.0 - 1, seconds=1.0, answered=True, progress_at=50.0, overdue=300.0, busy=1)
    standing = Standing(ended=390.0, asleep=5.0)
    judgement = judge(LIMITS, standing, stuck)
    assert judgement.unresponsive is not None
    assert "5m50s" in judgement.unresponsive
    says_nothing = look(400.0 - 1, seconds=1.0, answered=True, progress_at=50.0, overdue=300.0)
    assert judge(LIMITS, standing, says_nothing).unresponsive is not None


def test_an_engine_that_serves_others_or_is_idle_is_not_stuck() -> None:
    """One request's silence is its own matter while another hears something, or the engine says that nothing runs."""
    standing = Standing(ended=390.0, asleep=5.0)
    for progress_at, busy in ((350.0, 1), (50.0, 0)):
        seen = look(399.0, seconds=1.0, answered=True, progress_at=progress_at, overdue=300.0, busy=busy)
        assert judge(LIMITS, standing, seen).unresponsive is None


@given(st.lists(st.tuples(st.floats(0, 1000), st.floats(0, 100), st.floats(0, 50), st.booleans(), st.floats(0, 5000))))
def test_it_is_never_given_up_early(history: list[tuple[float, float, float, bool, float]]) -> None:
    """Whatever happens: no end before so many looks have failed since the last answer, progress or gap."""
    standing, now, slept, failed = FRESH, 0.0, 5.0, 0
    for pause, seconds, nap, answered, progress_at in history:
        began = now + pause
        now, slept = began + seconds, slept + nap
        judgement = judge(LIMITS, standing, Look(began, now, slept, answered, progress_at))
        failed = failed + 1 if judgement.missed else 0
        assert not (judgement.missed and (answered or progress_at > standing.ended or nap > 1))
        assert (judgement.unresponsive is not None) == (failed >= LIMITS.failures)
        standing = judgement.standing
