from __future__ import annotations

import pytest

from engines.llama_cpp.slots import LlamaCppSlots
from supervisor.sessions.turn import COLD, HIT, PREFIX, Turn, TurnEnd

PROGRESS = b'{"choices":[],"prompt_progress":{"total":50,"cache":40,"processed":50,"time_ms":1}}'


def _turn(expected: tuple[str, int]) -> tuple[Turn, list[str], list[TurnEnd]]:
    told: list[str] = []
    ends: list[TurnEnd] = []
    return Turn(LlamaCppSlots(), 0, expected, told.append, lambda _, end: ends.append(end)), told, ends


@pytest.mark.parametrize(
    ("expected", "cached", "outcome"),
    [((HIT, 40), 40, HIT), ((HIT, 40), 0, COLD), ((COLD, 0), 0, COLD), ((COLD, 0), 49, PREFIX)],
)
def test_figures_at_the_end_are_as_good_as_a_report(expected: tuple[str, int], cached: int, outcome: str) -> None:
    """An answer without reports tells at its end what the slot had; a wrong expectation is corrected, and told."""
    turn, told, ends = _turn(expected)
    turn.told(50, cached, 0.25)
    turn.end(answered=True)
    assert turn.outcome == told[-1] == outcome
    assert ends[0].read is not None
    assert (ends[0].read.total, ends[0].read.cached, ends[0].seconds) == (50, cached, 0.25)
    assert ends[0].missed == (expected[0] == HIT and outcome == COLD)


def test_a_report_counts_before_the_figures() -> None:
    """What was told first has been acted on."""
    turn, _, ends = _turn((COLD, 0))
    turn.heard(PROGRESS, content=False)
    turn.told(50, 0, 0.25)
    turn.end(answered=True)
    assert ends[0].read is not None
    assert ends[0].read.cached == 40
