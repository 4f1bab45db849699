"""Small decisions of the server: pace, speculation, latches, answers."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest

from engines.mlx.server.answer import ChoiceAnswer
from engines.mlx.server.asked import Asked, Chat, Sampling, Tools, Wishes
from engines.mlx.server.frames import Answer
from engines.mlx.server.latches import Latches, broke_grammar
from engines.mlx.server.pace import Pace
from engines.mlx.server.reasoning import Marks
from engines.mlx.server.speculation import Drafter, draft_prefill_gate, off_reason, speculates
from engines.mlx.server.whole import WholeAnswer
from engines.mlx.server.work import Counts, Done, Piece, Work

COUNTS = Counts(prompt=10, cached=4, said=3, prompt_seconds=0.5, said_seconds=1.0)


class ReadsAll:
    """A drafter that is fed the model's own hidden states."""

    def prefill_from_target_hidden(self) -> None:
        """Never called here."""


class Layer:
    """A cache that can or can't be cut back."""

    def __init__(self, trimmable: bool) -> None:
        self.trimmable = trimmable

    def is_trimmable(self) -> bool:
        """As it was made."""
        return self.trimmable


@pytest.mark.parametrize(
    ("drafter", "prompt", "allowed"),
    [
        (None, 10**6, True),
        (Drafter(object(), 3, chunked=False), 10**6, True),
        (Drafter(ReadsAll(), 3, chunked=True), 10**6, True),
        (Drafter(ReadsAll(), 3, chunked=False), 4096, True),
        (Drafter(ReadsAll(), 3, chunked=False), 4097, False),
    ],
)
def test_drafters_that_read_at_once_are_bounded(drafter: Drafter | None, prompt: int, allowed: bool) -> None:
    """Prevents: the square of a long prompt asked for more memory than any machine has."""
    verdict, reason = draft_prefill_gate(drafter, prompt)
    assert verdict is allowed
    assert bool(reason) is not allowed


def test_reasons_for_no_speculation(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is said in words; a good pair has none."""
    good, bad = [Layer(trimmable=True)], [Layer(trimmable=False)]
    assert off_reason(good, good, (5, 5)) == ""
    assert "rolled back" in off_reason(bad, good, (5, 5))
    assert "draft model's" in off_reason(good, bad, (5, 5))
    assert "7 tokens" in off_reason(good, good, (5, 7))
    for word in ("0", "off", "False"):
        monkeypatch.setenv("ENGINEHOUSE_MLX_SPEC", word)
        assert off_reason(good, good, (5, 5))


def test_which_requests_are_guessed() -> None:
    """By itself only one alone; `mtp` among others too; `ar` never; rules of choice that can't be guessed say so."""
    drafter = Drafter(object(), 3)

    def asks(others: int = 0, **more: Any) -> tuple[bool, str]:
        sequential, matcher = more.pop("sequential", False), more.pop("matcher", None)
        return speculates(Work(1, (1,), 5, Wishes(**more), matcher, sequential=sequential), drafter, others)

    assert asks() == (True, "")
    assert asks(others=1) == (False, "")
    assert asks(others=1, mode="mtp") == (True, "")
    assert asks(mode="ar") == (False, "")
    for hindrance in ({"sampling": Sampling(temperature=1.0)}, {"sequential": True}, {"matcher": object()}):
        guessed, reason = asks(**hindrance)
        assert not guessed
        assert reason
    assert speculates(Work(1, (1,), 5, Wishes(mode="mtp")), None, 0) == (False, "")


@pytest.mark.parametrize("row", list(product([False, True], repeat=4)))
def test_broken_grammars(row: tuple[bool, bool, bool, bool]) -> None:
    """All sixteen cases: only a call that lacks something, was held to a grammar, and is news."""
    missing, prose, asked, latched = row
    broke = broke_grammar(missing=missing, prose=prose, asked=asked, latched=latched)
    assert broke is (missing and not prose and asked and not latched)


def test_latches_have_no_way_back_but_are_bounded() -> None:
    """The oldest sessions are forgotten."""
    latches = Latches(2)
    for session in ("a", "b", "a", "c"):
        latches.set(session)
    assert "a" in latches
    assert "b" not in latches
    assert None not in latches


def test_pace() -> None:
    """Whole steps while nobody waits; else as much as the pause allows, shared by the prompts, within bounds."""
    pace = Pace(512, 0.1)
    assert pace.size(answers=0, prompts=1) == 512
    assert pace.size(answers=1, prompts=1) == 64
    pace.learn(1000, 1.0)
    assert pace.size(answers=1, prompts=1) == 100
    assert pace.size(answers=1, prompts=4) == 25
    pace.learn(10**9, 1.0)
    assert pace.size(answers=3, prompts=1) == 512
    pace.learn(0, 0)
    slow = Pace(512, 0.1)
    slow.learn(1, 10.0)
    assert slow.size(answers=1, prompts=1) == 16


TOOL = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}
CALL = 'Let me see.<tool_call>\n{"name": "weather", "arguments": {"city": "Oslo"}}\n</tool_call>'


def answer_of(text: str, *, whole: bool, asked: Asked, thinking: bool = False) -> Any:
    """The message of an answer whose text comes letter by letter."""
    choice = ChoiceAnswer(asked, 0, Marks("<think>", "</think>"), thinking=thinking)
    events = [(0, Piece(letter)) for letter in text] + [(0, Done("stop", COUNTS))]
    if whole:
        made = WholeAnswer(asked, "toy", [choice])
        made.add(events)
        return made.document()
    stream = Answer(asked, "toy", [choice])
    frames = b"".join(stream.frames([event]) for event in events)
    assert stream.complete
    return frames


def test_calls_and_thoughts_are_parted() -> None:
    """Thoughts, text and calls each go where clients look for them, whole and streamed."""
    asked = Asked(Wishes(), chat=Chat(({"role": "user", "content": "x"},), tools=Tools((TOOL,))))
    document = answer_of("hm</think>" + CALL, whole=True, asked=asked, thinking=True)
    [choice] = document["choices"]
    assert choice["finish_reason"] == "tool_calls"
    message = choice["message"]
    assert (message["content"], message["reasoning_content"]) == ("Let me see.", "hm")
    assert message["tool_calls"][0]["function"] == {"name": "weather", "arguments": '{"city": "Oslo"}'}
    frames = answer_of("hm</think>" + CALL, whole=False, asked=asked, thinking=True)
    assert b'"name":"weather"' in frames
    assert b"tool_call>" not in frames
    assert frames.endswith(b"data: [DONE]\n\n")


def test_a_call_that_is_cut_off_is_no_call() -> None:
    """What was lost is not invented: it stays text, and the reason stays what it was."""
    asked = Asked(Wishes(), chat=Chat(({"role": "user", "content": "x"},), tools=Tools((TOOL,))))
    [choice] = answer_of(CALL[:60], whole=True, asked=asked)["choices"]
    assert choice["finish_reason"] == "stop"
    assert "tool_calls" not in choice["message"]


def test_usage() -> None:
    """Tokens and speeds, with what was in the cache."""
    asked = Asked(Wishes(), prompts=("x",))
    document = answer_of("hi", whole=True, asked=asked)
    assert document["usage"]["prompt_tokens_details"] == {"cached_tokens": 4}
    assert document["usage"]["total_tokens"] == 13
    assert document["timings"]["prompt_n"] == 6
    assert document["timings"]["predicted_per_second"] == 3.0
