"""What prompts and files take, as it is learned."""

from __future__ import annotations

from dataclasses import replace

import pytest

from engines.contract import MemoryEstimate
from supervisor.sessions.speeds import Speeds, first_speeds
from tests.fakes.instances import launch_plan


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


def test_a_first_hand_over_is_judged_by_the_kv_that_was_planned() -> None:
    """A guess four times too large forbade the first save of a long conversation, which was lost."""
    estimate = MemoryEstimate(weights=0, kv=8192 * 23_040, compute=0, other=0)
    plan = replace(launch_plan(), ctx_size=4096, slots=2, memory={"host": estimate})
    assert first_speeds(plan).transfer(6000) == pytest.approx(0.138, abs=0.001)
    assert first_speeds(replace(plan, memory={})) == Speeds()
