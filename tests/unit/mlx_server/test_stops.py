"""Stop strings on text, however tokens cut it."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from engines.mlx.server.stops import StopFilter, held_length

LETTERS = st.text("abc", max_size=30)
STOPS = st.lists(st.text("abc", min_size=1, max_size=4), max_size=4)


def through(stops: list[str], pieces: list[str]) -> tuple[str, str | None]:
    """What comes out of a filter, and the stop that was found."""
    rule = StopFilter(stops)
    given_out = "".join(rule.feed(piece) for piece in pieces)
    return given_out + ("" if rule.matched else rule.finish()), rule.matched


def cut_at_first(text: str, stops: list[str]) -> str:
    """By the definition: read letter by letter, until the text so far ends with a stop."""
    for end in range(1, len(text) + 1):
        ending = [stop for stop in stops if text[:end].endswith(stop)]
        if ending:
            return text[: end - max(map(len, ending))]
    return text


@given(LETTERS, STOPS, st.lists(st.integers(0, 30), max_size=5))
def test_pieces_do_not_matter(text: str, stops: list[str], cuts: list[int]) -> None:
    """However a text is cut, what comes out is the text before the first stop that is complete."""
    places = sorted({0, len(text), *(cut for cut in cuts if cut <= len(text))})
    pieces = [text[start:end] for start, end in pairwise(places)]
    assert through(stops, pieces)[0] == cut_at_first(text, stops)


@given(LETTERS, STOPS)
def test_no_part_of_a_stop_is_ever_out(text: str, stops: list[str]) -> None:
    """At no moment has more come out than what will turn out to be right."""
    rule = StopFilter(stops)
    right = cut_at_first(text, stops)
    out = ""
    for letter in text:
        out += rule.feed(letter)
        assert right.startswith(out)


def test_stop_within_a_token() -> None:
    """Prevents: a stop string that begins or ends within a token was cut out, and the answer went on."""
    assert through(["four"], ["One two", " three f", "our five"]) == ("One two three ", "four")


def test_nothing_after_a_stop() -> None:
    """A filter that has found its stop lets nothing through."""
    rule = StopFilter(["x"])
    assert rule.feed("axb") == "a"
    assert not rule.feed("more")


def test_empty_stops_stop_nothing() -> None:
    """An empty string is in every text."""
    assert through(["", ""], ["ab", "c"]) == ("abc", None)


def test_held_length() -> None:
    """The longest ending that may become a mark; a whole mark is not its own beginning."""
    assert held_length("abc<thi", ["<think>", "<t"]) == 4
    assert held_length("<t", ["<t"]) == 0
    assert held_length("", ["<t"]) == 0
