"""What running engines were promised is not promised twice."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from engines.contract import MemoryEstimate
from supervisor.broker.promised import Holder, rooms_for
from supervisor.host.pools import PoolRoom

HOST = PoolRoom("host", 1000, 2000, "1000 B")
_FILES = (Path("/m/a.gguf"),)


def _holder(name: str, file: str, observed: int | None = None) -> Holder:
    estimate = MemoryEstimate(weights=300, kv=40, compute=10, mapped=250)  # 100 of its own
    return Holder(name, 1, (Path(file),), {"host": estimate}, {} if observed is None else {"host": observed})


def test_own_memory_and_mapped_weights_of_a_running_model_are_taken_off() -> None:
    """And the arithmetic names it."""
    (left,) = rooms_for([HOST], [_holder("b", "/m/b.gguf")], "a", _FILES)

    assert left.budget == 1000 - 350
    assert left.why.startswith("1000 B - promised to running models (b ")


def test_weights_are_counted_once_per_file() -> None:
    """Two models over one file map it once; a newcomer over it counts it in its own account."""
    twice = [_holder("b", "/m/b.gguf"), _holder("c", "/m/b.gguf")]

    assert rooms_for([HOST], twice, "a", _FILES)[0].budget == 1000 - 350 - 100
    assert rooms_for([HOST], twice, "a", (Path("/m/b.gguf"),))[0].budget == 1000 - 100 - 100


def test_what_was_seen_counts_where_it_is_more_than_predicted() -> None:
    """Less seen than predicted frees nothing: the rest is yet to come."""
    assert rooms_for([HOST], [_holder("b", "/m/b.gguf", 500)], "a", _FILES)[0].budget == 1000 - 750
    assert rooms_for([HOST], [_holder("b", "/m/b.gguf", 5)], "a", _FILES)[0].budget == 1000 - 350


def test_a_model_has_its_own_memory_to_use_again() -> None:
    """Its plan is made anew while it runs, or while its last engine ends."""
    assert rooms_for([HOST], [_holder("a", "/m/a.gguf")], "a", _FILES) == (HOST,)


@given(st.lists(st.integers(0, 2000)), st.one_of(st.none(), st.integers(0, 4000)))
def test_what_is_left_is_never_negative_and_unknown_stays_unknown(seen: list[int], budget: int | None) -> None:
    """Whatever was promised."""
    holders = [_holder(str(number), f"/m/{number}.gguf", size) for number, size in enumerate(seen)]
    (left,) = rooms_for([PoolRoom("host", budget, None, "so")], holders, "a", _FILES)

    assert left.budget is None if budget is None else 0 <= (left.budget or 0) <= budget


def test_the_margin_is_kept_until_the_engine_was_looked_at() -> None:
    """It was admitted with it, so nobody else is promised it meanwhile."""
    estimate = MemoryEstimate(kv=100, upper=30)
    loading = Holder("b", None, (Path("/m/b.gguf"),), {"host": estimate})
    looked_at = Holder("b", 1, (Path("/m/b.gguf"),), {"host": estimate}, {"host": 80})

    assert rooms_for([HOST], [loading], "a", _FILES)[0].budget == 1000 - 130
    assert rooms_for([HOST], [looked_at], "a", _FILES)[0].budget == 1000 - 100
