"""One request to an engine: opened, read frame by frame, and closed so that the engine notices."""

from __future__ import annotations

import io
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import aiohttp
import orjson

from supervisor.errors import UpstreamError
from supervisor.gateway.ports import Launch, Lease
from supervisor.gateway.translate.sse import FrameTooLongError, SseSplitter

_CONNECT_SECONDS = 5.0
_OK = 200
# Above this, aiohttp wants a file to read from piece by piece: writing it at once would hold up the loop.
_LARGE_BYTES = 2**20
_UNAUTHORISED = frozenset({401, 403})
_ERROR_STATUS = range(400, 600)
# Types by which engines name what OpenAI's clients look for under another code.
_CODES: Mapping[str, str] = {"exceed_context_size_error": "context_length_exceeded"}


@dataclass(frozen=True, slots=True)
class Post:
    """What is sent to an engine.

    Attributes:
        model: for messages.
        streamed: the answer is a stream, after which its connection is not used again.
        idle_timeout: longest silence, in seconds.
    """

    model: str
    path: str
    body: bytes
    streamed: bool
    idle_timeout: float


class Upstream:
    """An engine's answer, being read.

    Attributes:
        complete: the engine said all that it had to say; until then, leaving means abandoning the slot.
    """

    def __init__(self, model: str, response: aiohttp.ClientResponse, done: Callable[[], None]) -> None:
        self.complete = False
        self._done = done
        self._model = model
        self._response = response
        self._splitter = SseSplitter()

    def finish(self) -> None:
        """The engine has said all: its slot is idle, whatever the client still has to read."""
        self.complete = True
        self._done()

    async def frames(self) -> list[bytes] | None:
        """The next complete frames, at least one; None when the engine has closed.

        Raises:
            UpstreamError: ``upstream_died``, ``upstream_timeout``.
        """
        while True:
            try:
                chunk = await self._response.content.readany()
                if not chunk:
                    return None
                frames = self._splitter.feed(chunk)
            except (aiohttp.ClientError, OSError, FrameTooLongError) as error:
                raise translate(error, self._model) from error
            if frames:
                return frames

    async def body(self) -> bytes:
        """The whole answer at once.

        Raises:
            UpstreamError: ``upstream_died``, ``upstream_timeout``.
        """
        try:
            body = await self._response.read()
        except (aiohttp.ClientError, OSError) as error:
            raise translate(error, self._model) from error
        self.finish()
        return body

    async def must_be_good(self) -> None:
        """Turn an answer other than 200 into an error.

        Raises:
            UpstreamError: ``upstream_refused`` with the engine's own words, or why that could not be read.
        """
        status = self._response.status
        if status == _OK:
            return
        body = await self.body()
        if status in _UNAUTHORISED:
            raise UpstreamError("upstream_unreachable", f"The engine of {self._model} refused the key it was given.")
        raise refusal(body, self._model, status)

    def died(self) -> UpstreamError:
        """The error for an answer that ended too early."""
        return UpstreamError("upstream_died", f"The engine of {self._model} ended before its answer was complete.")


@asynccontextmanager
async def open_upstream(lease: Lease, post: Post) -> AsyncIterator[Upstream]:
    """Post to the engine; what is left unread at the end is cut off, and the slot abandoned.

    Closing the connection, rather than giving it back to the pool, is what makes the engine stop.

    Raises:
        UpstreamError: any of its codes.
    """
    response: aiohttp.ClientResponse | None = None
    upstream: Upstream | None = None
    reached = True
    try:
        try:
            response = await _send(lease.launch, post)
        except RuntimeError as error:
            # The session is closed: the launch has just ended, and nothing was sent.
            reached = False
            raise UpstreamError("upstream_unreachable", f"The engine of {post.model} has just ended.") from error
        except (aiohttp.ClientError, OSError) as error:
            reached = not isinstance(error, aiohttp.ClientConnectorError | aiohttp.ConnectionTimeoutError)
            raise translate(error, post.model) from error
        upstream = Upstream(post.model, response, lease.done)
        await upstream.must_be_good()
        yield upstream
    finally:
        if reached and (upstream is None or not upstream.complete):
            lease.abandon()
        if response is not None:
            response.close()  # nothing is left to close where the answer was read to its end


async def _send(launch: Launch, post: Post) -> aiohttp.ClientResponse:
    try:
        return await _send_once(launch, post)
    except (aiohttp.ClientConnectorError, aiohttp.ServerTimeoutError):
        raise
    except (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError):
        # An idle connection that the engine had closed: nothing of an answer came, so once more on another one.
        return await _send_once(launch, post)


async def _send_once(launch: Launch, post: Post) -> aiohttp.ClientResponse:
    # Nothing of the client's own headers; no compression, since frames are passed on as they are.
    headers = {**launch.headers, "Content-Type": "application/json", "Accept-Encoding": "identity"}
    if post.streamed:
        # llama-server closes after each stream, and still promises keep-alive unless it is told: the pool would hand
        # out a connection that is about to end.
        headers["Connection"] = "close"
    return await launch.session.post(
        launch.base_url + post.path,
        data=io.BytesIO(post.body) if len(post.body) > _LARGE_BYTES else post.body,
        headers=headers,
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_SECONDS, sock_read=post.idle_timeout),
        allow_redirects=False,
    )


def translate(error: Exception, model: str) -> UpstreamError:
    """What a foreign exception means."""
    if isinstance(error, aiohttp.ClientConnectorError | aiohttp.ConnectionTimeoutError):
        return UpstreamError("upstream_unreachable", f"The engine of {model} takes no connection.")
    if isinstance(error, TimeoutError):
        return UpstreamError("upstream_timeout", f"The engine of {model} fell silent and was given up.")
    if isinstance(error, FrameTooLongError):
        return UpstreamError("upstream_died", f"The engine of {model} sent something that can't be read: {error}.")
    return UpstreamError("upstream_died", f"The engine of {model} died or cut the connection during this request.")


def refusal(data: bytes, model: str, status: int | None = None) -> UpstreamError:
    """The error for an engine's own error answer; without a status, the one inside counts if the client is to blame."""
    try:
        parsed: Any = orjson.loads(data)
    except orjson.JSONDecodeError:
        parsed = None
    inside = parsed.get("error") if isinstance(parsed, dict) and "error" in parsed else parsed
    facts: dict[str, Any] = inside if isinstance(inside, dict) else {"message": inside}
    said = facts.get("message")
    message = said if isinstance(said, str) and said else f"The engine of {model} refused the request without a reason."
    if status is None:
        code = facts.get("code")
        if not isinstance(code, int) or not 400 <= code < 500:  # noqa: PLR2004  the client's faults in HTTP
            return UpstreamError("upstream_died", f"The engine of {model} failed: {message}")
        status = code
    kind = facts.get("type") if isinstance(facts.get("type"), str) else None
    extras = {key: value for key, value in facts.items() if key not in {"message", "type", "code", "param"}}
    return UpstreamError(
        "upstream_refused",
        message,
        status=status if status in _ERROR_STATUS else 502,
        type=kind,
        upstream_code=_CODES.get(kind or "", kind),
        extras=extras,
    )
