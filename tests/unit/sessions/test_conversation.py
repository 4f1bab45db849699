"""Conversations by their marks: what two have in common, and what nobody can read out of them."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from supervisor.sessions.conversation import Conversation, ConversationReader

_READER = ConversationReader(b"k" * 32)
_MESSAGES = st.lists(
    st.fixed_dictionaries({"role": st.sampled_from(["user", "assistant"]), "content": st.text(max_size=20)}), min_size=1
)


def read(messages: list[dict[str, Any]], owner: str = "me", name: str | None = None, **more: Any) -> Conversation:
    """The conversation of a chat."""
    found = _READER.read("m", owner, name, {"messages": messages, **more})
    assert found is not None
    return found


@given(_MESSAGES, _MESSAGES)
def test_marks_in_common_are_messages_in_common(one: list[dict[str, Any]], other: list[dict[str, Any]]) -> None:
    """As many marks are alike as messages from the first one on."""
    alike = 0
    for left, right in zip(one, other, strict=False):
        if left != right:
            break
        alike += 1
    assert read(one).common(read(other)) == alike


@given(_MESSAGES, _MESSAGES)
def test_a_conversation_is_continued_by_what_begins_with_all_of_it(
    one: list[dict[str, Any]], more: list[dict[str, Any]]
) -> None:
    """Whatever is added; and its sizes only grow."""
    first, later = read(one), read([*one, *more])
    assert first.is_continued_by(later)
    assert not later.is_continued_by(first)
    assert list(later.sizes) == sorted(set(later.sizes))
    assert later.share(len(later.marks)) == 1.0


def test_owners_models_tools_and_secrets_part_conversations() -> None:
    """Nobody comes into another's conversation by saying the same, and what is rendered first counts."""
    said = [{"role": "user", "content": "hello"}]
    assert read(said).common(read(said, owner="you")) == 0
    assert read(said).common(read(said, tools=[{"type": "function"}])) == 0
    assert read(said, name="n").name != read(said, owner="you", name="n").name
    other = ConversationReader(b"x" * 32).read("m", "me", None, {"messages": said})
    assert other is not None
    assert read(said).common(other) == 0


def test_one_name_may_stand_for_several_conversations() -> None:
    """A client that asks for a title under the same name does not take its long conversation's place."""
    system = {"role": "system", "content": "short"}
    long = read([system, {"role": "user", "content": "x" * 4000}], name="n")
    title = read([system, {"role": "user", "content": "a title?"}], name="n")
    edited = read([system, {"role": "user", "content": "x" * 4000}, {"role": "user", "content": "more"}], name="n")
    assert not long.is_continued_by(title)
    assert long.is_continued_by(edited)
    assert not long.is_continued_by(read([system, {"role": "user", "content": "x" * 4000}], name="another"))


def test_what_is_no_conversation_is_none() -> None:
    """Several prompts, several choices, texts to embed: the engine spreads them over slots."""
    bodies: tuple[dict[str, Any], ...] = (
        {"input": "x"},
        {"prompt": ["a", "b"]},
        {"prompt": [1, 2]},
        {"messages": []},
        {"prompt": "a", "n": 2},
    )
    for body in bodies:
        assert _READER.read("m", "me", None, body) is None


def test_a_text_to_complete_is_parted_by_length() -> None:
    """A longer text begins with what a shorter one is, but for the last piece."""
    short = _READER.read("m", "me", None, {"prompt": "ab" * 2000})
    longer = _READER.read("m", "me", None, {"prompt": "ab" * 2000 + "c"})
    assert short is not None
    assert longer is not None
    assert 0 < short.common(longer) == len(short.marks) - 1
