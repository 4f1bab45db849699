"""Loads that must not overlap with the work of others: readers and one writer, by admission alone. Pure."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from engines.mlx.adapter import MlxAdapter
from supervisor.broker.admission import Decision, ModelView, Phase, Prospect, World, admit
from supervisor.broker.eviction import Resident
from supervisor.broker.ledger import LOADS_ALONE, Claim, Entry, Ledger, Pool
from supervisor.broker.tickets import Ticket

NOW = 1000.0
ALONE = frozenset({LOADS_ALONE})


def ticket(number: int, model: str) -> Ticket:
    """A waiting ticket."""
    return Ticket(number, f"r{number}", "a", model, "interactive", NOW)


def view(model: str, phase: Phase, *, at_work: bool = False, alone: bool = True) -> ModelView:
    """A model; one that runs has a free slot."""
    serial = ALONE if alone else frozenset()
    made = ModelView(model, f"{model}-1", phase, prospect=Prospect({"host": Claim(1)}, serial_pools=serial))
    if phase is not Phase.READY:
        return made
    return replace(made, free_slots=(0,), resident=Resident(f"{model}-1", model, None if at_work else NOW - 1))


def decide(asked: list[str], *views: ModelView, alone: frozenset[str] = frozenset("abc")) -> Decision:
    """What becomes of a request for each of these models; ``alone``: those whose loads must be alone."""
    queues = {
        one.model: [ticket(place, one.model) for place, name in enumerate(asked) if name == one.model] for one in views
    }
    running = [one for one in views if one.phase in {Phase.READY, Phase.STARTING}]
    serial = {one.model: ALONE if one.model in alone else frozenset[str]() for one in running}
    entries = {
        one.instance: Entry(one.instance, one.model, {"host": Claim(1)}, serial=serial[one.model]) for one in running
    }
    world = World(NOW, queues, {one.model: one for one in views}, Ledger({"host": Pool(100)}, entries))
    return admit(world)


def granted(decision: Decision) -> set[str]:
    """Models that got a lease."""
    return {grant.ticket.model_id for grant in decision.grants}


def started(decision: Decision) -> set[str]:
    """Models that are started."""
    return {start.model for start in decision.starts}


def test_a_load_waits_for_work_and_nothing_new_begins() -> None:
    """The one that waits to load goes first: no new request of the others is let in before it."""
    decision = decide(["a", "b"], view("a", Phase.READY, at_work=True), view("b", Phase.RESTING))
    assert not started(decision)
    assert not granted(decision)
    assert any("a-1 is at work" in wait.why for wait in decision.waits)


def test_it_starts_when_the_last_has_ended() -> None:
    """And while it loads the others wait, and another load too."""
    decision = decide(["a", "b"], view("a", Phase.READY), view("b", Phase.RESTING))
    assert started(decision) == {"b"}
    assert not granted(decision)
    during = decide(["a", "c"], view("a", Phase.READY), view("b", Phase.STARTING), view("c", Phase.RESTING))
    assert not granted(during)
    assert not started(during)
    after = decide(["a", "b"], view("a", Phase.READY), view("b", Phase.READY))
    assert granted(after) == {"a", "b"}


def test_others_are_not_touched() -> None:
    """Engines of other kinds are leased and loaded whatever happens here."""
    other, resting = view("x", Phase.READY, alone=False), view("y", Phase.RESTING, alone=False)
    decision = decide(["x", "y", "a"], other, resting, view("a", Phase.READY, at_work=True), view("b", Phase.STARTING))
    assert granted(decision) == {"x"}
    assert started(decision) == {"y"}


@settings(max_examples=200)
@given(
    st.lists(st.sampled_from(["resting", "starting", "idle", "working"]), min_size=3, max_size=3),
    st.lists(st.sampled_from("abc"), max_size=8),
)
def test_no_load_overlaps_with_work(states: list[str], asked: list[str]) -> None:
    """Whatever is asked and whatever runs: never a load beside work or beside another load, and always one of them."""
    phases = {"resting": Phase.RESTING, "starting": Phase.STARTING, "idle": Phase.READY, "working": Phase.READY}
    views = [view(name, phases[state], at_work=state == "working") for name, state in zip("abc", states, strict=True)]
    decision = decide(asked, *views)
    loads = states.count("starting") + len(decision.starts)
    if decision.starts:
        assert loads == 1
        assert "working" not in states
        assert not decision.grants
    if "starting" in states:
        assert not decision.grants
    quiet = "starting" not in states and "working" not in states
    if quiet and asked:
        assert decision.grants or decision.starts


def test_only_on_metal() -> None:
    """On a CPU nothing is shared."""
    assert MlxAdapter().exclusive_load(("Metal",))
    assert not MlxAdapter().exclusive_load(())
    assert not MlxAdapter().exclusive_load(None)
