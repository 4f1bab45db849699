"""The client's end of a streamed answer: nothing is sent before there is something to say."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from aiohttp import web

from supervisor.gateway.exchange import Exchange

_HEADERS = {
    "Cache-Control": "no-cache",
    "X-Accel-Buffering": "no",  # nginx in front would hold the stream back
}


@dataclass(frozen=True, slots=True)
class StreamForm:
    """How one API streams.

    Attributes:
        waiting: said while a client waits, and skipped by all its libraries; None: they would stumble over anything.
    """

    content_type: str = "text/event-stream"
    waiting: bytes | None = b": waiting\n\n"


SERVER_SENT_EVENTS = StreamForm()


class ClientLeftError(Exception):
    """The client's connection is gone; nothing can be said to it."""


class _Answer(web.StreamResponse):
    # The headers go out with the first bytes: one system call less, and the client wakes once.
    _send_headers_immediately = False


class ClientStream:
    """Sends 200 and the headers with the first bytes, and not before."""

    def __init__(self, request: web.Request, exchange: Exchange, form: StreamForm = SERVER_SENT_EVENTS) -> None:
        self._request = request
        self._form = form
        self._exchange = exchange
        self._response: web.StreamResponse | None = None
        self._starting = asyncio.Lock()

    @property
    def started(self) -> bool:
        """Whether the status is out: from then on an error can only be an event."""
        return self._response is not None

    async def send(self, data: bytes) -> None:
        """Send content; returns when the client takes it.

        Raises:
            ClientLeftError: it left.
        """
        self._exchange.content_sent()
        await self._write(data)

    async def last_words(self, data: bytes) -> None:
        """Send what is no part of the answer: why it ends.

        Raises:
            ClientLeftError: it left.
        """
        await self._write(data)

    async def finish(self) -> web.StreamResponse:
        """End the answer properly, even if nothing was sent."""
        response = await self._start()
        try:
            await response.write_eof()
        except ConnectionError as error:
            raise ClientLeftError from error
        return response

    @asynccontextmanager
    async def told_to_wait(self, after: float, interval: float) -> AsyncIterator[None]:
        """While the block waits longer than ``after`` seconds for its first content, say so every ``interval``.

        It is said as the API's clients skip it, and the first time sends the status; some APIs have no way to say it.
        """
        # A timer costs a request next to nothing; a task exists only for those that really wait.
        loop = asyncio.get_running_loop()
        teller: asyncio.Task[None] | None = None

        def begin() -> None:
            nonlocal teller
            if self._form.waiting is not None:
                teller = loop.create_task(self._say_waiting(self._form.waiting, interval))

        timer = loop.call_later(after, begin)
        try:
            yield
        finally:
            timer.cancel()
            if teller is not None:
                teller.cancel()
                await asyncio.wait([teller])

    async def _say_waiting(self, words: bytes, interval: float) -> None:
        while not self._exchange.has_content:
            try:
                await self._write(words)
            except ClientLeftError:
                return  # the handler is cancelled, or finds out by itself
            await asyncio.sleep(interval)

    async def _write(self, data: bytes) -> None:
        response = self._response or await self._start()
        try:
            await response.write(data)
        except ConnectionError as error:
            raise ClientLeftError from error

    async def _start(self) -> web.StreamResponse:
        async with self._starting:
            if self._response is None:
                response = _Answer(
                    headers={"Content-Type": self._form.content_type, **_HEADERS, **self._exchange.headers}
                )
                try:
                    await response.prepare(self._request)
                except ConnectionError as error:
                    raise ClientLeftError from error
                self._response = response
            return self._response
