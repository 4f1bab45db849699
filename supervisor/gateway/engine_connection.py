"""One connection to an engine, for one request and its answer, and after a whole answer perhaps for another.

After a stream none is kept: llama-server closes it, although it promises otherwise. Closing one is also what makes an
engine stop.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Mapping
from typing import cast

from engines.contract import Endpoint
from supervisor.gateway.http_answer import GarbledError, HttpAnswer
from supervisor.instances.kept_connections import KeptConnections

_CONNECT_SECONDS = 5.0
# A Unix socket whose queue of newcomers is full refuses at once.
_FULL_PAUSE = 0.002
# Read ahead of a client that is slower than the engine; then the engine waits.
_MOST_HELD_BYTES = 256 * 2**10
# A reader in no hurry is told of what has come after this long: each telling costs more than the piece itself.
_UNHURRIED_SECONDS = 0.1
# Behind it nothing comes that anybody waits for.
_LAST_WORDS = b"[DONE]\n\n"
# Above this, head and body are written one by one rather than copied together.
_LARGE_BYTES = 64 * 2**10


class EngineConnectionError(Exception):
    """The connection gives no answer, or no more of it."""


class NotReachedError(EngineConnectionError):
    """Nobody takes the connection: nothing was sent."""


class SilentError(EngineConnectionError):
    """Nothing came for too long."""


class CutError(EngineConnectionError):
    """The connection ended before the answer, or what came is no answer."""


class StaleError(CutError):
    """The engine had closed a kept connection, or did so when the next request came: it answered with no byte."""


class EngineConnection(asyncio.Protocol):
    """Sends what is left of one request as soon as it is connected; then its answer is read piece by piece.

    Args:
        request: the bytes to send, in one piece or more.
        patience: longest silence while somebody waits for it, in seconds.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, request: tuple[bytes, ...], patience: float) -> None:
        self._loop = loop
        self._request = request
        self._patience = patience
        self._answer = HttpAnswer()
        self._transport: asyncio.Transport | None = None
        self._pieces: list[bytes] = []
        self._held = 0
        self._paused = False
        self._failure: EngineConnectionError | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._deadline = 0.0
        self._hurry = True
        self._nudge: asyncio.TimerHandle | None = None
        self._kept: KeptConnections | None = None
        self._unproven = False

    def again(self, request: tuple[bytes, ...], patience: float) -> None:
        """Send another request on a kept connection; ``status`` then raises ``StaleError`` if it was closed."""
        self._kept = None
        self._unproven = True
        self._patience = patience
        self._answer = HttpAnswer()
        for piece in request:
            if piece and self._transport is not None:
                self._transport.write(piece)

    def keep(self, kept: KeptConnections) -> None:
        """Leave it to others, if the answer was read to its end and the engine goes on to listen; else close it."""
        transport, answer = self._transport, self._answer
        usable = answer.done and answer.keeps and not self._pieces and self._failure is None
        if not usable or transport is None or transport.is_closing():
            self.close()
            return
        self._kept = kept
        kept.keep(self)

    async def status(self) -> int:
        """The answer's status, once its head has come.

        Raises:
            SilentError, CutError: there is none.
        """
        while self._answer.status is None:
            if self._failure is not None:
                raise self._failure
            self._hurry = True
            await self._wait()
        return self._answer.status

    async def read(self, *, hurry: bool = True) -> bytes:
        """What has come of the body, at least a byte of it; empty at its end.

        Args:
            hurry: False: it may wait a little for more to come with it; the end of the answer is told at once.

        Raises:
            SilentError, CutError: it ends too early.
        """
        while not self._pieces:
            if self._answer.done:
                return b""
            if self._failure is not None:
                raise self._failure
            self._hurry = hurry
            await self._wait()
        pieces, self._pieces, self._held = self._pieces, [], 0
        if self._paused and self._transport is not None:
            self._paused = False
            self._transport.resume_reading()
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    async def read_all(self) -> bytes:
        """The body from here to its end.

        Raises:
            SilentError, CutError: it ends too early.
        """
        pieces = []
        while piece := await self.read():
            pieces.append(piece)
        return b"".join(pieces)

    def close(self) -> None:
        """End it now, whatever is still to come."""
        for timer in (self._timer, self._nudge):
            if timer is not None:
                timer.cancel()
        self._timer = self._nudge = None
        if self._transport is not None:
            self._transport.abort()

    def sent(self, count: int) -> None:
        """So many bytes of the request's first piece were sent before the event loop took the connection."""
        self._request = (self._request[0][count:], *self._request[1:])

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send the request."""
        self._transport = cast("asyncio.Transport", transport)  # uvloop's are no subclass of it
        for piece in self._request:
            if piece:
                self._transport.write(piece)
        self._request = ()

    def data_received(self, data: bytes) -> None:
        """Read on, and wake who waits."""
        self._deadline = self._loop.time() + self._patience
        answer = self._answer
        self._unproven = False
        if answer.done or self._failure is not None:
            if self._kept is not None:
                self._leave()
                self.close()
            answer.keeps = False  # it speaks unasked
            return
        before = (answer.status, answer.done)
        try:
            piece = answer.feed(data)
        except GarbledError as error:
            self._fail(CutError(f"what came can't be read: {error}"))
            return
        if piece:
            self._pieces.append(piece)
            self._held += len(piece)
            if self._held > _MOST_HELD_BYTES and not self._paused and self._transport is not None:
                self._paused = True
                self._transport.pause_reading()
        # Progress within a head, or within a chunk's size, is nothing that anybody waits for.
        now = (answer.status, answer.done)
        if not piece and now == before:
            return
        ended = now[1] is not before[1]
        if self._hurry or ended or self._paused or piece.endswith(_LAST_WORDS):
            self._wake()
        elif self._nudge is None:
            self._nudge = self._loop.call_later(_UNHURRIED_SECONDS, self._wake)

    def eof_received(self) -> bool:
        """The engine has said all; the connection is closed."""
        self._ended()
        return False

    def connection_lost(self, _error: Exception | None) -> None:
        """There will be no more."""
        self._transport = None
        self._ended()

    def _ended(self) -> None:
        self._answer.keeps = False
        self._leave()
        if not self._answer.end():
            self._fail((StaleError if self._unproven else CutError)("the connection was cut"))
        self._wake()

    def _leave(self) -> None:
        if self._kept is not None:
            self._kept.forget(self)
            self._kept = None

    def _fail(self, error: EngineConnectionError) -> None:
        if self._failure is None:
            self._failure = error
        self._wake()

    def _wake(self) -> None:
        if self._nudge is not None:
            self._nudge.cancel()
            self._nudge = None
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def _wait(self) -> None:
        """Until something has come, or the patience is over; one timer serves all waits."""
        self._waiter = self._loop.create_future()
        self._deadline = self._loop.time() + self._patience
        if self._timer is None:
            self._timer = self._loop.call_at(self._deadline, self._look_at_the_clock)
        try:
            await self._waiter
        finally:
            self._waiter = None

    def _look_at_the_clock(self) -> None:
        self._timer = None
        if self._waiter is None:
            return  # nobody waits: the client is slower, and the next wait sets a timer of its own
        if self._loop.time() >= self._deadline:
            self._fail(SilentError(f"nothing came for {self._patience:g} s"))
        else:
            self._timer = self._loop.call_at(self._deadline, self._look_at_the_clock)


def post_bytes(path: str, headers: Mapping[str, str], body: bytes, *, keeps: bool = False) -> tuple[bytes, ...]:
    """A request, in one piece or two.

    Args:
        path: of the engine's API.
        headers: its key.
        body: JSON.
        keeps: the connection may be used again.
    """
    # Nothing of the client's own headers; no compression, since frames are passed on as they are.
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    head = (
        f"POST {path} HTTP/1.1\r\nHost: engine\r\n{lines}Content-Type: application/json\r\nAccept-Encoding: identity"
        f"\r\nConnection: {'keep-alive' if keeps else 'close'}\r\nContent-Length: {len(body)}\r\n\r\n"
    ).encode()
    return (head, body) if len(body) > _LARGE_BYTES else (head + body,)


async def ask(endpoint: Endpoint, request: tuple[bytes, ...], patience: float) -> EngineConnection:
    """Send a request on a new connection; the answer is still to be read, and the connection to be closed.

    Args:
        endpoint: where the engine listens.
        request: by ``post_bytes``.
        patience: as ``EngineConnection``.

    Raises:
        NotReachedError: nothing was sent.
    """
    loop = asyncio.get_running_loop()
    connection = EngineConnection(loop, request, patience)
    try:
        if endpoint.socket_path is not None:
            await _connect(loop, str(endpoint.socket_path), connection, request[0])
        else:
            assert endpoint.port is not None
            async with asyncio.timeout(_CONNECT_SECONDS):
                await loop.create_connection(lambda: connection, "127.0.0.1", endpoint.port)
    except OSError as error:  # TimeoutError among them
        raise NotReachedError(str(error) or "no connection in time") from error
    return connection


async def _connect(loop: asyncio.AbstractEventLoop, path: str, connection: EngineConnection, first: bytes) -> None:
    """Connect and send at once, so that the engine begins while the event loop still takes the connection over."""
    deadline = loop.time() + _CONNECT_SECONDS
    while True:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            sock.setblocking(False)  # noqa: FBT003  the standard library's own signature
            sock.connect(path)  # of a Unix socket: answered at once, either way
            connection.sent(sock.send(first))
            await loop.create_unix_connection(lambda: connection, sock=sock)
        except BlockingIOError:
            sock.close()
            if loop.time() > deadline:
                raise
            await asyncio.sleep(_FULL_PAUSE)
        except BaseException:
            sock.close()
            raise
        else:
            return
