"""Many streams read at once: bytes are kept with the moment they came, and looked at only afterwards."""

from __future__ import annotations

import re
import selectors
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from bench.support.errors import BenchError
from bench.support.http import Target, connect

_READ_BYTES = 1 << 18
_SILENCE = 30.0
_SHOWN_BYTES = 300
# Streams are opened in groups: how a listener's queue takes a burst of connections is not the question here.
_AT_ONCE = 32
_PAUSE = 0.02
_MARK = re.compile(rb'"content":"(\d+):(\d+):(\d+) "')
_DONE = b"data: [DONE]\n\n"


@dataclass(slots=True)
class Read:
    """What came on all streams.

    Attributes:
        seconds: from the making of the first chunk to the reading of the last one.
        delays: seconds from each chunk's making in the engine to its reading here.
        chunks: how many came.
        lost, reordered: chunks that did not come, and chunks that came before one with a smaller number.
        unfinished: streams that did not end with ``[DONE]``.
        busy: share of the time in which this process computed.
    """

    seconds: float = 0.0
    delays: list[float] = field(default_factory=list)
    chunks: int = 0
    lost: int = 0
    reordered: int = 0
    unfinished: int = 0
    busy: float = 0.0


def read_streams(targets: Sequence[Target], chunks: int, begin: float, at_begin: Callable[[], None]) -> Read:
    """Send every request, read every answer to its end, and check that each has chunks 0 to ``chunks - 1`` in order.

    Args:
        targets: the requests, each for the stream of its place.
        chunks: how many each was asked for.
        begin: moment of the monotonic clock at which the chunks begin; all streams are opened before it.
        at_begin: called just before that moment.

    Raises:
        BenchError: nothing comes for half a minute, or an answer is no 200.
    """
    selector = selectors.DefaultSelector()
    pieces: list[list[tuple[int, bytes]]] = [[] for _ in targets]
    try:
        for number, target in enumerate(targets):
            sock = connect(target.address)
            sock.sendall(target.request)
            sock.setblocking(False)  # noqa: FBT003  a positional-only argument
            selector.register(sock, selectors.EVENT_READ, (sock, pieces[number]))
            if number % _AT_ONCE == _AT_ONCE - 1:
                time.sleep(_PAUSE)
        while (left := begin - _PAUSE - time.monotonic()) > 0:
            _take(selector, left)
        at_begin()
        cpu, began = time.thread_time(), time.perf_counter()
        while selector.get_map():
            if not _take(selector, _SILENCE):
                raise BenchError(f"nothing came on {len(selector.get_map())} streams for {_SILENCE:g} s")
    finally:
        for key in list(selector.get_map().values()):
            key.data[0].close()
        selector.close()
    read = Read(busy=(time.thread_time() - cpu) / (time.perf_counter() - began))
    made = [_check(read, number, got, chunks) for number, got in enumerate(pieces)]
    read.seconds = (max(got[-1][0] for got in pieces) - min(made)) / 1e9
    return read


def _take(selector: selectors.BaseSelector, timeout: float) -> bool:
    """Keep what comes next, with its moment; whether anything came."""
    events = selector.select(timeout)
    for key, _ in events:
        sock, got = key.data
        data = sock.recv(_READ_BYTES)
        got.append((time.monotonic_ns(), data))
        if not data or data.endswith(b"0\r\n\r\n"):
            selector.unregister(sock)
            sock.close()
    return bool(events)


def _check(read: Read, stream: int, pieces: list[tuple[int, bytes]], chunks: int) -> int:
    """Count what one stream brought; the moment at which its first chunk was made, in monotonic nanoseconds."""
    answer = b"".join(data for _, data in pieces)
    if b" 200 " not in answer[:16]:
        raise BenchError(f"stream {stream} was answered: {answer[:_SHOWN_BYTES]!r}")
    text, ends, moments = _unchunk(pieces)
    numbers: list[int] = []
    first = 0
    place = 0
    for match in _MARK.finditer(text):
        if int(match[1]) != stream:
            raise BenchError(f"stream {stream} got a chunk of stream {int(match[1])}")
        first = first or int(match[3])
        numbers.append(int(match[2]))
        while ends[place] < match.end():
            place += 1
        read.delays.append((moments[place] - int(match[3])) / 1e9)
    read.chunks += len(numbers)
    read.lost += chunks - len(set(numbers))
    read.reordered += sum(1 for before, after in pairwise(numbers) if after <= before)
    read.unfinished += not text.endswith(_DONE)
    if not numbers:
        raise BenchError(f"stream {stream} brought no chunk: {answer[:_SHOWN_BYTES]!r}")
    return first


def _unchunk(pieces: list[tuple[int, bytes]]) -> tuple[bytes, list[int], list[int]]:
    """The body without its chunk heads; where in it each piece ends, and when that piece came."""
    raw = b"".join(data for _, data in pieces)
    body: list[bytes] = []
    spans: list[tuple[int, int]] = []  # where a chunk's data ends in ``raw``, and in the body
    at = raw.find(b"\r\n\r\n") + 4
    size = 0
    while at < len(raw):
        line = raw.find(b"\r\n", at)
        length = int(raw[at:line], 16) if line > 0 else 0
        if not length:
            break
        body.append(raw[line + 2 : line + 2 + length])
        size += length
        at = line + 2 + length
        spans.append((at, size))
        at += 2
    return b"".join(body), *_moments(pieces, spans)


def _moments(pieces: list[tuple[int, bytes]], spans: list[tuple[int, int]]) -> tuple[list[int], list[int]]:
    """When each chunk was complete: the moment of the piece that holds its last byte."""
    ends: list[int] = []
    moments: list[int] = []
    came = iter(pieces)
    moment, reach = 0, 0
    for raw_end, body_end in spans:
        while reach < raw_end:
            moment, data = next(came)
            reach += len(data)
        ends.append(body_end)
        moments.append(moment)
    return ends, moments
