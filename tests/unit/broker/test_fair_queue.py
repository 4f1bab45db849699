"""Whose turn it is."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from supervisor.broker.fair_queue import BACKGROUND, INTERACTIVE, LANE_PATIENCE, FairState, first_in_turn, in_turn, jain


@dataclass(frozen=True)
class Ticket:
    """What the order needs."""

    number: int
    caller: str
    lane: str = INTERACTIVE
    weight: float = 1.0
    since: float = 0.0


def order(tickets: list[Ticket], state: FairState | None = None, now: float = 0.0) -> list[int]:
    """Numbers in the order of their turns."""
    return [ticket.number for ticket in in_turn(state or FairState(), tickets, now, 1.0)]


def test_one_caller_is_served_in_order() -> None:
    """First come, first served, among one's own."""
    assert order([Ticket(n, "a") for n in range(5)]) == [0, 1, 2, 3, 4]


def test_two_callers_take_turns_whoever_asked_more() -> None:
    """A caller with many requests does not stand before one with few."""
    tickets = [Ticket(n, "greedy") for n in range(4)] + [Ticket(9, "modest")]
    assert order(tickets) == [0, 9, 1, 2, 3]


def test_weight_two_gets_two_turns() -> None:
    """Turns follow the weights."""
    tickets = [Ticket(n, "big", weight=2) for n in range(4)] + [Ticket(n, "small") for n in (10, 11)]
    assert order(tickets) == [0, 10, 1, 2, 11, 3]


def test_who_was_served_waits_for_who_was_not() -> None:
    """The account carries over from lease to lease."""
    state = FairState().charge("a", 1.0, 5.0)
    assert order([Ticket(0, "a"), Ticket(1, "b")], state) == [1, 0]


def test_the_estimate_is_corrected() -> None:
    """Who was charged too much gets it back when the lease ends."""
    state = FairState().charge("a", 1.0, 5.0).charge("b", 1.0, 1.0).correct("a", 1.0, 5.0, 0.5)
    assert order([Ticket(1, "b"), Ticket(2, "a")], state) == [2, 1]


def test_idle_callers_bank_nothing() -> None:
    """A caller that was away for an hour gets its turn, not an hour of turns."""
    state = FairState()
    for _ in range(100):
        state = state.charge("busy", 1.0, 1.0)
    tickets = [Ticket(n, "back") for n in range(4)] + [Ticket(n, "busy") for n in range(10, 14)]
    assert order(tickets, state) == [0, 1, 10, 2, 11, 3, 12, 13]


def test_the_background_waits_behind() -> None:
    """Interactive requests go first, whoever's they are."""
    tickets = [Ticket(0, "a", BACKGROUND), Ticket(1, "b", BACKGROUND), Ticket(2, "a")]
    assert order(tickets) == [2, 1, 0]


def test_the_background_does_not_starve() -> None:
    """Having waited long enough, it stands with the others."""
    tickets = [Ticket(0, "a", BACKGROUND), Ticket(1, "b", since=LANE_PATIENCE), Ticket(2, "b", since=LANE_PATIENCE)]
    assert order(tickets, now=LANE_PATIENCE) == [0, 1, 2]


def test_only_as_much_is_computed_as_is_read() -> None:
    """The head of a long queue costs no walk through it."""
    tickets = [Ticket(n, f"c{n % 50}") for n in range(1000)]
    assert [t.number for t in islice(in_turn(FairState(), tickets, 0.0, 1.0), 3)] == [0, 1, 2]


@pytest.mark.parametrize(("shares", "index"), [([1, 1, 1], 1.0), ([3, 0, 0], 1 / 3), ([], 1.0)])
def test_jains_index(shares: list[float], index: float) -> None:
    """All equal, all to one, nobody."""
    assert jain(shares) == pytest.approx(index)


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from([INTERACTIVE, BACKGROUND])), max_size=40),
    st.dictionaries(st.sampled_from("abc"), st.floats(0, 20)),
)
def test_everybody_is_served_once_and_each_callers_own_order_holds(
    asked: list[tuple[str, str]], finish: dict[str, float]
) -> None:
    """Nothing is lost or doubled, and within a lane a caller's requests keep their order."""
    tickets = [Ticket(n, caller, lane) for n, (caller, lane) in enumerate(asked)]
    turns = list(in_turn(FairState(3.0, finish), tickets, 0.0, 1.0))
    assert sorted(t.number for t in turns) == list(range(len(tickets)))
    for caller in "abc":
        for lane in (INTERACTIVE, BACKGROUND):
            own = [t.number for t in turns if (t.caller, t.lane) == (caller, lane)]
            assert own == sorted(own)
    assert [t.lane for t in turns] == sorted((t.lane for t in turns), key=lambda lane: lane != INTERACTIVE)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.floats(0.1, 5.0), min_size=30, max_size=60), st.floats(1, 4))
def test_backlogged_callers_are_served_by_weight(costs: list[float], weight: float) -> None:
    """While both wait, served work divided by weight never drifts apart by more than the largest pieces allow."""
    state, served = FairState(), {"a": 0.0, "b": 0.0}
    weights = {"a": 1.0, "b": weight}
    for number, cost in enumerate(costs):
        waiting = [Ticket(number * 2 + n, caller, weight=weights[caller]) for n, caller in enumerate("ab")]
        turn = next(in_turn(state, waiting, 0.0, 1.0))
        state = state.charge(turn.caller, turn.weight, 1.0).correct(turn.caller, turn.weight, 1.0, cost)
        served[turn.caller] += cost
        assert abs(served["a"] - served["b"] / weight) <= 2 * 5.0 + 2


@given(st.data())
def test_the_first_is_found_without_ordering_the_rest(data: st.DataObject) -> None:
    """It is the one that ``in_turn`` gives first, for any accounts, lanes and waits."""
    callers = st.sampled_from("abc")
    rows = data.draw(
        st.lists(st.tuples(callers, st.sampled_from([INTERACTIVE, BACKGROUND]), st.floats(0, 60)), min_size=1)
    )
    finish = data.draw(st.dictionaries(callers, st.floats(0, 5)))
    tickets = [Ticket(n, who, lane, since=since) for n, (who, lane, since) in enumerate(rows)]
    state = FairState(data.draw(st.floats(0, 3)), finish)
    assert first_in_turn(state, tickets, 60.0) is next(in_turn(state, tickets, 60.0, 1.0))
