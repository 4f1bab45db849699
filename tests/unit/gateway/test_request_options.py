"""What a request says to the supervisor."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.errors import CallerError
from supervisor.gateway.request_options import take_keep_alive


@pytest.mark.parametrize(
    ("said", "seconds"),
    [("10m", 600.0), (0, 0.0), ("0", 0.0), (90, 90.0), (-1, math.inf), ("never", math.inf), ("Forever", math.inf)],
)
def test_keep_alive_is_read_and_taken_out(said: object, seconds: float) -> None:
    """A duration, seconds, 0 and never are understood; the engine does not see the key."""
    body: dict[str, Any] = {"model": "m", "keep_alive": said}
    assert take_keep_alive({}, body) == seconds
    assert body == {"model": "m"}


def test_the_header_goes_over_the_body() -> None:
    """Who sets both means the header: it is the operator's or the proxy's word."""
    body: dict[str, Any] = {"keep_alive": "10m"}
    assert take_keep_alive({"x-enginehouse-keep-alive": "5s"}, body) == 5.0
    assert body == {}


def test_nothing_said_is_none() -> None:
    """None is not 0: the model's own keep-alive holds."""
    assert take_keep_alive({}, {}) is None
    assert take_keep_alive({}, {"keep_alive": None}) is None


@given(st.one_of(st.text(), st.booleans(), st.lists(st.integers()), st.floats(), st.integers()))
def test_whatever_is_said_is_seconds_or_a_clear_refusal(said: object) -> None:
    """No value gets through as something that is no duration."""
    try:
        seconds = take_keep_alive({}, {"keep_alive": said})
    except CallerError:
        return
    assert seconds is not None
    assert seconds >= 0
