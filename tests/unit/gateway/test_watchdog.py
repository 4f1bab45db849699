"""How long an engine may be silent: by the prompt before its first content, by the clock after it."""

from __future__ import annotations

import asyncio
import math
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.broker.lease import LeaseRequest
from supervisor.errors import UpstreamError
from supervisor.gateway.prompt_size import estimate_tokens
from supervisor.gateway.request_limits import RequestLimits
from supervisor.gateway.watchdog import watched
from tests.fakes.gateway import FakeLaunch, FakeLease

LIMITS = RequestLimits()
ENOUGH = LIMITS.enough_tokens


def test_the_time_grows_with_the_prompt_up_to_a_cap() -> None:
    """300 s for up to 8,000 tokens, 12 s more for each 1,000 beyond, 900 s at most."""
    assert [LIMITS.first(tokens) for tokens in (0, 8000, 9000, 33_000, 58_000, 10**9)] == [
        300,
        300,
        312,
        600,
        900,
        900,
    ]
    assert ENOUGH == 58_000


def test_text_counts_by_its_length() -> None:
    """Four characters are a token, wherever they stand; tools are read too."""
    body = {"messages": [{"role": "user", "content": "x" * 40_000}], "tools": [{"description": "y" * 20_000}]}
    assert 15_000 <= estimate_tokens(body, 60_100, 2048, ENOUGH) <= 15_025


@pytest.mark.parametrize(
    "part",
    [
        {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 2_000_000}},
        {"type": "image_url", "image_url": "data:image/png;base64," + "A" * 2_000_000},
        {"type": "input_audio", "input_audio": {"data": "A" * 2_000_000, "format": "wav"}},
        {"type": "image", "source": {"type": "base64", "data": "A" * 2_000_000}},
    ],
)
def test_a_picture_counts_by_a_constant(part: dict[str, object]) -> None:
    """Prevents megabytes of base64 from counting as half a million tokens of text."""
    body = {"messages": [{"role": "user", "content": [{"type": "text", "text": "what is it?"}, part]}]}
    assert 2048 <= estimate_tokens(body, 2_000_200, 2048, ENOUGH) < 2100


def test_a_prompt_of_tokens_counts_them() -> None:
    """A list of numbers is a prompt that was tokenised already."""
    assert estimate_tokens({"prompt": list(range(50_000))}, 300_000, 2048, ENOUGH) == 50_000


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=20,
)


@given(st.dictionaries(st.text(max_size=8), JSON, max_size=5), st.integers(0, 10**8))
def test_any_body_has_a_size(body: dict[str, object], length: int) -> None:
    """No shape of a body makes it raise, and it is never more than its length allows."""
    assert 0 <= estimate_tokens(body, length, 2048, ENOUGH) <= length // 4


def lease() -> FakeLease:
    """A lease without a launch behind it."""
    return FakeLease(cast("FakeLaunch", None), cast("LeaseRequest", None))


async def test_silence_has_the_engine_looked_at_then_ends_the_request() -> None:
    """First the look, then, after the time for a verdict, the end with the settings that say so."""
    held = lease()
    limits = RequestLimits(first_base=0.05, first_cap=0.05, verdict=0.05)
    with pytest.raises(UpstreamError) as caught:
        async with watched(held, limits, 100):
            await asyncio.Event().wait()
    assert caught.value.code == "upstream_timeout"
    assert "first_base 50ms" in caught.value.message
    assert held.looks == [0.05]


async def test_what_is_heard_lets_the_time_begin_anew() -> None:
    """A request that hears something within its time is never ended, however long it takes."""
    held = lease()
    limits = RequestLimits(first_base=0.5, first_cap=0.5, idle=0.5, verdict=0.05)
    async with watched(held, limits, 0) as watchdog:
        for _ in range(10):
            await asyncio.sleep(0.1)  # the time itself is the subject: together longer than the limit
            watchdog.heard()
    assert len(held.heard) == 10


async def test_a_client_that_does_not_read_is_not_the_engines_silence() -> None:
    """While the client is waited for the engine is not heard of, and that is nobody's fault."""
    held = lease()
    limits = RequestLimits(first_base=0.05, first_cap=0.05, idle=0.05, verdict=0.01)
    async with watched(held, limits, 0) as watchdog:
        watchdog.since = math.inf
        await asyncio.sleep(0.5)  # as above
    assert held.looks == []


async def test_a_cancelled_request_stays_cancelled() -> None:
    """A client that leaves is no silent engine."""
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05), watched(lease(), LIMITS, 0):
            await asyncio.Event().wait()
