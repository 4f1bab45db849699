"""How long to wait after an exit, and when to give up."""

from hypothesis import given
from hypothesis import strategies as st

from supervisor.instances.restart_policy import RestartLimits, after_exit, after_request_crash

LIMITS = RestartLimits(initial=1, factor=2, longest=60, budget=3, window=120, stable_after=60)


def test_waits_double_until_the_budget_is_spent() -> None:
    """Three failed starts in a row wait 1, 2 and 4 s; the fourth gives up for the rest of the window."""
    failures: tuple[float, ...] = ()
    delays = []
    for now in (0.0, 2.0, 5.0, 10.0):
        decision = after_exit(LIMITS, failures, now, ready_for=None)
        failures = decision.failures
        delays.append((decision.delay, decision.gave_up))
    assert delays == [(1.0, False), (2.0, False), (4.0, False), (112.0, True)]


def test_an_engine_that_had_been_ready_starts_again_at_once() -> None:
    """A first crash in service costs the next request no waiting."""
    decision = after_exit(LIMITS, (), 100.0, ready_for=5.0)
    assert (decision.delay, decision.gave_up) == (0.0, False)


def test_a_long_good_life_forgives_what_was_before() -> None:
    """After `stable_after` seconds of READY the count starts anew."""
    decision = after_exit(LIMITS, (0.0, 1.0, 2.0), 70.0, ready_for=65.0)
    assert decision.failures == (70.0,)
    assert not decision.gave_up


def test_failures_outside_the_window_do_not_count() -> None:
    """Only exits within the window spend the budget."""
    decision = after_exit(LIMITS, (0.0, 1.0, 2.0), 500.0, ready_for=None)
    assert decision.failures == (500.0,)


def test_waits_are_spread_by_a_quarter_at_most() -> None:
    """Instances that were lost together start again at different times, none later than without the spread."""
    delays = [after_exit(LIMITS, (), 0.0, None, jitter).delay for jitter in (0.0, 0.5, 1.0)]
    assert delays == [1.0, 0.875, 0.75]


def test_a_crash_that_a_request_is_to_blame_for_spends_nothing() -> None:
    """It waits for nothing and is not counted; those before it stay counted within the window."""
    decision = after_request_crash(LIMITS, (0.0, 400.0), 410.0)
    assert (decision.delay, decision.gave_up, decision.failures) == (0.0, False, (400.0,))


@given(
    st.lists(st.floats(0, 1e6), max_size=20).map(sorted),
    st.floats(0, 1e6),
    st.one_of(st.none(), st.floats(0, 1e6)),
)
def test_a_decision_is_always_bounded(failures: list[float], later: float, ready_for: float | None) -> None:
    """Whatever the history: the wait is neither negative nor beyond the window, and old failures are dropped."""
    now = (failures[-1] if failures else 0.0) + later
    decision = after_exit(LIMITS, tuple(failures), now, ready_for)
    assert 0 <= decision.delay <= LIMITS.window
    assert len(decision.failures) <= len(failures) + 1
    assert all(now - at < LIMITS.window for at in decision.failures)
