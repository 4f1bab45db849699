"""The clock that tests turn by hand."""

import pytest

from supervisor.clock import Clock
from tests.fakes.clock import HandClock


def test_it_is_a_clock_that_stands_still() -> None:
    """It fits where the supervisor wants a clock, and reads the same until it is turned."""
    clock: Clock = HandClock()
    assert clock.monotonic() == clock.monotonic()
    assert clock.wall() == clock.wall()


def test_time_passes_on_both_readings() -> None:
    """One turn moves the monotonic and the wall reading by the same seconds."""
    clock = HandClock(100.0)
    before = clock.monotonic()
    clock.advance(2.5)
    assert (clock.monotonic() - before, clock.wall()) == (2.5, 102.5)


def test_only_the_wall_jumps() -> None:
    """A corrected wall clock leaves the monotonic reading alone, and time never runs backwards."""
    clock = HandClock()
    before = clock.monotonic()
    clock.set_wall(5.0)
    assert (clock.wall(), clock.monotonic()) == (5.0, before)
    with pytest.raises(ValueError, match="backwards"):
        clock.advance(-1)
