"""What would become of a request: read from admission itself, with nothing done."""

from __future__ import annotations

from dataclasses import replace

from supervisor.broker.admission import Phase, Prospect, World
from supervisor.broker.ledger import Claim
from supervisor.broker.tickets import Denial
from supervisor.broker.what_if import Forecast, Times, Verdict, forecast
from tests.unit.broker.test_admission import ready, resting, ticket, world


def _ask(picture: World, model: str = "m", need: int = 60, times: Times | None = None) -> Forecast:
    return forecast(picture, model, Prospect({"host": Claim(need)}), times or Times(load=3.0, slot=0.0))


def test_a_model_that_never_ran_starts_where_there_is_room() -> None:
    """It need not be known to the broker; its numbers are beside what others hold."""
    found = _ask(world([], ready("a"), a=30))
    assert found.verdict is Verdict.STARTS
    assert (found.needed, found.free, found.expected_wait) == ({"host": 60}, {"host": 70}, 3.0)


def test_idle_engines_would_go_for_it() -> None:
    """Who, and the arithmetic; the expected wait is that of its own load."""
    found = _ask(world([], ready("a"), resting("m"), a=50))
    assert (found.verdict, found.would_evict, found.would_drain) == (Verdict.EVICTS, ("a",), ())
    assert found.why is not None
    assert "50 B of 100 B is free" in found.why
    assert found.document()["expected_wait_seconds"] == 3.0


def test_conversations_that_are_saved_first_are_part_of_the_wait() -> None:
    """Those of several engines are written side by side."""
    picture = world([], ready("a", saving=0.5), ready("b", saving=2.0), resting("m"), a=30, b=30)
    found = _ask(picture, need=90)
    assert (found.verdict, set(found.would_evict)) == (Verdict.EVICTS, {"a", "b"})
    assert found.expected_wait == 5.0


def test_engines_in_use_would_be_drained_if_the_wait_lasts() -> None:
    """Not at once: the bound for swaps is part of the expected wait."""
    picture = world([], ready("a", idle=None), resting("m"), a=50)
    found = _ask(picture)
    assert (found.verdict, found.would_evict, found.would_drain) == (Verdict.WAITS, (), ("a",))
    assert found.expected_wait == 3.0 + picture.policy.swap_after


def test_a_ready_model_has_a_slot_or_will_have_one() -> None:
    """Free slots are told from none though admission makes up the list only for those who wait."""
    picture = world([], ready("m"), m=60)
    assert _ask(picture, times=Times(slot=0.0)).verdict is Verdict.READY
    busy = _ask(picture, times=Times(slot=4.0))
    assert (busy.verdict, busy.expected_wait) == (Verdict.SLOT, 4.0)
    assert busy.free == {"host": 100}, "its own bytes are not held against it"


def test_a_load_under_way_is_waited_for() -> None:
    """And nobody goes for what is reserved already."""
    found = _ask(world([ticket(1)], resting("m", phase=Phase.STARTING)))
    assert (found.verdict, found.why) == (Verdict.WAITS, "m-1 is loading")


def test_what_would_be_refused_says_why() -> None:
    """A plan that does not fit at all, and one that lacks a budget with everything stopped."""
    refusal = Prospect(denial=Denial("does_not_fit", "m needs 9 GiB", 60.0))
    found = forecast(world([]), "m", refusal, Times())
    assert (found.verdict, found.why, found.expected_wait) == (Verdict.NEVER, "m needs 9 GiB", None)
    assert _ask(world([]), need=101).verdict is Verdict.NEVER


def test_a_smaller_plan_is_told_from_the_wished_one() -> None:
    """Where what holds the rest is pinned, the conceded plan would be launched."""
    prospect = Prospect({"host": Claim(60)}, conceded={"host": Claim(40)})
    found = forecast(world([], ready("a", pinned=True), a=50), "m", prospect, Times())
    assert (found.verdict, found.expected_wait) == (Verdict.CONCEDES, None)


def test_nothing_is_changed_by_asking() -> None:
    """The picture that was asked about is the one that is there afterwards."""
    picture = world([ticket(1, "a")], ready("a"), resting("m"), a=50)
    before = replace(picture, queues={name: list(queue) for name, queue in picture.queues.items()})
    _ask(picture)
    assert picture == before
