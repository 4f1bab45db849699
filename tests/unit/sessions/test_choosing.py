"""Slots by what they save and what is lost; files by what they are worth."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from supervisor.sessions.choosing import Holding, choose_slot
from supervisor.sessions.kept import Kept, best_kept, kept_of, too_many
from tests.unit.sessions.test_conversation import read

_NOW = 1000.0


def _said(*texts: str) -> list[dict[str, Any]]:
    return [{"role": "user", "content": text} for text in texts]


def _held(*texts: str, tokens: int = 1000, age: float = 0.0, kept: int = 0, name: str | None = None) -> Holding:
    return Holding(read(_said(*texts), name=name), tokens, _NOW - age, tokens * 0.01, kept)


def test_a_conversation_goes_to_its_own_slot() -> None:
    """Whatever else is free."""
    holdings = {1: _held("a" * 400), 2: _held("b" * 400)}
    assert choose_slot(holdings, (0, 1, 2), read(_said("b" * 400, "more")), 0, _NOW) == 2


def test_an_empty_slot_is_taken_before_a_conversation_is_lost() -> None:
    """A short beginning in common is no reason to overwrite a long conversation."""
    holdings = {0: _held("system " * 20, "x" * 8000, tokens=3000)}
    assert choose_slot(holdings, (0, 1), read(_said("system " * 20, "y")), 0, _NOW) == 1


def test_a_long_beginning_in_common_is_worth_a_slot() -> None:
    """Most of the slot is the same: it is taken although another is empty."""
    holdings = {0: _held("system " * 2000, "x", tokens=3000)}
    assert choose_slot(holdings, (0, 1), read(_said("system " * 2000, "y")), 0, _NOW) == 0


def test_the_least_valuable_goes() -> None:
    """The older one; the shorter one; the one that a file holds."""
    new = read(_said("new"))
    assert choose_slot({0: _held("a"), 1: _held("b", age=5000.0)}, (0, 1), new, 0, _NOW) == 1
    assert choose_slot({0: _held("a", tokens=100), 1: _held("b")}, (0, 1), new, 0, _NOW) == 0
    assert choose_slot({0: _held("a"), 1: _held("b", kept=1000)}, (0, 1), new, 0, _NOW) == 1


@given(
    st.dictionaries(st.integers(0, 7), st.tuples(st.text(min_size=1, max_size=5), st.integers(1, 10**5)), max_size=8),
    st.sets(st.integers(0, 7), min_size=1),
    st.integers(0, 10**5),
)
def test_only_a_free_slot_is_chosen(held: dict[int, tuple[str, int]], free: set[int], in_file: int) -> None:
    """For any holdings."""
    holdings = {slot: _held(text, tokens=tokens) for slot, (text, tokens) in held.items()}
    assert choose_slot(holdings, sorted(free), read(_said("q")), in_file, _NOW) in free


def _kept(*texts: str, **facts: Any) -> Kept:
    whole = Kept("id", "key", read(_said(*texts)), 1000, 10**6, 10.0, _NOW, _NOW)
    return replace(whole, **facts)


def test_the_best_file_is_the_one_that_saves_most() -> None:
    """Of those that this model, build and settings have written."""
    files = [
        _kept("a" * 400, id="short", tokens=100),
        _kept("a" * 400, "b" * 400, id="long", tokens=200),
        _kept("a" * 400, "b" * 400, "c" * 400, id="other", key="other model", tokens=300),
    ]
    found = best_kept(files, "key", read(_said("a" * 400, "b" * 400, "c" * 400)))
    assert found is not None
    assert found[0].id == "long"
    assert best_kept(files, "key", read(_said("z"))) is None


def test_a_longer_file_replaces_a_shorter_one_of_the_same_conversation() -> None:
    """And not the one of another branch."""
    assert _kept("a").is_replaced_by(_kept("a", "b"))
    assert not _kept("a", "c").is_replaced_by(_kept("a", "b"))
    assert not _kept("a", key="other").is_replaced_by(_kept("a", "b"))


@given(
    st.lists(st.tuples(st.integers(1, 10**9), st.floats(0.1, 1e4), st.floats(0, 1e6), st.integers(0, 50)), max_size=20),
    st.integers(0, 10**10),
)
def test_what_is_left_is_within_the_budget(rows: list[tuple[int, float, float, int]], budget: int) -> None:
    """Whatever there was; and no more goes than must, unless it is too old."""
    files = [
        _kept("a", id=str(at), size=size, seconds=seconds, used_at=1e6 - age, uses=uses)
        for at, (size, seconds, age, uses) in enumerate(rows)
    ]
    gone = too_many(files, budget, 5e5, 1e6)
    left = [kept for kept in files if kept not in gone]
    assert sum(kept.size for kept in left) <= budget
    assert all(1e6 - kept.used_at <= 5e5 for kept in left)
    valuable = [kept for kept in gone if 1e6 - kept.used_at <= 5e5]
    if valuable:
        assert sum(kept.size for kept in left) + valuable[-1].size > budget
        assert max(kept.value(1e6) for kept in valuable) <= min(
            (kept.value(1e6) for kept in left), default=float("inf")
        )


def test_what_is_written_beside_a_file_is_read_again() -> None:
    """All of it; the text of the conversation is not there to be read."""
    kept = replace(_kept("secret text", "more"), talk=read(_said("secret text", "more"), name="n"))
    assert kept_of(kept.document()) == kept
    assert "secret" not in str(kept.document())
