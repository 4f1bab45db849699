"""A stand-in for llama-server that costs next to nothing: constant bytes from a bare asyncio protocol.

Run by the daemon as a build. As llama-server does, it closes the connection after a stream, saying so only to a client
that had asked for it, and keeps it after a whole answer. A body with ``bench: {stream, chunks, begin, interval}`` is
answered with numbered, time-stamped chunks from the moment ``begin`` of the monotonic clock on: one each ``interval``
seconds, or as fast as the client takes them when that is 0.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import sys
import time
from typing import Any, cast

_NUMBERED = b'"bench":{'
_STREAM = b'"stream":true'
_CLOSE = b"connection: close"
_CHUNKS_AT_ONCE = 16
_HEAD = b'{"choices":[{"finish_reason":'
_TAIL = (
    b',"created":1767225600,"id":"chatcmpl-0123456789abcdefghijklmnopqrstuv","model":"canned",'
    b'"system_fingerprint":"b0-canned","object":"chat.completion'
)
_TIMINGS = (
    b',"timings":{"cache_n":4,"prompt_n":1,"prompt_ms":0.2,"prompt_per_token_ms":0.2,"prompt_per_second":5000.0,'
    b'"predicted_n":1,"predicted_ms":0.1,"predicted_per_token_ms":0.1,"predicted_per_second":10000.0}'
)
_USAGE = b',"usage":{"completion_tokens":1,"prompt_tokens":5,"total_tokens":6}'


def _frame(delta: bytes, finish: bytes = b"null", extra: bytes = b"") -> bytes:
    data = _HEAD + finish + b',"index":0,"delta":' + delta + b"}]" + _TAIL + b'.chunk"' + extra + b"}"
    return b"data: " + data + b"\n\n"


def _chunked(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


_ROLE = _frame(b'{"role":"assistant","content":null}')
_PROGRESS = _frame(
    b'{"role":"assistant","content":null}',
    extra=b',"prompt_progress":{"total":5,"cache":4,"processed":5,"time_ms":0}',
)
_LAST = _frame(b"{}", b'"length"', _TIMINGS)
_DONE = b"data: [DONE]\n\n"
_OK = b"HTTP/1.1 200 OK\r\nServer: canned\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n"
# By whether the client asked for the connection to be closed.
_STREAM_HEAD = {False: _OK + b"\r\n", True: _OK + b"Connection: close\r\n\r\n"}
# One token: what llama-server sends for max_tokens 1, frame by frame.
_FRAMES = b"".join(_chunked(frame) for frame in (_PROGRESS, _ROLE, _frame(b'{"content":"Hello"}'), _LAST, _DONE))
_ONE_TOKEN = {closing: head + _FRAMES + b"0\r\n\r\n" for closing, head in _STREAM_HEAD.items()}


def _whole(body: bytes, status: bytes = b"200 OK") -> bytes:
    head = b"HTTP/1.1 %s\r\nServer: canned\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
    return head % (status, len(body)) + body


_ANSWER = _whole(
    _HEAD
    + b'"length","index":0,"message":{"role":"assistant","content":"Hello"}}]'
    + _TAIL
    + b'"'
    + _USAGE
    + _TIMINGS
    + b"}"
)
_GET = {b"/health": _whole(b'{"status":"ok"}'), b"/slots": _whole(b"[]")}
_NOT_FOUND = _whole(b'{"error":{"message":"not found","code":404}}', b"404 Not Found")


class Connection(asyncio.Protocol):
    """One client."""

    def __init__(self) -> None:
        self._held = b""
        self._transport: asyncio.Transport | None = None
        self._stream: NumberedStream | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the way back."""
        self._transport = cast("asyncio.Transport", transport)  # uvloop's are no subclass of it

    def data_received(self, data: bytes) -> None:
        """Answer every request that is complete."""
        self._held += data
        while (end := self._held.find(b"\r\n\r\n")) >= 0:
            head = self._held[:end].lower()
            _, found, rest = head.partition(b"content-length:")
            whole = end + 4 + (int(rest.split(b"\r\n", 1)[0]) if found else 0)
            if len(self._held) < whole:
                return
            body, self._held = self._held[end + 4 : whole], self._held[whole:]
            self._answer(head, body)

    def connection_lost(self, _error: Exception | None) -> None:
        """Stop what still runs for it."""
        if self._stream is not None:
            self._stream.stop()

    def pause_writing(self) -> None:
        """The client is slower than we are."""
        if self._stream is not None:
            self._stream.pause()

    def resume_writing(self) -> None:
        """It has caught up."""
        if self._stream is not None:
            self._stream.go_on()

    def _answer(self, head: bytes, body: bytes) -> None:
        transport = self._transport
        assert transport is not None
        if not head.startswith(b"post"):
            transport.write(_GET.get(head.split(b" ", 2)[1], _NOT_FOUND))
        elif _NUMBERED in body:
            self._stream = NumberedStream(transport, json.loads(body)["bench"])
            self._stream.start(_STREAM_HEAD[_CLOSE in head])
        elif _STREAM in body:
            transport.write(_ONE_TOKEN[_CLOSE in head])
            transport.close()
        else:
            transport.write(_ANSWER)


class NumberedStream:
    """Chunks with ``stream:number:monotonic nanoseconds`` as their text."""

    def __init__(self, transport: asyncio.Transport, wish: dict[str, Any]) -> None:
        self._transport = transport
        self._name = int(wish["stream"])
        self._chunks = int(wish["chunks"])
        self._begin = float(wish["begin"])
        self._interval = float(wish["interval"])
        self._sent = 0
        self._next = 0.0
        self._paused = self._stopped = False
        self._loop = asyncio.get_running_loop()

    def start(self, head: bytes) -> None:
        """The head and the role now, then the chunks; paced streams begin at different moments of an interval."""
        self._transport.write(head + _chunked(_ROLE))
        wait = max(0.0, self._begin - time.monotonic())
        if self._interval:
            self._next = self._loop.time() + wait + random.random() * self._interval
            self._loop.call_at(self._next, self._tick)
        else:
            self._loop.call_later(wait, self._rush)

    def stop(self) -> None:
        """The client is gone."""
        self._stopped = True

    def pause(self) -> None:
        """Write no more for now."""
        self._paused = True

    def go_on(self) -> None:
        """Write again."""
        self._paused = False
        if not self._interval and not self._stopped:
            self._loop.call_soon(self._rush)

    def _tick(self) -> None:
        if self._stopped:
            return
        self._transport.write(self._chunk())
        if self._sent == self._chunks:
            self._end()
        else:
            self._next += self._interval
            self._loop.call_at(self._next, self._tick)

    def _rush(self) -> None:
        if self._stopped or self._paused:
            return
        now = min(_CHUNKS_AT_ONCE, self._chunks - self._sent)
        self._transport.write(b"".join(self._chunk() for _ in range(now)))
        if self._sent == self._chunks:
            self._end()
        elif not self._paused:
            self._loop.call_soon(self._rush)

    def _chunk(self) -> bytes:
        text = b'{"content":"%d:%d:%d "}' % (self._name, self._sent, time.monotonic_ns())
        self._sent += 1
        return _chunked(_frame(text))

    def _end(self) -> None:
        self._stopped = True
        self._transport.write(_chunked(_LAST) + _chunked(_DONE) + b"0\r\n\r\n")
        self._transport.close()


async def serve(path: str) -> None:
    """Listen on a Unix socket until SIGTERM, and say so as llama-server does."""
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    server = await loop.create_unix_server(Connection, path, backlog=1024)
    os.write(2, b"srv  llama_server: model loaded\n" + f"srv  llama_server: listening on unix://{path}\n".encode())
    await stop.wait()
    server.close()


def main() -> None:
    """``--host PATH.sock``; every other argument is llama-server's and means nothing here."""
    path = sys.argv[sys.argv.index("--host") + 1]
    try:
        import uvloop  # noqa: PLC0415  not everywhere
    except ImportError:
        asyncio.run(serve(path))
    else:
        uvloop.run(serve(path))


if __name__ == "__main__":
    main()
