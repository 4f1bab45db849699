"""Sums of a pool are carried on from ledger to ledger: they must be those that adding up anew gives."""

from __future__ import annotations

from collections.abc import Mapping

from hypothesis import given
from hypothesis import strategies as st

from supervisor.broker.ledger import Claim, Entry, Ledger, Pool

POOLS = ("host", "gpu-0")
SIZES = st.integers(0, 50)
FILES = st.dictionaries(st.sampled_from("xyz"), SIZES, max_size=2)
CLAIMS = st.dictionaries(
    st.sampled_from(POOLS),
    st.builds(Claim, predicted=st.none() | SIZES, upper=SIZES, mapped=FILES),
    max_size=2,
)
NAMES = st.sampled_from("abcdef")
BOOKS = st.dictionaries(NAMES, CLAIMS, max_size=6)


def book(held: Mapping[str, Mapping[str, Claim]]) -> Ledger:
    """A ledger of these, whose sums were asked for."""
    entries = {name: Entry(name, name, claims) for name, claims in held.items()}
    ledger = Ledger(dict.fromkeys(POOLS, Pool(100)), entries)
    for pool in POOLS:
        ledger.reserved(pool)
    return ledger


def anew(ledger: Ledger) -> Ledger:
    """The same, of which nothing is known."""
    return Ledger(ledger.pools, ledger.entries)


@given(held=BOOKS, gone=st.frozensets(NAMES), claims=CLAIMS)
def test_without_some(held: Mapping[str, Mapping[str, Claim]], gone: frozenset[str], claims: dict[str, Claim]) -> None:
    """As if they had never been there, and as the ledger itself says of those who stay."""
    ledger = book(held)
    less = ledger.less(gone)
    assert less.entries.keys() == held.keys() - gone
    for pool in POOLS:
        assert less.reserved(pool) == anew(less).reserved(pool) == ledger.reserved(pool, gone)
    assert less.shortfalls(claims) == anew(less).shortfalls(claims)


@given(held=BOOKS, name=NAMES, claims=CLAIMS, gone=st.frozensets(NAMES))
def test_with_one_more(
    held: Mapping[str, Mapping[str, Claim]], name: str, claims: dict[str, Claim], gone: frozenset[str]
) -> None:
    """As if it had been there from the start, also in the place of one of its name, and for what follows."""
    more = book(held).plus(Entry(name, name, claims))
    for pool in POOLS:
        assert more.reserved(pool) == anew(more).reserved(pool)
        assert more.reserved(pool, gone) == anew(more).reserved(pool, gone)
        assert more.less(gone).reserved(pool) == anew(more).less(gone).reserved(pool)


@given(held=BOOKS, claims=CLAIMS, gone=st.frozensets(NAMES))
def test_what_goes_with_each(
    held: Mapping[str, Mapping[str, Claim]], claims: dict[str, Claim], gone: frozenset[str]
) -> None:
    """Where it is said to be a sum, what several free together is one."""
    ledger = book(held)
    alone = ledger.frees_alone(claims)
    if alone is None:
        return
    for pool in claims:
        together = ledger.reserved(pool) - ledger.reserved(pool, gone)
        assert sum(alone[pool].get(name, 0) for name in gone) == together
