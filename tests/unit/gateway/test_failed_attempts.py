from __future__ import annotations

import pytest

from supervisor.gateway.failed_attempts import FailedAttempts
from tests.fakes.clock import HandClock


def test_each_wrong_token_waits_twice_as_long_up_to_two_seconds() -> None:
    """A typo costs nothing that one would notice; a program that guesses is soon slow."""
    attempts = FailedAttempts(HandClock())
    delays = [attempts.count("10.0.0.1") for _ in range(30)]
    assert delays[:6] == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.6, 2.0])
    assert set(delays[5:]) == {2.0}


def test_addresses_are_counted_apart() -> None:
    """One who guesses does not slow down the typo of another."""
    attempts = FailedAttempts(HandClock())
    for _ in range(10):
        attempts.count("10.0.0.1")
    assert attempts.count("10.0.0.2") == pytest.approx(0.1)


def test_after_a_quiet_minute_it_starts_anew() -> None:
    """Somebody who has found the right token by then must not pay for it for ever."""
    clock = HandClock()
    attempts = FailedAttempts(clock)
    for _ in range(10):
        attempts.count("10.0.0.1")
    clock.advance(59)
    assert attempts.count("10.0.0.1") == 2.0
    clock.advance(61)
    assert attempts.count("10.0.0.1") == pytest.approx(0.1)


def test_a_network_of_ipv6_is_one_address() -> None:
    """Whoever has one has 2^64, and would never be seen twice."""
    attempts = FailedAttempts(HandClock())
    attempts.count("2001:db8::1")
    assert attempts.count("2001:db8::ffff:2") == pytest.approx(0.2)
    assert attempts.count("2001:db8:0:1::1") == pytest.approx(0.1)


def test_the_memory_is_bounded_and_keeps_who_came_last() -> None:
    """A flood of addresses fills no memory, and does not wash away the one that goes on guessing."""
    attempts = FailedAttempts(HandClock(), limit=10)
    for number in range(1000):
        attempts.count(f"address {number}")
        attempts.count("busy")
    assert len(attempts) == 10
    assert attempts.count("busy") == 2.0
    assert attempts.count("address 1") == pytest.approx(0.1)
