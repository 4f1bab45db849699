"""Which lines of a flood are kept, and when files change: for any lines and any timing."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.processes.log_policy import Chunk, FloodGate, LogLimits, RotationPlan

_HEAD = b"head\n"
_lines = st.lists(st.integers(1, 60).map(lambda length: b"x" * (length - 1) + b"\n"), max_size=30)
_chunks = st.lists(st.builds(Chunk, head=st.just(_HEAD), opens=st.booleans(), data=_lines.map(b"".join)), max_size=5)


@given(st.integers(66, 300), st.integers(0, 400), _chunks)
def test_no_file_outgrows_its_bound_and_no_line_is_lost(file_bytes: int, size: int, chunks: list[Chunk]) -> None:
    """Whatever is there and whatever comes: each file is within bounds, whole lines follow one another as they came."""
    seen, lines, first = b"", 0, size
    for append in RotationPlan(file_bytes).appends(size, chunks):
        size = 0 if append.rotate else size
        data = append.data
        if size == 0 and data.startswith(_HEAD):
            data = data.removeprefix(_HEAD)
        assert data.endswith(b"\n")
        size += len(append.data)
        seen += data
        lines += append.lines
        assert size <= max(file_bytes, first)
        assert size <= file_bytes or not append.rotate
    assert seen == b"".join(chunk.data for chunk in chunks)
    assert lines == seen.count(b"\n")


@given(st.integers(66, 300), _chunks)
def test_a_new_file_says_whose_lines_it_holds(file_bytes: int, chunks: list[Chunk]) -> None:
    """It begins with the launch's head, or with the launch's own first line."""
    size = 0
    opening = {chunk.data[:60] for chunk in chunks if chunk.opens}
    for append in RotationPlan(file_bytes).appends(size, chunks):
        if append.rotate or size == 0:
            begins = any(append.data.startswith(data.split(b"\n")[0]) for data in opening)
            assert append.data.startswith(_HEAD) or begins
        size = len(append.data) + (0 if append.rotate else size)


def test_a_file_is_filled_before_the_next_begins() -> None:
    """Prevents half-empty files: what still fits goes into the old one."""
    chunk = Chunk(b"h\n", opens=False, data=b"1\n2\n3\n4\n")
    plan = RotationPlan(6).appends(2, [chunk])
    assert [(append.rotate, append.data) for append in plan] == [(False, b"1\n2\n"), (True, b"h\n3\n4\n")]


def test_a_line_that_fits_into_no_file_is_left_out() -> None:
    """Prevents an endless rotation."""
    chunk = Chunk(b"h\n", opens=False, data=b"1\n" + b"x" * 50 + b"\n2\n")
    written = b"".join(append.data for append in RotationPlan(10).appends(0, [chunk]))
    assert written == b"h\n1\nh\n2\n"


def test_too_small_a_bound_is_refused() -> None:
    """A file must hold its first line and some more."""
    with pytest.raises(ValueError, match="65536 bytes at least"):
        LogLimits(max_bytes=1000)


@given(st.lists(st.tuples(st.floats(0, 3), st.integers(1, 400)), max_size=200))
def test_no_flood_passes_faster_than_its_rate(steps: list[tuple[float, int]]) -> None:
    """In any stretch of time what passes is at most the burst and the rate's share."""
    gate = FloodGate(rate=100, burst=1000)
    now, passed = 50.0, [(50.0, 0)]
    for pause, cost in steps:
        now += pause
        if gate.admits(cost, now):
            passed.append((now, cost))
    for start in range(len(passed)):
        total = sum(cost for _, cost in passed[start:])
        assert total <= 1000 + 100 * (passed[-1][0] - passed[start][0]) + 1


def test_what_is_left_out_is_one_piece() -> None:
    """Prevents a flood's log from being every other line: once shut it opens for a quarter of the burst."""
    gate = FloodGate(rate=100, burst=1000)
    passed = [gate.admits(10, at / 100) for at in range(3000)]
    changes = sum(before != after for before, after in itertools.pairwise(passed))
    assert sum(passed) == pytest.approx(100 + 300, abs=30)
    assert changes <= 2 * (30 / 2.5) + 2


def test_a_gate_opens_by_time_alone() -> None:
    """Whoever asks later learns that the flood is over, without another line."""
    gate = FloodGate(rate=100, burst=1000)
    while gate.admits(10, 5.0):
        pass
    assert not gate.is_open(5.0)
    assert not gate.is_open(7.0)
    assert gate.is_open(7.6)
