"""An engine in this process: a raw HTTP server on a Unix socket that plays prepared answers, chunk by chunk."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import anyio
import orjson

Ending = Literal["close", "cut", "hang"]


@dataclass
class Play:
    """One prepared answer.

    Attributes:
        chunks: HTTP chunks of the body, written one by one.
        ending: ``close`` ends the body and closes, as llama-server does after a stream; ``cut`` closes in the middle;
            ``hang`` says nothing more until the peer leaves.
        keep_alive: a whole answer with a length, and the connection stays.
        headers: False leaves them out, as an engine that dies at once.
        at_once: head, body and end in one write, as a busy machine may deliver them.
        stays_open: a connection is used again after a stream unless the peer forbids it, unlike llama-server's.
        pauses: the chunk of that number is written when the test sets its event.
        before_end: the same for the ending. Bytes that come together with a cut may be lost with it.
    """

    chunks: Sequence[bytes] = ()
    status: int = 200
    content_type: str = "text/event-stream"
    ending: Ending = "close"
    keep_alive: bool = False
    headers: bool = True
    at_once: bool = False
    stays_open: bool = False
    pauses: dict[int, anyio.Event] = field(default_factory=dict)
    before_end: anyio.Event | None = None


@dataclass(frozen=True)
class Heard:
    """A request as it arrived."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        """The body, parsed."""
        return orjson.loads(self.body)


def whole(body: bytes, status: int = 200, *, keep_alive: bool = False) -> Play:
    """An answer that is not streamed."""
    return Play([body], status=status, content_type="application/json", keep_alive=keep_alive)


def stream(sse: bytes, size: int | None = None, *, ending: Ending = "close") -> Play:
    """A stream of server-sent events in chunks of ``size`` bytes; None: one chunk per event, as engines do."""
    if size is None:
        pieces: Iterable[bytes] = (piece + b"\n\n" for piece in sse.split(b"\n\n") if piece)
    else:
        pieces = (sse[start : start + size] for start in range(0, len(sse), size))
    return Play(list(pieces), ending=ending)


class PlayedEngine:
    """Plays its ``plays`` in turn, the last one again and again.

    Attributes:
        heard: requests, in order.
        arrived: set when a request has been read.
        left: set when a peer closed before its answer was over.
        connections: accepted so far.
    """

    def __init__(self, *plays: Play) -> None:
        self.plays = list(plays)
        self.heard: list[Heard] = []
        self.arrived = anyio.Event()
        self.left = anyio.Event()
        self.connections = 0
        self._handlers: set[asyncio.Task[Any]] = set()

    @asynccontextmanager
    async def listening(self, path: Path) -> AsyncIterator[None]:
        """Listen at ``path`` within the block."""
        server = await asyncio.start_unix_server(self._accept, path)
        try:
            yield
        finally:
            server.close()
            for handler in tuple(self._handlers):
                handler.cancel()
            await asyncio.gather(*self._handlers, return_exceptions=True)
            await server.wait_closed()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._handlers.add(task)
        self.connections += 1
        try:
            while await self._serve(reader, writer):
                pass
        except (ConnectionError, asyncio.IncompleteReadError):
            self.left.set()
        except asyncio.CancelledError:
            return  # the block is over, and a kept connection waits for more; asyncio stumbles over cancelled handlers
        finally:
            self._handlers.discard(task)
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        heard = await _read_request(reader)
        if heard is None:
            return False
        self.heard.append(heard)
        self.arrived.set()
        play = self.plays.pop(0) if len(self.plays) > 1 else self.plays[0]
        watch = asyncio.ensure_future(reader.read(1))
        try:
            await self._play(play, writer, watch, heard.headers.get("connection", "Keep-Alive"))
        finally:
            watch.cancel()
            await asyncio.gather(watch, return_exceptions=True)
        return play.keep_alive or (play.stays_open and heard.headers.get("connection") != "close")

    async def _play(
        self, play: Play, writer: asyncio.StreamWriter, watch: asyncio.Future[bytes], connection: str
    ) -> None:
        length = f"Content-Length: {sum(map(len, play.chunks))}" if play.keep_alive else "Transfer-Encoding: chunked"
        head = (
            f"HTTP/1.1 {play.status} X\r\nContent-Type: {play.content_type}\r\n{length}\r\n"
            f"Server: llama.cpp\r\nAccess-Control-Allow-Origin: *\r\nConnection: {connection}\r\n\r\n"
        )
        if play.at_once:
            writer.write(head.encode() + b"".join(map(_http_chunk, play.chunks)) + b"0\r\n\r\n")
            return
        if play.headers:
            writer.write(head.encode())
        for number, chunk in enumerate(play.chunks):
            if number in play.pauses:
                await self._wait(play.pauses[number], watch)
            if not chunk:
                continue  # an empty chunk would end the body
            writer.write(chunk if play.keep_alive else _http_chunk(chunk))
            await writer.drain()
        if play.before_end is not None:
            await self._wait(play.before_end, watch)
        if play.ending == "hang":
            await watch
            self.left.set()
        elif play.ending == "close" and not play.keep_alive:
            writer.write(b"0\r\n\r\n")
            await writer.drain()

    async def _wait(self, gate: anyio.Event, watch: asyncio.Future[bytes]) -> None:
        opened = asyncio.ensure_future(gate.wait())
        try:
            both: list[asyncio.Future[Any]] = [opened, watch]
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
            if not opened.done():
                raise ConnectionResetError("the peer left")
        finally:
            opened.cancel()
            await asyncio.gather(opened, return_exceptions=True)


def _http_chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


async def _read_request(reader: asyncio.StreamReader) -> Heard | None:
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError:
        return None
    first, *lines = head.decode().split("\r\n")
    method, path, _ = first.split(" ")
    headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines if line)}
    body = await reader.readexactly(int(headers.get("content-length", 0)))
    return Heard(method, path, headers, body)
