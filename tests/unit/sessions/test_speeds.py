"""What prompts and files take, as it is learned."""

from __future__ import annotations

import pytest

from supervisor.sessions.speeds import Speeds


def test_short_prompts_tell_less_of_long_ones() -> None:
    """Ten greetings do not make a long prompt look cheap: a save of it would seem not worth its while."""
    speeds = Speeds()
    speeds.prompt_was_read(6000, 90.0)
    for _ in range(10):
        speeds.prompt_was_read(35, 0.1)
    assert speeds.prefill(6000) > 60.0


@pytest.mark.parametrize(
    ("cached", "seconds", "known", "whole"),
    [
        (0, 4.0, None, 4.0),
        (0, None, None, 1.0),
        (900, 3.0, (900, 20.0), 23.0),
        (450, 3.0, (900, 20.0), 13.0),
        (900, 3.0, (500, 20.0), 23.0),
        (900, None, (900, 20.0), 20.1),
        (900, 3.0, None, 3.9),
        (900, 3.0, (0, 0.0), 3.9),
    ],
)
def test_a_prompt_costs_what_its_parts_took(
    cached: int, seconds: float | None, known: tuple[int, float] | None, whole: float
) -> None:
    """What was there at what it took then, and the rest at what it takes now; else by the speed."""
    assert Speeds(token_seconds=0.001).whole(1000, cached, seconds, known) == pytest.approx(whole)


def test_a_guess_keeps_nothing_from_being_written() -> None:
    """The guess may be far above what a small model takes; what was seen counts."""
    speeds = Speeds()
    assert speeds.room(1000, 5000) == 5000
    speeds.file_was_moved(100, 1000, 0.01)
    assert speeds.room(1000, 5000) == 10_000
