"""Who is suspected of crashing engines, who is refused, and when the engine itself is to blame."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from supervisor.broker.suspects import MAX_GUILTY, Suspects, body_key


def test_two_crashes_make_a_body_guilty_for_ten_minutes() -> None:
    """One crash only makes it suspected; ten minutes after the second it may be asked again."""
    suspects = Suspects(held=600)
    assert suspects.crashed("m", "l1", ["a", "b"], 0.0) == frozenset()
    assert suspects.suspected("a", 1.0)
    assert suspects.refused_for("a", 1.0) is None
    assert suspects.crashed("m", "l2", ["a"], 10.0) == {"l1", "l2"}
    assert suspects.refused_for("a", 11.0) == 599.0
    assert suspects.refused_for("b", 11.0) is None
    assert suspects.refused_for("a", 610.0) is None
    assert suspects.empty(610.0)


def test_one_crash_that_is_told_in_parts_is_one() -> None:
    """An engine that is given up and then killed ends once, and each part gets the same answer."""
    suspects = Suspects()
    suspects.crashed("m", "l1", ["a"], 0.0)
    assert suspects.crashed("m", "l1", [], 1.0) == frozenset()
    assert suspects.crashed("m", "l1", ["a"], 1.0) == frozenset()
    suspects.crashed("m", "l2", ["a"], 2.0)
    assert suspects.crashed("m", "l2", [], 3.0) == {"l1", "l2"}


def test_an_answer_clears_who_was_only_suspected() -> None:
    """A body that an engine answers crashes none: a later crash with it counts as its first."""
    suspects = Suspects()
    suspects.crashed("m", "l1", ["a"], 0.0)
    suspects.answered("m", "a")
    assert not suspects.suspected("a", 1.0)
    assert suspects.crashed("m", "l2", ["a"], 2.0) == frozenset()


def test_an_engine_that_crashes_under_everybody_is_to_blame_itself() -> None:
    """After three guilty bodies in a row without an answer all are cleared, and that crash is blamed on none."""
    suspects = Suspects()
    for number in range(MAX_GUILTY):
        suspects.crashed("m", f"a{number}", [str(number)], 0.0)
        assert suspects.crashed("m", f"b{number}", [str(number)], 0.0)
    suspects.crashed("m", "a", ["last"], 0.0)
    assert suspects.crashed("m", "b", ["last"], 0.0) == frozenset()
    assert suspects.refused_for("0", 1.0) is None
    assert suspects.refused_for("last", 1.0) is None


def test_answers_between_show_that_the_engine_is_sound() -> None:
    """Any number of bad bodies is found, as long as the engine answers others."""
    suspects = Suspects()
    for number in range(10):
        suspects.crashed("m", f"a{number}", [str(number)], 0.0)
        assert suspects.crashed("m", f"b{number}", [str(number)], 0.0)
        suspects.answered("m", "good")


def test_the_key_tells_bodies_apart() -> None:
    """The same bytes have the same key, whichever request they come in; the model's name is in the bytes."""
    assert body_key(b'{"model":"a"}') == body_key(b'{"model":"a"}') != body_key(b'{"model":"b"}')


@given(st.lists(st.text(max_size=3), max_size=50))
def test_the_table_is_bounded(bodies: list[str]) -> None:
    """However many bodies: the table keeps the newest."""
    suspects = Suspects(most=5)
    suspects.crashed("m", "l", bodies, 0.0)
    assert len(suspects) == min(5, len(set(bodies)))
    newest = list(dict.fromkeys(bodies))[-5:]
    assert all(suspects.suspected(body, 1.0) for body in newest)


class AnyHistory(RuleBasedStateMachine):
    """Crashes, answers and time in any order, against a plain record of who was where."""

    def __init__(self) -> None:
        super().__init__()
        self.suspects = Suspects(held=100)
        self.now = 0.0
        self.launch = 0
        self.crashes: dict[str, set[str]] = {}

    @rule(bodies=st.lists(st.sampled_from("abc"), max_size=3), seconds=st.sampled_from([0.0, 1.0, 60.0, 200.0]))
    def crash(self, bodies: list[str], seconds: float) -> None:
        """A launch ends with these bodies on it."""
        self.now += seconds
        self.launch += 1
        blamed = self.suspects.crashed("m", str(self.launch), bodies, self.now)
        for body in bodies:
            self.crashes.setdefault(body, set()).add(str(self.launch))
        assert not blamed or str(self.launch) in blamed
        assert len(blamed) != 1

    @rule(body=st.sampled_from("abc"))
    def answer(self, body: str) -> None:
        """An engine answers this body."""
        self.suspects.answered("m", body)

    @invariant()
    def only_who_was_at_two_crashes_is_refused(self) -> None:
        """Nobody is refused without two crashes, nor for longer than held."""
        for body in "abc":
            rest = self.suspects.refused_for(body, self.now)
            assert rest is None or (0 < rest <= 100 and len(self.crashes[body]) >= 2)


TestAnyHistory = AnyHistory.TestCase
