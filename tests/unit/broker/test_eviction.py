"""Who goes so that another fits."""

from __future__ import annotations

from itertools import chain, combinations

from hypothesis import given, settings
from hypothesis import strategies as st

from supervisor.broker.eviction import Resident, choose_victims, evictable, for_pool
from supervisor.broker.ledger import Claim, Entry, Ledger, Pool


def book(budget: int, **held: int) -> Ledger:
    """A host pool in which these models hold so many bytes."""
    entries = {f"{name}-1": Entry(f"{name}-1", name, {"host": Claim(size)}) for name, size in held.items()}
    return Ledger({"host": Pool(budget)}, entries)


def resident(name: str, **more: object) -> Resident:
    """An idle one."""
    return Resident(f"{name}-1", name, 0.0, **more)  # type: ignore[arg-type]


def test_only_idle_unpinned_engines_may_go() -> None:
    """Who works, is pinned, or has just been used, stays."""
    assert evictable(resident("a"), 10.0, 5.0)
    assert not evictable(resident("a"), 4.0, 5.0)
    assert not evictable(resident("a", pinned=True), 10.0, 5.0)
    assert not evictable(Resident("a-1", "a", None), 10.0, 5.0)


def test_the_one_that_is_asked_for_least_goes() -> None:
    """Both would do; the one whose loss costs its clients less goes."""
    ledger = book(100, a=50, b=50)
    often, seldom = resident("a", demand=1.0), resident("b", demand=0.01)
    victims = choose_victims(ledger, {"host": Claim(50)}, [often, seldom])
    assert victims is not None
    assert victims.instances == ("b-1",)


def test_a_slow_load_is_worth_keeping() -> None:
    """At equal demand the one that comes back sooner goes."""
    ledger = book(100, a=50, b=50)
    victims = choose_victims(
        ledger, {"host": Claim(10)}, [resident("a", demand=1, reload=40), resident("b", demand=1, reload=2)]
    )
    assert victims is not None
    assert victims.instances == ("b-1",)


def test_no_more_go_than_are_needed() -> None:
    """One that is big enough is preferred to two that cost as much, and the smallest that is enough to a bigger one."""
    ledger = book(100, a=30, b=30, c=40)
    victims = choose_victims(ledger, {"host": Claim(30)}, [resident("a"), resident("b"), resident("c")])
    assert victims is not None
    assert (len(victims.instances), victims.excess) == (1, 0)


def test_when_all_together_are_not_enough_nobody_goes() -> None:
    """Stopping engines in vain helps nobody."""
    assert choose_victims(book(100, a=30, busy=60), {"host": Claim(50)}, [resident("a")]) is None


def test_enough_room_needs_no_victim() -> None:
    """What fits evicts nobody."""
    victims = choose_victims(book(100, a=30), {"host": Claim(50)}, [resident("a")])
    assert victims is not None
    assert victims.instances == ()


def test_an_over_committed_pool_lets_the_cheapest_go() -> None:
    """As many as bring it within its budget, or all that may go."""
    ledger = book(100, a=50, b=50, c=20)
    few = for_pool(ledger, "host", [resident("a", demand=1), resident("c", demand=0.001)])
    assert few is not None
    assert few.instances == ("c-1",)
    assert for_pool(ledger, "host", []) is None


@settings(max_examples=150, deadline=None)
@given(
    held=st.lists(st.tuples(st.integers(1, 50), st.floats(0.001, 10)), min_size=1, max_size=6),
    need=st.integers(1, 250),
    spare=st.integers(0, 20),
)
def test_no_other_choice_is_cheaper(held: list[tuple[int, float]], need: int, spare: int) -> None:
    """Compared with every subset by brute force: it fits, it is minimal, nothing that fits costs less."""
    names = "abcdef"[: len(held)]
    total = sum(size for size, _ in held)
    ledger = book(total + spare, **{n: size for n, (size, _) in zip(names, held, strict=True)})
    all_of = [resident(n, demand=demand) for n, (_, demand) in zip(names, held, strict=True)]
    claims = {"host": Claim(need)}
    victims = choose_victims(ledger, claims, all_of)
    groups = chain.from_iterable(combinations(all_of, k) for k in range(len(all_of) + 1))
    fitting = [g for g in groups if not ledger.shortfalls(claims, [r.instance for r in g])]
    if not fitting:
        assert victims is None
        return
    assert victims is not None
    assert not ledger.shortfalls(claims, victims.instances)
    assert victims.cost <= min(sum(r.cost for r in g) for g in fitting) + 1e-9
    for one in victims.instances:
        assert ledger.shortfalls(claims, [n for n in victims.instances if n != one])


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 50), st.floats(0.001, 10)), min_size=9, max_size=30), st.integers(1, 400))
def test_many_candidates_still_give_a_minimal_set(held: list[tuple[int, float]], need: int) -> None:
    """Above the number up to which every set is tried, the answer still fits, and has nobody to spare."""
    names = [f"m{n}" for n in range(len(held))]
    ledger = book(sum(size for size, _ in held), **{n: size for n, (size, _) in zip(names, held, strict=True)})
    claims = {"host": Claim(need)}
    all_of = [resident(n, demand=demand) for n, (_, demand) in zip(names, held, strict=True)]
    victims = choose_victims(ledger, claims, all_of)
    if victims is None:
        assert need > sum(size for size, _ in held)
        return
    assert not ledger.shortfalls(claims, victims.instances)
    for one in victims.instances:
        assert ledger.shortfalls(claims, [n for n in victims.instances if n != one])


def test_an_engine_whose_conversations_cost_more_stays() -> None:
    """What it takes to save and restore them, or to compute them anew, counts beside the load."""
    ledger = book(100, a=50, b=50)
    candidates = [resident("a", rebuild=20.0), resident("b", rebuild=0.1)]
    chosen = choose_victims(ledger, {"host": Claim(40)}, candidates)
    assert chosen is not None
    assert chosen.instances == ("b-1",)
