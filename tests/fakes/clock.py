"""A clock that tests turn by hand."""

from __future__ import annotations


class HandClock:
    """Implements ``supervisor.clock.Clock``; stands still unless ``advance`` is called.

    Attributes:
        start: the wall clock's first reading, in seconds since 1970.
    """

    def __init__(self, start: float = 1_700_000_000.0) -> None:
        self._monotonic = 1000.0
        self._wall = start

    def monotonic(self) -> float:
        """Seconds since some moment; grows only by ``advance``."""
        return self._monotonic

    def wall(self) -> float:
        """Seconds since 1970; grows by ``advance``, jumps by ``set_wall``."""
        return self._wall

    def advance(self, seconds: float) -> None:
        """Let time pass on both readings.

        Raises:
            ValueError: time does not run backwards.
        """
        if seconds < 0:
            raise ValueError(f"time can't run backwards: {seconds}")
        self._monotonic += seconds
        self._wall += seconds

    def set_wall(self, seconds_since_1970: float) -> None:
        """Jump the wall clock alone, as an operator or NTP does."""
        self._wall = seconds_since_1970
