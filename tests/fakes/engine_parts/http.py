"""The little HTTP/1.1 that the fake speaks, with llama-server's headers and its way of ending connections."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field
from typing import Any

# llama-server closes a connection that was idle for 5 s, and after 100 requests; errors close it at once.
IDLE_SECONDS = 5.0
REQUESTS_PER_CONNECTION = 100
_REASONS = {200: "OK", 400: "Bad Request", 401: "Unauthorized", 404: "Not Found", 500: "Internal Server Error"}
_REASONS |= {501: "Not Implemented", 503: "Service Unavailable"}


@dataclass(frozen=True, slots=True)
class Request:
    """One parsed request."""

    method: str
    path: str
    headers: dict[str, str] = field(repr=False)
    body: bytes = field(repr=False)
    query: str = ""


async def read_request(reader: asyncio.StreamReader) -> Request | None:
    """The next request of a connection; None at its end.

    Raises:
        ValueError: not HTTP.
    """
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except (asyncio.IncompleteReadError, ConnectionError):
        return None
    lines = head.decode("latin-1").split("\r\n")
    method, target, _ = lines[0].split(" ", 2)
    pairs = (line.partition(":") for line in lines[1:] if line)
    headers = {name.strip().lower(): value.strip() for name, _, value in pairs}
    if "chunked" in headers.get("transfer-encoding", ""):
        body = await _read_chunks(reader)
    else:
        body = await reader.readexactly(int(headers.get("content-length", 0)))
    path, _, query = target.partition("?")
    return Request(method, path, headers, body, query)


async def _read_chunks(reader: asyncio.StreamReader) -> bytes:
    parts = []
    while size := int((await reader.readline()).split(b";")[0], 16):
        parts.append(await reader.readexactly(size))
        await reader.readline()
    await reader.readline()
    return b"".join(parts)


class Reply:
    """The answer to one request, whole or as an event stream."""

    def __init__(self, request: Request, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self.keep_alive = request.headers.get("connection", "").lower() != "close"
        self.streaming = False

    @property
    def client_left(self) -> bool:
        """Whether the client closed its end."""
        return self._writer.is_closing() or self._reader.at_eof()

    async def send_json(self, status: int, document: Any, *, with_body: bool = True) -> None:
        """A whole JSON answer."""
        data = json.dumps(document, separators=(",", ":"), ensure_ascii=False).encode()
        await self.send(status, "application/json; charset=utf-8", data, with_body=with_body)

    async def send(self, status: int, content_type: str, data: bytes, *, with_body: bool = True) -> None:
        """A whole answer; an error closes the connection."""
        self.keep_alive = self.keep_alive and status < 400
        head = (
            f"HTTP/1.1 {status} {_REASONS[status]}\r\n"
            f"{self._connection_header()}\r\n"
            f"Content-Type: {content_type}\r\nServer: llama.cpp\r\nContent-Length: {len(data)}\r\n"
            "Access-Control-Allow-Origin: \r\n\r\n"
        )
        await self._write(head.encode() + (data if with_body else b""))

    async def begin_stream(self) -> None:
        """The header of an event stream; it proves nothing yet."""
        self.streaming = True
        head = (
            f"HTTP/1.1 200 OK\r\n{self._connection_header()}\r\nTransfer-Encoding: chunked\r\n"
            "Access-Control-Allow-Origin: \r\nX-Accel-Buffering: no\r\nServer: llama.cpp\r\n"
            "Content-Type: text/event-stream\r\n\r\n"
        )
        await self._write(head.encode())

    async def send_event(self, document: Any) -> None:
        """One ``data:`` event; ``None`` is sent as ``null``, a string as it is."""
        text = (
            document if isinstance(document, str) else json.dumps(document, separators=(",", ":"), ensure_ascii=False)
        )
        data = f"data: {text}\n\n".encode()
        await self._write(f"{len(data):x}\r\n".encode() + data + b"\r\n")

    async def end_stream(self) -> None:
        """The proper end of the transfer, and of the connection: the header's promise to keep it is not kept."""
        self.keep_alive = False
        await self._write(b"0\r\n\r\n")

    def _connection_header(self) -> str:
        return "Keep-Alive: timeout=5, max=100" if self.keep_alive else "Connection: close"

    async def _write(self, data: bytes) -> None:
        try:
            self._writer.write(data)
            await self._writer.drain()
        except ConnectionError:
            self._writer.close()
