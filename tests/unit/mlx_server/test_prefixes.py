"""The longest beginning that was computed is used again; the least recently used goes first."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from engines.mlx.server.prefixes import LEAST_TOKENS, Entry, Prefixes, common_length

TOKENS = st.lists(st.integers(0, 3), max_size=40)


def entry(*tokens: int, size: int = 10, cuttable: bool = True) -> Entry:
    """An entry for tokens."""
    return Entry(tuple(tokens), object(), size, cuttable)


@given(TOKENS, TOKENS)
def test_common_length(one: list[int], other: list[int]) -> None:
    """As counted token by token."""
    count = 0
    while count < min(len(one), len(other)) and one[count] == other[count]:
        count += 1
    assert common_length(tuple(one), tuple(other)) == count


def test_at_least_one_token_is_left_to_compute() -> None:
    """A prompt that is known whole still needs its last token's scores."""
    prefixes = Prefixes(100)
    prefixes.put(entry(*range(20)))
    match = prefixes.find(range(20))
    assert match is not None
    assert match.length == 19


def test_the_longest_is_taken_and_cut() -> None:
    """Of two entries the one that shares more; what can't be cut counts only if all of it is shared."""
    prefixes = Prefixes(100)
    prefixes.put(entry(*range(10), 99))
    prefixes.put(entry(*range(15), 98))
    prefixes.put(entry(*range(18), 97, cuttable=False))
    match = prefixes.find(range(30))
    assert match is not None
    assert match.length == 15
    prefixes.put(entry(*range(18), cuttable=False))
    match = prefixes.find(range(30))
    assert match is not None
    assert (match.length, match.entry.cuttable) == (18, False)
    assert prefixes.find([7] * 20) is None
    assert prefixes.find(range(LEAST_TOKENS)) is None


def test_a_longer_one_takes_the_place_of_what_it_covers() -> None:
    """Turns of one conversation are one entry, not one each."""
    prefixes = Prefixes(100)
    prefixes.put(entry(*range(10)))
    prefixes.put(entry(*range(20)))
    assert len(prefixes) == 1
    assert prefixes.size == 10


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(1, 60), st.booleans()), max_size=30))
def test_the_budget_holds(rows: list[tuple[int, int, bool]]) -> None:
    """Whatever is put in, no more bytes than the budget stay, and the sum is that of the entries."""
    prefixes = Prefixes(100)
    for first, size, cuttable in rows:
        prefixes.put(entry(first, *range(size + LEAST_TOKENS), size=size, cuttable=cuttable))
        assert prefixes.size <= 100
        assert prefixes.size == sum(one.size for one in prefixes)
    last = rows[-1] if rows else None
    if last is not None:
        assert any(one.tokens[0] == last[0] for one in prefixes), "what was just put in stays"


def test_the_least_recently_used_goes_first() -> None:
    """Use counts, not age; eviction makes some room beyond the need."""
    prefixes = Prefixes(100)
    for first in range(5):
        prefixes.put(entry(first, *range(20), size=20))
    assert prefixes.find((0, *range(30))) is not None
    prefixes.put(entry(9, *range(20), size=20))
    kept = {one.tokens[0] for one in prefixes}
    assert {0, 9} <= kept
    assert 1 not in kept
    assert prefixes.stats.evicted == 2


def test_nothing_is_kept_without_a_budget() -> None:
    """0 turns it off, and what is larger than all of it is not taken."""
    none = Prefixes(0)
    none.put(entry(*range(20)))
    assert len(none) == 0
    small = Prefixes(5)
    small.put(entry(*range(20)))
    assert len(small) == 0
