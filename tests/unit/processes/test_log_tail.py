"""LogTail: any chunking gives the same lines; memory and work are bounded."""

import itertools
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.processes.log_tail import WINDOW_BYTES, WINDOW_LINES, WINDOW_SECONDS, LogTail

_pieces = st.lists(
    st.sampled_from([b"\n", b"\r", b"\r\n", b"a", b"\x1b[31m", b"\xc3", b"\xa9", b"\xff", b"\x1b", b"[", b" x" * 9]),
    max_size=60,
).map(b"".join)


class HandTime:
    """Monotonic seconds, turned by hand."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        """The time now."""
        return self.seconds


def _fed(tail: LogTail, *chunks: bytes) -> list[str]:
    return [line for chunk in chunks for line in tail.feed(chunk)]


@given(_pieces, st.lists(st.integers(0, 200)))
def test_any_chunking_of_the_same_bytes_gives_the_same_lines(data: bytes, cuts: list[int]) -> None:
    """Where a pipe cuts the stream, also inside CR LF, a character or a colour code, makes no difference."""
    whole, cut = LogTail(max_line=12), LogTail(max_line=12)
    borders = [0, *sorted(min(place, len(data)) for place in cuts), len(data)]
    chunks = [data[start:end] for start, end in itertools.pairwise(borders)]
    expected = whole.feed(data) + whole.close()
    assert _fed(cut, *chunks) + cut.close() == expected
    assert cut.lines(1000) == whole.lines(1000) == tuple(expected)
    assert (cut.line_count, cut.byte_count) == (len(expected), len(data))


@pytest.mark.parametrize(
    ("data", "lines"),
    [
        (b"one\ntwo\r\nthree\rfour", ["one", "two", "three"]),
        (b"\n\n", ["", ""]),
        (b"\x1b[1;31mred\x1b[0m \x1b]0;title\x07text\n", ["red text"]),
        (b"a\x00b\x07c\td\n", ["abc\td"]),
        (b"caf\xc3\xa9 \xff\n", ["café \ufffd"]),
    ],
)
def test_lines_are_split_and_cleaned(data: bytes, lines: list[str]) -> None:
    """Every line end splits; terminal codes and control characters go; bytes that are not UTF-8 are replaced."""
    assert LogTail().feed(data) == lines


def test_a_line_over_the_limit_is_cut_and_says_how_much() -> None:
    """A long line costs no more than its limit, ends on a whole character, and names what is missing."""
    tail = LogTail(max_line=4)
    assert _fed(tail, b"abc", "é".encode(), b"defgh\nnext\n") == ["abc … [6 bytes cut]", "next"]
    assert tail.lines(2) == ("abc … [6 bytes cut]", "next")


def test_the_tail_keeps_the_last_bytes_and_drops_a_beginningless_line() -> None:
    """Of a long log the last lines that are whole are kept; a line whose start is gone is left out."""
    tail = LogTail(max_bytes=20)
    _fed(tail, *(f"line {number}\n".encode() for number in range(100)))
    assert tail.lines(10) == ("line 98", "line 99")
    assert tail.lines(1) == ("line 99",)
    assert tail.lines(0) == ()


def test_an_unfinished_last_line_is_kept_for_the_evidence() -> None:
    """A message that the process died in the middle of is seen by ``lines`` and handed out by ``close``."""
    tail = LogTail()
    assert tail.feed(b"start\nGGML_ASSERT(") == ["start"]
    assert tail.lines(5) == ("start", "GGML_ASSERT(")
    assert tail.close() == ["GGML_ASSERT("]
    assert tail.close() == []


def test_a_flood_is_counted_and_not_returned_and_its_end_is_kept() -> None:
    """Past a window's bytes lines are only counted; the next window returns lines again, cut at the right place."""
    time = HandTime()
    tail = LogTail(now=time)
    assert len(tail.feed(b"x" * 99 + b"\n")) == 1
    flood = b"flooded line\n" * (WINDOW_BYTES // 13)
    assert tail.feed(flood + b"half a li") == []
    assert tail.lines(1) == ("half a li",)
    time.seconds += WINDOW_SECONDS
    assert tail.feed(b"ne\nready\n") == ["half a line", "ready"]
    assert tail.skipped_lines == WINDOW_BYTES // 13
    assert tail.line_count == tail.skipped_lines + 3


def test_a_flood_of_empty_lines_counts_as_one_too() -> None:
    """Prevents a few bytes of line ends from costing a million calls."""
    tail = LogTail(now=HandTime())
    assert tail.feed(b"\n" * (WINDOW_LINES + 1)) == []
    assert tail.line_count == WINDOW_LINES + 1


@pytest.mark.parametrize("chunk", [b"y" * 65536, b"short line\n" * 5957, b"\r" * 65536], ids=["endless", "lines", "cr"])
def test_memory_stays_bounded_however_much_arrives(chunk: bytes) -> None:
    """Thirty megabytes, with line ends or without, leave less than a megabyte in memory."""
    tail = LogTail(now=HandTime())
    tracemalloc.start()
    try:
        for _ in range(480):
            tail.feed(chunk)
        held, _peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held < 2**20
    assert tail.byte_count == 480 * len(chunk)
