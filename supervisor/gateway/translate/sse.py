"""Server-sent events as bytes: cut a stream into frames, and read one frame's data."""

from __future__ import annotations

import re

# A frame ends at a blank line. Line ends are \r\n, \n or \r; the atomic groups keep \r\n in one piece.
_BLANK_LINE = re.compile(rb"(?>\r\n|\n|\r)(?>\r\n|\n|\r)")
_LINE_END = re.compile(rb"\r\n|\n|\r")
# A blank line has at most 4 bytes: this many of the bytes already searched may belong to one that is not complete.
_OVERLAP = 3
MAX_FRAME_BYTES = 8 * 2**20

DONE = b"[DONE]"


class FrameTooLongError(ValueError):
    """A frame that does not end within the limit."""


class SseSplitter:
    """Cuts a byte stream into complete frames, whatever its chunks are.

    Args:
        limit: bytes that may wait for the end of one frame.
    """

    __slots__ = ("_held", "_limit", "_searched")

    def __init__(self, limit: int = MAX_FRAME_BYTES) -> None:
        self._limit = limit
        self._held = b""
        self._searched = 0

    def feed(self, chunk: bytes) -> list[bytes]:
        """The frames that ``chunk`` completes, each with the blank line that ends it.

        Raises:
            FrameTooLongError: what is held back exceeds the limit.
        """
        data = self._held + chunk if self._held else chunk
        frames, start = (_cut_mixed if b"\r" in data else _cut_plain)(data, self._searched)
        self._held = data[start:]
        self._searched = max(0, len(self._held) - _OVERLAP)
        if len(self._held) > self._limit:
            raise FrameTooLongError(f"a frame is longer than {self._limit} bytes")
        return frames

    @property
    def pending(self) -> int:
        """Bytes held back: a frame that has not ended."""
        return len(self._held)


def _cut_plain(data: bytes, searched: int) -> tuple[list[bytes], int]:
    """Frames of data whose only line ends are newlines, as engines write it, and where the rest begins."""
    frames: list[bytes] = []
    start = 0
    end = data.find(b"\n\n", searched) + 2
    while end >= 2:  # noqa: PLR2004  length of what was looked for
        frames.append(data[start:end])
        start = end
        end = data.find(b"\n\n", start) + 2
    return frames, start


def _cut_mixed(data: bytes, searched: int) -> tuple[list[bytes], int]:
    """The same for every other stream."""
    frames: list[bytes] = []
    start = 0
    for match in _BLANK_LINE.finditer(data, searched):
        end = match.end()
        if end == len(data) and data.endswith(b"\r"):
            break  # a \n may follow that belongs to this line end
        frames.append(data[start:end])
        start = end
    return frames, start


def data_of(frame: bytes) -> bytes | None:
    """The data of a frame, its lines joined by a newline; None for a comment or an empty frame."""
    if frame.startswith(b"data: ") and frame.endswith(b"\n\n"):
        data = frame[6:-2]
        if b"\n" not in data and b"\r" not in data:
            return data  # the form that engines write
    lines = [_field(line, b"data") for line in _LINE_END.split(frame)]
    found = [line for line in lines if line is not None]
    return b"\n".join(found) if found else None


def error_of(frame: bytes, data: bytes | None) -> bytes | None:
    """The data of a frame that reports an error, else None.

    ``data`` is what ``data_of`` gave. Two forms are known: data that is an object with ``error`` as its first key,
    and a field or event of the name ``error``. The text ``"error"`` inside an answer is neither.
    """
    if data is not None and data.startswith(b'{"error"'):
        return data
    if frame.startswith(b"error:"):
        return _field(_LINE_END.split(frame, maxsplit=1)[0], b"error")
    if frame.startswith(b"event: error"):
        return data or b""
    return None


def _field(line: bytes, name: bytes) -> bytes | None:
    key, colon, value = line.partition(b":")
    if key != name:
        return None
    return value.removeprefix(b" ") if colon else b""
