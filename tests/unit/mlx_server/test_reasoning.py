"""Thoughts parted from the answer."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engines.mlx.server.reasoning import Marks, Splitter, opens_thoughts

MARKS = Marks("<think>", "</think>")


def split(pieces: list[str], *, inside: bool = False, marks: Marks | None = MARKS) -> dict[str, str]:
    """All parts of each kind, joined."""
    splitter = Splitter(marks, inside=inside)
    parts = [part for piece in pieces for part in splitter.feed(piece)] + splitter.finish()
    texts = {"content": "", "reasoning": ""}
    for kind, text in parts:
        texts[kind] += text
    return texts


@pytest.mark.parametrize(
    ("text", "inside", "content", "reasoning"),
    [
        ("<think>\nhm\n</think>\n\nYes.", False, "Yes.", "hm"),
        ("hm\n</think>\n\nYes.", True, "Yes.", "hm"),
        ("Yes.", False, "Yes.", ""),
        ("never closed", True, "", "never closed"),
        ("a < b <thinks", False, "a < b <thinks", ""),
        ("<think></think>Yes", False, "Yes", ""),
    ],
)
def test_splitting(text: str, inside: bool, content: str, reasoning: str) -> None:
    """Marks and the white space around them are no part of either; what is not closed is still a thought."""
    whole = split([text], inside=inside)
    assert whole == {"content": content, "reasoning": reasoning}
    assert split(list(text), inside=inside) == whole


@given(st.lists(st.sampled_from(["<think>", "</think>", "<", "a", " ", "\n", "</th"]), max_size=12), st.booleans())
def test_pieces_do_not_matter(pieces: list[str], inside: bool) -> None:
    """However a text is cut, the same parts come out."""
    whole = split(["".join(pieces)], inside=inside)
    assert split(pieces, inside=inside) == whole
    assert split(list("".join(pieces)), inside=inside) == whole


def test_no_marks() -> None:
    """A model that does not think gives everything as it is."""
    assert split(["<think>x"], marks=None)["content"] == "<think>x"


def test_prompt_that_opens_thoughts() -> None:
    """Templates of some models open the thoughts themselves, and some close them at once."""
    assert opens_thoughts("<|assistant|>\n<think>\n", MARKS)
    assert not opens_thoughts("<|assistant|>\n<think>\n\n</think>\n\n", MARKS)
    assert not opens_thoughts("what does <think> mean?<|assistant|>", MARKS)
    assert not opens_thoughts("<think>", None)
