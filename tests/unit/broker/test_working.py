"""Working sets: bytes that a lease adds to its engine while it runs."""

from __future__ import annotations

from dataclasses import replace

from supervisor.broker.admission import ModelView, Phase, Policy, Prospect, World, admit
from supervisor.broker.eviction import Resident
from supervisor.broker.ledger import Claim, Entry, Ledger, Pool
from supervisor.broker.room import Room
from supervisor.broker.tickets import Ticket
from supervisor.broker.working import find_room, needs

_WORK = {"host": 50}


def _ledger(budget: int = 200, **held: int) -> Ledger:
    entries = {f"{name}-1": Entry(f"{name}-1", name, {"host": Claim(size)}) for name, size in held.items()}
    return Ledger({"host": Pool(budget)}, entries)


def _ticket(model: str = "paint", working: dict[str, int] | None = None) -> Ticket:
    return Ticket(1, "r1", "me", model, "interactive", 0.0, working=_WORK if working is None else working)


def _idle(name: str, since: float = 0.0) -> Resident:
    return Resident(f"{name}-1", name, since)


def _world(ledger: Ledger, *views: ModelView, ticket: Ticket | None = None, now: float = 100.0) -> World:
    asked = ticket or _ticket()
    queues = {view.model: [asked] if view.model == asked.model_id else [] for view in views}
    return World(now, queues, {view.model: view for view in views}, ledger, policy=Policy(min_idle=5.0))


def test_they_count_while_the_lease_runs_and_no_longer() -> None:
    """On top of what the engine was promised."""
    ledger = _ledger(paint=100)
    busy = ledger.work("paint-1", 0, _WORK)
    assert (ledger.reserved("host"), busy.reserved("host"), busy.free("host")) == (100, 150, 50)
    assert busy.work("paint-1", 0, {}) == ledger


def test_what_is_seen_of_an_engine_at_work_is_not_counted_twice() -> None:
    """Its figures contain the picture that it draws, and afterwards what that one left behind for the next."""
    busy = _ledger(paint=100).work("paint-1", 0, _WORK)
    assert busy.observe("paint-1", {"host": 148}).reserved("host") == 150
    assert busy.observe("paint-1", {"host": 170}).reserved("host") == 170
    idle = busy.observe("paint-1", {"host": 130}).work("paint-1", 0, {})
    assert idle.reserved("host") == 130
    assert needs(idle, "paint-1", 0, _WORK)["host"].predicted == 20


def test_a_lease_is_granted_where_it_fits() -> None:
    """And kept for it within the pass: two can't have the same bytes."""
    room = Room(_ledger(paint=100, other=20), set())
    assert find_room(room, ("paint-1", 0, _WORK), [], 100.0, 5.0).fits
    assert room.ledger.reserved("host") == 170
    assert not find_room(room, ("other-1", 0, _WORK), [], 100.0, 5.0).fits


def test_idle_engines_go_for_it_and_busy_ones_are_waited_for() -> None:
    """As for a start."""
    room = Room(_ledger(paint=100, chat=80), set())
    found = find_room(room, ("paint-1", 0, _WORK), [_idle("chat")], 100.0, 5.0)
    assert (found.fits, found.gone) == (False, ("chat-1",))
    fresh = find_room(room, ("paint-1", 0, _WORK), [_idle("chat", 98.0)], 100.0, 5.0)
    assert (fresh.gone, fresh.look_at) == ((), 103.0)
    busy = find_room(room, ("paint-1", 0, _WORK), [replace(_idle("chat"), idle_since=None)], 100.0, 5.0)
    assert (busy.gone, busy.never, busy.look_at) == ((), False, None)
    assert "paint-1" in busy.why


def test_what_never_fits_is_told_with_the_sums() -> None:
    """Not even alone on the machine."""
    found = find_room(Room(_ledger(paint=180, chat=10), set()), ("paint-1", 0, _WORK), [_idle("chat")], 100.0, 5.0)
    assert (found.fits, found.never, found.gone) == (False, True, ())
    assert found.why == "paint-1 needs 180 B that it holds + 50 B while it works, and host has 200 B"


def test_admission_makes_room_for_a_picture() -> None:
    """A free slot is not enough: an idle engine goes first, and the lease is granted when its bytes are back."""
    paint = ModelView("paint", "paint-1", Phase.READY, free_slots=(0,))
    chat = ModelView("chat", "chat-1", Phase.READY, resident=_idle("chat"))
    decision = admit(_world(_ledger(paint=100, chat=80), paint, chat))
    assert ([grant.slot for grant in decision.grants], [gone.model for gone in decision.evictions]) == ([], ["chat"])
    assert decision.evictions[0].beneficiary == "paint"
    granted = admit(_world(_ledger(paint=100), paint))
    assert [grant.slot for grant in granted.grants] == [0]
    refused = admit(_world(_ledger(paint=190), paint))
    assert [denial.code for _, denial in refused.denials] == ["does_not_fit"]


def test_a_start_is_for_an_engine_that_can_then_work() -> None:
    """Only the engine's own bytes are reserved, but it is not started where its first picture has no room."""
    view = ModelView("paint", "paint-1", Phase.RESTING, prospect=Prospect({"host": Claim(100)}))
    started = admit(_world(_ledger(), view))
    assert [start.claims for start in started.starts] == [{"host": Claim(100)}]
    large = _ticket(working={"host": 150})
    assert [denial.code for _, denial in admit(_world(_ledger(), view, ticket=large)).denials] == ["does_not_fit"]
    chat = ModelView("chat", "chat-1", Phase.READY, resident=_idle("chat"))
    crowded = admit(_world(_ledger(chat=80), view, chat))
    assert ([start.model for start in crowded.starts], [gone.model for gone in crowded.evictions]) == ([], ["chat"])
