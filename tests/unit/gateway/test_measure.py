from __future__ import annotations

import orjson
import pytest

from supervisor.gateway.measure import Measure
from supervisor.gateway.token_meter import TokenMeter
from tests.fakes.clock import HandClock


def frame(**chunk: object) -> bytes:
    """A frame of an engine's stream."""
    return b"data: " + orjson.dumps(chunk) + b"\n\n"


def test_the_engines_own_count_goes_first() -> None:
    """Chunks are nearly tokens; the last frame says it exactly."""
    clock, meter = HandClock(), TokenMeter()
    measure = Measure("demo", clock.monotonic(), clock, meter)
    clock.advance(2.0)
    measure.heard([frame(choices=[1])])
    clock.advance(1.0)
    timings = {"prompt_n": 7, "cache_n": 3, "predicted_n": 4, "predicted_ms": 400.0}
    measure.heard([frame(choices=[2]), frame(choices=[], timings=timings), b"data: [DONE]\n\n"])
    worked = measure.result()
    assert worked is not None
    assert (worked.prompt_tokens, worked.cached_tokens, worked.generated_tokens) == (10, 3, 4)
    assert worked.first_token_seconds == pytest.approx(2.0)
    assert worked.token_seconds == pytest.approx(0.1)
    assert meter.written == {"demo": 4}


def test_an_engine_that_counts_nothing_is_measured_by_its_chunks() -> None:
    """Tokens are then not known; the time between chunks is."""
    clock = HandClock()
    measure = Measure("demo", clock.monotonic(), clock, TokenMeter())
    for _ in range(5):
        clock.advance(0.5)
        measure.heard([frame(choices=[1])])
    worked = measure.result()
    assert worked is not None
    assert worked.generated_tokens is None
    assert worked.token_seconds == pytest.approx(0.5)


@pytest.mark.parametrize("last", [b'data: {"timings": 5}\n\n', b'data: {"timings"\n\n', b'data: ["timings"]\n\n'])
def test_timings_in_a_wrong_shape_are_no_timings(last: bytes) -> None:
    """What an engine sends never ends a request that was answered."""
    clock = HandClock()
    measure = Measure("demo", clock.monotonic(), clock, TokenMeter())
    measure.heard([last])
    worked = measure.result()
    assert worked is not None
    assert worked.generated_tokens is None
    assert worked.token_seconds is None


def test_an_engine_that_wrote_nothing_has_no_figures() -> None:
    """Unknown is not zero."""
    clock = HandClock()
    assert Measure("demo", 0.0, clock, TokenMeter()).result() is None
