"""A load generator that is hardly there: raw sockets, one request after the other on each, nothing parsed twice.

It runs in the command's own process, which is neither the daemon's nor the engine's.
"""

from __future__ import annotations

import json
import selectors
import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from bench.support.errors import BenchError

_TIMEOUT = 30.0
_READ_BYTES = 1 << 18
_SHOWN_BYTES = 300
_END_OF_CHUNKS = b"0\r\n\r\n"

# A Unix socket's path, or host and port.
Address = Path | tuple[str, int]


@dataclass(frozen=True, slots=True)
class Target:
    """A request, ready to be sent, and where to.

    Attributes:
        closes: the server ends the connection after each answer without saying so, as llama-server does after a
            stream.
    """

    address: Address
    request: bytes
    closes: bool = False


def post(
    address: Address, body: Mapping[str, Any], *, headers: Mapping[str, str] | None = None, closes: bool = False
) -> Target:
    """A chat request; ``body`` is written as the daemon writes it, without spaces."""
    data = json.dumps(body, separators=(",", ":")).encode()
    # The daemon refuses hosts that it does not know while it listens on loopback only.
    host = "localhost" if isinstance(address, Path) else f"{address[0]}:{address[1]}"
    said = {"Host": host, "Content-Type": "application/json", "Content-Length": str(len(data)), **(headers or {})}
    head = "".join(f"{key}: {value}\r\n" for key, value in said.items())
    return Target(address, f"POST /v1/chat/completions HTTP/1.1\r\n{head}\r\n".encode() + data, closes)


def connect(address: Address) -> socket.socket:
    """A connected socket.

    Raises:
        OSError: nobody listens.
    """
    if isinstance(address, Path):
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        where: Any = str(address)
    else:
        sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        where = address
    try:
        sock.settimeout(_TIMEOUT)
        sock.connect(where)
    except OSError:
        sock.close()
        raise
    return sock


@dataclass(slots=True)
class Burst:
    """What one ``Load.run`` did.

    Attributes:
        latencies: seconds of each request.
        seconds: of the whole run.
        busy: share of it in which this process computed; near 1, the generator was the bottleneck.
    """

    latencies: list[float] = field(default_factory=list)
    seconds: float = 0.0
    busy: float = 0.0

    @property
    def rate(self) -> float:
        """Requests a second."""
        return len(self.latencies) / self.seconds


class _Connection:
    """One socket with at most one request on the way."""

    __slots__ = ("began", "held", "needed", "retried", "sock", "target")

    def __init__(self, target: Target) -> None:
        self.target = target
        self.sock: socket.socket | None = None
        self.began = 0.0
        self.held = b""
        self.needed: int | None = None  # bytes of the whole answer; -1: chunked; None: the head is not here yet
        self.retried = False

    def open(self) -> socket.socket:
        try:
            sock = connect(self.target.address)
        except OSError as error:
            raise BenchError(f"{self.target.address} takes no connection: {error}") from error
        sock.setblocking(False)  # noqa: FBT003  a positional-only argument
        self.sock = sock
        return sock

    def close(self) -> None:
        if self.sock is not None:
            self.sock.close()
            self.sock = None
        self.held, self.needed = b"", None

    def is_stale(self) -> bool:
        """Whether the other end has closed it while nothing was on the way."""
        if self.sock is None:
            return True
        try:
            return not self.sock.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return False
        except OSError:
            return True

    def complete(self) -> bool:
        """Whether the whole answer is here.

        Raises:
            BenchError: it is none with status 200.
        """
        if self.needed is None:
            end = self.held.find(b"\r\n\r\n")
            if end < 0:
                return False
            self.needed = _length(self.held[:end], end + 4)
        if self.needed < 0:
            return self.held.endswith(_END_OF_CHUNKS)
        return len(self.held) >= self.needed

    def must_reopen(self) -> bool:
        """Whether the server keeps this connection no longer."""
        head = self.held[: self.held.find(b"\r\n\r\n")]
        return self.target.closes or b"onnection: close" in head


class Load:
    """Some connections to one target, kept open between runs."""

    def __init__(self, target: Target, connections: int = 1) -> None:
        self._connections = [_Connection(target) for _ in range(connections)]
        self._selector = selectors.DefaultSelector()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: object, trace: TracebackType | None) -> None:
        for connection in self._connections:
            connection.close()
        self._selector.close()

    def run(self, *, seconds: float = _TIMEOUT, requests: int | None = None) -> Burst:
        """Send one request after the other on each connection until the time or the number is reached.

        Raises:
            BenchError: an answer other than 200, or none.
        """
        burst = Burst()
        for connection in self._connections:
            if connection.is_stale():
                self._forget(connection)
                self._register(connection)
        cpu, began = time.thread_time(), time.perf_counter()
        end = began + seconds
        left = requests if requests is not None else 1 << 60

        def more() -> bool:
            nonlocal left
            left -= 1
            return left >= 0 and time.perf_counter() < end

        running = 0
        for connection in self._connections:
            if more():
                self._send(connection)
                running += 1
        while running:
            running -= self._serve(burst, more)
        burst.seconds = time.perf_counter() - began
        burst.busy = (time.thread_time() - cpu) / burst.seconds
        return burst

    def _serve(self, burst: Burst, more: Callable[[], bool]) -> int:
        """Read what came, send what is next; the answer is how many connections have ended."""
        ready = self._selector.select(_TIMEOUT)
        if not ready:
            raise BenchError(f"no answer from {self._connections[0].target.address} within {_TIMEOUT:g} s")
        ended = 0
        for key, _ in ready:
            connection: _Connection = key.data
            if not self._read(connection):
                continue
            burst.latencies.append(time.perf_counter() - connection.began)
            reopen = connection.must_reopen()
            connection.held, connection.needed, connection.retried = b"", None, False
            if reopen:
                self._forget(connection)
            if more():
                self._send(connection)
            else:
                ended += 1
        return ended

    def _read(self, connection: _Connection) -> bool:
        """Take what is there; whether the answer is complete."""
        sock = connection.sock
        if sock is None:
            return False
        try:
            data = sock.recv(_READ_BYTES)
        except BlockingIOError:
            return False
        except ConnectionError:
            data = b""
        if data:
            connection.held += data
            return connection.complete()
        if connection.held or connection.retried:
            raise BenchError(f"{connection.target.address} cut an answer short: {connection.held[:_SHOWN_BYTES]!r}")
        # An idle connection that the server had closed: once more on a fresh one, at this request's expense.
        connection.retried = True
        began = connection.began
        self._forget(connection)
        self._send(connection)
        connection.began = began
        return False

    def _send(self, connection: _Connection) -> None:
        connection.began = time.perf_counter()
        sock = connection.sock or self._register(connection)
        try:
            sent = sock.send(connection.target.request)
        except ConnectionError:
            self._forget(connection)
            sent = self._register(connection).send(connection.target.request)
        if sent != len(connection.target.request):
            raise BenchError("the request does not fit the socket's buffer")

    def _register(self, connection: _Connection) -> socket.socket:
        sock = connection.open()
        self._selector.register(sock, selectors.EVENT_READ, connection)
        return sock

    def _forget(self, connection: _Connection) -> None:
        if connection.sock is not None:
            self._selector.unregister(connection.sock)
        connection.close()


def _length(head: bytes, start: int) -> int:
    if b" 200 " not in head[:16]:
        raise BenchError(f"an answer other than 200: {head[:_SHOWN_BYTES]!r}")
    lower = head.lower()
    if b"transfer-encoding: chunked" in lower:
        return -1
    _, found, rest = lower.partition(b"content-length:")
    if not found:
        raise BenchError(f"an answer without a length: {head[:_SHOWN_BYTES]!r}")
    return start + int(rest.split(b"\r\n", 1)[0])
