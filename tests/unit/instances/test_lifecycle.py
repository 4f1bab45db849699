"""The table of an instance's states."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.instances.lifecycle import TRANSITIONS, ImpossibleTransition, InstanceState, Trigger, advance


@given(st.sampled_from(InstanceState), st.sampled_from(Trigger))
def test_every_pair_is_an_arrow_or_a_bug(state: InstanceState, trigger: Trigger) -> None:
    """A trigger moves along an arrow of the table, or raises: nothing is ignored."""
    if (state, trigger) in TRANSITIONS:
        assert advance(state, trigger) is TRANSITIONS[state, trigger]
    else:
        with pytest.raises(ImpossibleTransition, match=trigger.value):
            advance(state, trigger)


def test_start_while_stopping_is_no_arrow() -> None:
    """Prevents the field's lost wake-up: a request that meets a stop must wait for it, then start."""
    with pytest.raises(ImpossibleTransition):
        advance(InstanceState.STOPPING, Trigger.START)


@pytest.mark.parametrize("state", InstanceState)
def test_every_state_leads_to_stopped(state: InstanceState) -> None:
    """Wherever an instance is, some way leads to STOPPED."""
    reached, edge = {state}, [state]
    while edge:
        here = edge.pop()
        for (start, _), end in TRANSITIONS.items():
            if start is here and end not in reached:
                reached.add(end)
                edge.append(end)
    assert InstanceState.STOPPED in reached


@pytest.mark.parametrize("state", [InstanceState.STARTING, InstanceState.READY, InstanceState.UNRESPONSIVE])
def test_a_running_engine_can_stop_and_can_exit(state: InstanceState) -> None:
    """A process may end, or be asked to, at any moment of its life."""
    assert advance(state, Trigger.STOP) is InstanceState.STOPPING
    assert advance(state, Trigger.EXITED) is InstanceState.BACKOFF
