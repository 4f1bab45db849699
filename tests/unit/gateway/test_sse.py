from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.gateway.translate.sse import FrameTooLongError, SseSplitter, data_of, error_of

# Everything that a line end can be made of, and what may stand around it.
_BYTES = st.lists(st.sampled_from([b"\r", b"\n", b"\r\n", b"data: x", b":", b"data:", b"id: 1", b" "])).map(b"".join)


def _split(data: bytes, cuts: list[int]) -> tuple[list[bytes], int]:
    splitter = SseSplitter()
    frames: list[bytes] = []
    edges = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    for start, end in itertools.pairwise(edges):
        frames += splitter.feed(data[start:end])
    return frames, splitter.pending


@given(data=_BYTES, cuts=st.lists(st.integers(min_value=0, max_value=200)))
def test_any_chunking_gives_the_same_frames(data: bytes, cuts: list[int]) -> None:
    """Where the network cuts a stream changes nothing, whatever its line ends are."""
    assert _split(data, cuts) == _split(data, [])


@given(data=_BYTES, cuts=st.lists(st.integers(min_value=0, max_value=200)))
def test_no_byte_is_lost_or_made_up(data: bytes, cuts: list[int]) -> None:
    """Frames and what is held back are the stream."""
    frames, pending = _split(data, cuts)
    joined = b"".join(frames)
    assert data.startswith(joined)
    assert len(joined) + pending == len(data)


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
def test_a_blank_line_ends_a_frame(end: bytes) -> None:
    """Two lines and a blank one are one frame; the last one waits for its end."""
    data = b"event: a" + end + b"data: 1" + end + end + b"data: 2" + end
    splitter = SseSplitter()
    frames = splitter.feed(data)
    assert [data_of(frame) for frame in frames] == [b"1"]
    assert splitter.pending == len(b"data: 2" + end)


def test_a_carriage_return_at_the_end_of_a_chunk_waits_for_its_line_feed() -> None:
    r"""The `\n` of a `\r\n` that was cut in two belongs to the frame before it."""
    splitter = SseSplitter()
    assert splitter.feed(b"data: 1\r\n\r") == []
    assert splitter.feed(b"\ndata: 2\r\n\r\n") == [b"data: 1\r\n\r\n", b"data: 2\r\n\r\n"]


def test_a_frame_without_end_is_given_up() -> None:
    """What is held back has a limit."""
    splitter = SseSplitter(limit=10)
    splitter.feed(b"data: 1\n\n" * 10)
    with pytest.raises(FrameTooLongError, match="10 bytes"):
        splitter.feed(b"data: 12345")


@pytest.mark.parametrize(
    ("frame", "data"),
    [
        (b"data: {}\n\n", b"{}"),
        (b"data:{}\n\n", b"{}"),
        (b"data: {}\r\n\r\n", b"{}"),
        (b"data: a\ndata: b\n\n", b"a\nb"),
        (b"event: x\ndata: a\nid: 4\n\n", b"a"),
        (b"data\n\n", b""),
        (b": ping\n\n", None),
        (b"\n\n", None),
    ],
)
def test_data_is_read_as_the_standard_says(frame: bytes, data: bytes | None) -> None:
    """One space after the colon is no data; several data lines are joined; comments have none."""
    assert data_of(frame) == data


@pytest.mark.parametrize(
    ("frame", "error"),
    [
        (b'data: {"error":{"message":"x"}}\n\n', b'{"error":{"message":"x"}}'),
        (b'error: {"message":"x"}\n\n', b'{"message":"x"}'),
        (b'event: error\ndata: {"message":"x"}\n\n', b'{"message":"x"}'),
        (b'data: {"choices":[{"text":"{\\"error\\""}]}\n\n', None),
        (b": error\n\n", None),
    ],
)
def test_an_error_is_told_from_a_text_about_errors(frame: bytes, error: bytes | None) -> None:
    """Both of an engine's ways to report an error are known, and an answer that speaks of one is none."""
    assert error_of(frame, data_of(frame)) == error
