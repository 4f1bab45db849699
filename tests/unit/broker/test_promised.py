"""What is left of a pool beside the engines that hold of it."""

from __future__ import annotations

from supervisor.broker.ledger import Claim, Entry, Ledger, Pool
from supervisor.broker.promised import rooms_beside
from supervisor.host.pools import PoolRoom
from tests.fakes.instances import model_entry

ROOM = PoolRoom("host", 100, 200, "what the test says")


def book(**claims: Claim) -> Ledger:
    """These models hold of the host."""
    entries = {f"{name}-1": Entry(f"{name}-1", name, {"host": claim}) for name, claim in claims.items()}
    return Ledger({"host": Pool(100)}, entries)


def test_nobody_leaves_the_room_as_it_is() -> None:
    """An empty book takes nothing off, and says nothing."""
    assert rooms_beside([ROOM], Ledger(), model_entry()) == (ROOM,)


def test_what_others_hold_is_taken_off_by_name() -> None:
    """The arithmetic names each holder."""
    (room,) = rooms_beside([ROOM], book(a=Claim(30), b=Claim(20)), model_entry())
    assert room.budget == 50
    assert "a 30 B" in room.why
    assert "b 20 B" in room.why


def test_files_that_the_newcomer_maps_too_are_on_its_own_account() -> None:
    """Counted once: the plan counts them, so the room must not."""
    entry = model_entry()
    (room,) = rooms_beside([ROOM], book(a=Claim(10, mapped={str(entry.files[0]): 40, "/other": 5})), entry)
    assert room.budget == 85


def test_a_room_is_never_below_nothing() -> None:
    """More held than there is: nothing is left."""
    (room,) = rooms_beside([ROOM], book(a=Claim(130)), model_entry())
    assert room.budget == 0


def test_an_unknown_budget_stays_unknown() -> None:
    """Unknown is None, never 0."""
    (room,) = rooms_beside([PoolRoom("host", None, None, "")], book(a=Claim(130)), model_entry())
    assert room.budget is None


def test_a_model_has_its_own_memory_to_use_again() -> None:
    """Its plan is made anew while it runs, or while its last engine ends."""
    assert rooms_beside([ROOM], book(m=Claim(90)), model_entry("m")) == (ROOM,)
