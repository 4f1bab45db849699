"""The client's end of a streamed answer: nothing is sent before there is something to say."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from functools import partial
from typing import Any

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


class ToldToWait:
    """A block; a class and no generator: there is one a request."""

    __slots__ = ("_after", "_say", "_teller", "_timer")

    def __init__(self, after: float, say: Callable[[], Coroutine[Any, Any, None]] | None) -> None:
        """``say``: begun after so many seconds, and cancelled with the block; None: nothing is said."""
        self._after = after
        self._say = say
        self._timer: asyncio.TimerHandle | None = None
        self._teller: asyncio.Task[None] | None = None

    async def __aenter__(self) -> None:
        if self._say is not None:
            # A timer costs a request next to nothing; a task exists only for those that really wait.
            self._timer = asyncio.get_running_loop().call_later(self._after, self._begin, self._say)

    async def __aexit__(self, *_: object) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._teller is not None:
            self._teller.cancel()
            await asyncio.wait([self._teller])

    def _begin(self, say: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self._teller = asyncio.get_running_loop().create_task(say())


class _Answer(web.StreamResponse):
    # The headers go out with the first bytes: one system call less, and the client wakes once.
    _send_headers_immediately = False


class ClientStream:
    """Sends 200 and the headers with the first bytes, and not before.

    Attributes:
        ends: nothing is said after what the engine said.
    """

    def __init__(self, request: web.Request, exchange: Exchange, form: StreamForm = SERVER_SENT_EVENTS) -> None:
        self._request = request
        self._form = form
        self._exchange = exchange
        self._response: web.StreamResponse | None = None
        self._ended = False
        self._told_early: frozenset[str] | None = None
        self.ends = True
        self._starting = asyncio.Lock()

    @property
    def started(self) -> bool:
        """Whether the status is out: from then on an error can only be an event."""
        return self._response is not None

    async def send(self, data: bytes, *, last: bool = False) -> None:
        """Send content; returns when the client takes it.

        Args:
            data: some of it.
            last: the end of the answer goes out with it, in one piece.

        Raises:
            ClientLeftError: it left.
        """
        if self._told_early is not None and not self._exchange.has_content:
            data = self._late_headers(self._told_early) + data
        self._exchange.content_sent()
        await self._write(data, last=last)

    async def last_words(self, data: bytes) -> None:
        """Send what is no part of the answer: why it ends.

        Raises:
            ClientLeftError: it left.
        """
        await self._write(data)

    async def finish(self) -> web.StreamResponse:
        """End the answer properly, even if nothing was sent."""
        response = await self._start()
        if self._ended:
            return response
        try:
            await response.write_eof()
        except ConnectionError as error:
            raise ClientLeftError from error
        return response

    def told_to_wait(self, after: float, interval: float) -> ToldToWait:
        """While the block waits longer than ``after`` seconds for its first content, say so every ``interval``.

        It is said as the API's clients skip it, and the first time sends the status; some APIs have no way to say it.
        """
        words = self._form.waiting
        return ToldToWait(after, None if words is None else partial(self.say_waiting, words, interval))

    async def say_waiting(self, words: bytes, interval: float) -> None:
        """Say ``words`` every ``interval`` seconds until there is content."""
        while not self._exchange.has_content:
            try:
                if self._told_early is None:
                    self._told_early = frozenset(self._exchange.headers)
                await self._write(words)
            except ClientLeftError:
                return  # the handler is cancelled, or finds out by itself
            await asyncio.sleep(interval)

    def _late_headers(self, known: frozenset[str]) -> bytes:
        """What was no header yet when the first words went out, as comments, which all libraries skip."""
        late = [(name, value) for name, value in self._exchange.headers.items() if name not in known]
        return ("".join(f": {name}: {value}\n" for name, value in late) + "\n" if late else "").encode()

    async def _write(self, data: bytes, *, last: bool = False) -> None:
        response = self._response or await self._start()
        try:
            if last:
                self._ended = True
                await response.write_eof(data)
            else:
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
