"""The memory book: what is promised, corrected, and given back."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from supervisor.broker.ledger import Claim, DoesNotFitError, Entry, Ledger, Pool, Stage

GPU = "gpu-0000:01:00.0"


def book(budget: int | None = 100, *entries: Entry) -> Ledger:
    """A ledger of one host pool."""
    ledger = Ledger({"host": Pool(budget)})
    for entry in entries:
        ledger = ledger.reserve(entry)
    return ledger


def entry(name: str, predicted: int | None = 10, **more: object) -> Entry:
    """An entry in the host pool."""
    return Entry(f"{name}-1", name, {"host": replace(Claim(predicted), **more)})  # type: ignore[arg-type]


def test_a_reservation_counts_its_prediction_and_margin() -> None:
    """Before anything is known of a launch, its upper bound is promised."""
    ledger = book(100, entry("a", 40, upper=5))
    assert (ledger.reserved("host"), ledger.free("host")) == (45, 55)


def test_declared_takes_the_predictions_place_and_observed_only_raises_it() -> None:
    """The largest of declared and observed counts; a margin is no longer needed, growth still is."""
    ledger = book(100, entry("a", 40, upper=20, growth=5)).declare("a-1", {"host": 30})
    assert ledger.reserved("host") == 35
    assert ledger.entries["a-1"].stage is Stage.DECLARED
    assert ledger.observe("a-1", {"host": 33}).reserved("host") == 35
    observed = ledger.observe("a-1", {"host": 60})
    assert observed.reserved("host") == 60
    assert observed.entries["a-1"].stage is Stage.OBSERVED
    assert observed.declare("a-1", {"host": 31}).entries["a-1"].stage is Stage.OBSERVED


def test_what_is_observed_does_not_lower_a_prediction() -> None:
    """An engine that has not yet touched all that it will is not believed."""
    assert book(100, entry("a", 40)).observe("a-1", {"host": 3}).reserved("host") == 40


def test_a_mapped_file_is_counted_once() -> None:
    """Two launches that map the same file share its pages; the second needs only what is its own."""
    one = entry("a", 10, mapped={"/m": 50})
    ledger = book(100, one)
    two = entry("b", 20, mapped={"/m": 50})
    assert ledger.shortfalls(two.claims) == ()
    both = ledger.reserve(two)
    assert both.reserved("host") == 80
    assert both.release("a-1").reserved("host") == 70
    assert dict(both.holders("host")) == {"b-1": 20, "a-1": 10}


def test_evicting_who_maps_the_file_too_frees_only_its_own() -> None:
    """A start that shares a file with its victim needs the file once more when the victim is gone."""
    ledger = book(80, entry("a", 10, mapped={"/m": 50}), entry("c", 15))
    wanted = {"host": Claim(20, mapped={"/m": 50})}
    assert ledger.shortfalls(wanted)[0].lacking == 15
    assert ledger.shortfalls(wanted, ["c-1"]) == ()
    assert ledger.shortfalls(wanted, ["a-1"]) != ()


def test_what_is_not_known_counts_as_the_whole_pool() -> None:
    """An unknown need is admitted alone only, and nobody beside it until it has declared."""
    unknown = entry("a", None)
    assert book(100, entry("b", 1)).shortfalls(unknown.claims)[0].lacking == 1
    ledger = book(100, unknown)
    assert ledger.free("host") == 0
    assert ledger.shortfalls(entry("b", 1).claims)
    assert ledger.declare("a-1", {"host": 30}).free("host") == 70


def test_an_unknown_budget_is_not_compared() -> None:
    """Unknown is None, never 0: without a budget everything fits."""
    ledger = book(None, entry("a", 10**15))
    assert ledger.free("host") is None
    assert ledger.over_commits() == ()
    assert ledger.shortfalls({GPU: Claim(5)}) == ()


def test_a_reservation_beyond_the_budget_is_a_bug() -> None:
    """Admission looks before it reserves; the book itself refuses, too."""
    ledger = book(100, entry("a", 90))
    with pytest.raises(DoesNotFitError):
        ledger.reserve(entry("b", 11))
    with pytest.raises(DoesNotFitError):
        ledger.reserve(entry("a", 1))


def test_growth_beyond_the_budget_is_an_over_commit() -> None:
    """What observation finds is never refused, only told, by how much."""
    ledger = book(100, entry("a", 60), entry("b", 30)).observe("a-1", {"host": 95})
    assert [(over.pool, over.by) for over in ledger.over_commits()] == [("host", 25)]


def test_a_smaller_budget_is_an_over_commit_too() -> None:
    """A quota that was cut, or others who took memory, shrink what may be promised."""
    ledger = book(100, entry("a", 60)).with_pools({"host": Pool(50, foreign=50)})
    assert ledger.over_commits()[0].by == 10


def test_a_working_set_counts_while_its_lease_runs() -> None:
    """Pictures need memory only while they are made."""
    ledger = book(100, entry("a", 10)).work("a-1", 0, {"host": 30}).work("a-1", 1, {"host": 5})
    assert ledger.reserved("host") == 45
    assert ledger.work("a-1", 0, {}).reserved("host") == 15
    assert ledger.work("x-1", 0, {"host": 1}) is ledger


def test_bytes_on_their_way_back_still_count() -> None:
    """An ended process's memory is nobody's until it has been seen back."""
    ledger = book(100, entry("a", 60)).work("a-1", 0, {"host": 3}).releasing("a-1")
    assert ledger.reserved("host") == 60
    assert ledger.declare("a-1", {"host": 1}).reserved("host") == 60
    assert ledger.release("a-1").reserved("host") == 0
    assert ledger.release("a-1").release("a-1") == ledger.release("a-1")


def test_a_pool_that_is_gone_is_kept_while_someone_holds_of_it() -> None:
    """A device that vanished from one reading does not make its holders weigh nothing."""
    ledger = Ledger({"host": Pool(9), GPU: Pool(9)}).reserve(Entry("a-1", "a", {GPU: Claim(5)}))
    assert ledger.with_pools({"host": Pool(8)}).free(GPU) == 4
    assert GPU not in ledger.release("a-1").with_pools({"host": Pool(8)}).pools


sizes = st.integers(0, 60)


class Books(RuleBasedStateMachine):
    """Whatever happens in whatever order, admission never promises beyond the budget, and nothing stays behind."""

    @initialize(host=st.integers(0, 200), gpu=st.one_of(st.none(), st.integers(0, 200)))
    def begin(self, host: int, gpu: int | None) -> None:
        """A machine with two pools."""
        self.ledger = Ledger({"host": Pool(host), GPU: Pool(gpu)})
        self.outside = False

    @rule(
        name=st.sampled_from("abcd"),
        host=st.one_of(st.none(), sizes),
        gpu=st.one_of(st.none(), sizes),
        upper=st.integers(0, 5),
        file=st.sampled_from(["/x", "/y"]),
        mapped=sizes,
    )
    def start(self, name: str, host: int | None, gpu: int | None, upper: int, file: str, mapped: int) -> None:
        """Admission looks, then reserves."""
        claims = {"host": Claim(host, upper, mapped={file: mapped}), GPU: Claim(gpu, upper)}
        if name in {e.model for e in self.ledger.entries.values()} or self.ledger.shortfalls(claims):
            return
        before = {over.pool: over.by for over in self.ledger.over_commits()}
        self.ledger = self.ledger.reserve(Entry(f"{name}-1", name, claims))
        assert {over.pool: over.by for over in self.ledger.over_commits()} == before

    @rule(name=st.sampled_from("abcd"), size=sizes, pool=st.sampled_from(["host", GPU]))
    def seen(self, name: str, size: int, pool: str) -> None:
        """Observation may find more than was promised."""
        self.ledger = self.ledger.observe(f"{name}-1", {pool: size})
        self.outside = True

    @rule(name=st.sampled_from("abcd"), size=sizes)
    def declares(self, name: str, size: int) -> None:
        """So may the engine's own word."""
        self.ledger = self.ledger.declare(f"{name}-1", {"host": size})
        self.outside = True

    @rule(name=st.sampled_from("abcd"))
    def ends(self, name: str) -> None:
        """Its process ends."""
        before = self.ledger.reserved("host")
        self.ledger = self.ledger.releasing(f"{name}-1")
        assert self.ledger.reserved("host") <= before

    @rule(name=st.sampled_from("abcd"))
    def back(self, name: str) -> None:
        """Its bytes are seen back."""
        self.ledger = self.ledger.release(f"{name}-1")

    @invariant()
    def never_beyond_by_admission(self) -> None:
        """Unless something came from outside, reserved is within the budget; and who is gone holds nothing."""
        if not self.outside:
            assert self.ledger.over_commits() == ()
        if not self.ledger.entries:
            assert self.ledger.reserved("host") == self.ledger.reserved(GPU) == 0

    @invariant()
    def without_everyone_nothing_is_reserved(self) -> None:
        """What each gives back adds up."""
        assert self.ledger.reserved("host", self.ledger.entries) == 0


TestBooks = Books.TestCase
TestBooks.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)


@given(st.lists(st.tuples(sizes, sizes), max_size=6))
def test_order_does_not_matter(claims: list[tuple[int, int]]) -> None:
    """The book of the same launches is the same, whoever came first."""
    entries = [entry(str(n), a, mapped={f"/{n % 2}": b}) for n, (a, b) in enumerate(claims)]
    forwards, backwards = book(10**6, *entries), book(10**6, *reversed(entries))
    assert forwards.reserved("host") == backwards.reserved("host")
