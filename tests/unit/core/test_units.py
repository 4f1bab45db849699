"""Durations and sizes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.units import format_duration, format_size, parse_duration, parse_size


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("500ms", 0.5), ("90s", 90), ("10m", 600), ("1h30m", 5400), ("2d", 172800), ("0", 0), ("1.5s", 1.5)],
)
def test_a_duration_is_read_in_seconds(text: str, seconds: float) -> None:
    """Each unit, and units in a row, are read as their sum in seconds."""
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["90", "1:30", "", "s", "10 minutes", "-5s", "5s later"])
def test_a_duration_without_its_unit_is_refused_with_an_example(text: str) -> None:
    """A bare number could be seconds or minutes: it is refused, and the message shows the form."""
    with pytest.raises(ValueError, match="1h30m"):
        parse_duration(text)


@pytest.mark.parametrize(
    ("text", "size"),
    [("512MiB", 2**29), ("1.5GiB", 3 * 2**29), ("16GB", 16 * 10**9), ("16 gb", 16 * 10**9), ("0", 0), ("7B", 7)],
)
def test_a_size_is_read_in_bytes(text: str, size: int) -> None:
    """Binary and decimal units are told apart."""
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["512", "1,5GiB", "GiB", "-1MiB", "1 gigabyte"])
def test_a_size_without_its_unit_is_refused_with_an_example(text: str) -> None:
    """A bare number could be bytes or MiB: it is refused, and the message shows the form."""
    with pytest.raises(ValueError, match="512MiB"):
        parse_size(text)


@given(st.integers(min_value=1, max_value=10**7))
def test_a_written_duration_is_read_back(seconds: int) -> None:
    """What the daemon writes can be pasted into a config."""
    assert parse_duration(format_duration(seconds)) == seconds


def test_an_unknown_size_is_called_unknown() -> None:
    """None is never shown as 0."""
    assert format_size(None) == "unknown"
    assert format_size(0) == "0 B"
    assert format_size(3 * 2**29) == "1.5 GiB"
