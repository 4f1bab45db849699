"""One request to an engine: opened, read frame by frame, and closed so that the engine notices."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from supervisor.errors import UpstreamError
from supervisor.gateway.engine_connection import (
    EngineConnection,
    EngineConnectionError,
    NotReachedError,
    SilentError,
    StaleError,
    ask,
    post_bytes,
)
from supervisor.gateway.ports import Lease
from supervisor.gateway.translate.sse import FrameTooLongError, SseSplitter

_OK = 200
_UNAUTHORISED = frozenset({401, 403})
_ERROR_STATUS = range(400, 600)
# Types by which engines name what OpenAI's clients look for under another code.
_CODES: Mapping[str, str] = {"exceed_context_size_error": "context_length_exceeded"}


@dataclass(frozen=True, slots=True)
class Post:
    """What is sent to an engine.

    Attributes:
        model: for messages.
        idle_timeout: longest silence, in seconds.
        whole: the answer is no stream, so that its connection may be kept.
    """

    model: str
    path: str
    body: bytes
    idle_timeout: float
    whole: bool = False


class Upstream:
    """An engine's answer, being read.

    Attributes:
        complete: the engine said all that it had to say; until then, leaving means abandoning the slot.
    """

    def __init__(self, model: str, connection: EngineConnection, done: Callable[[], None]) -> None:
        self.complete = False
        self._done = done
        self._model = model
        self._connection = connection
        self._splitter = SseSplitter()

    def finish(self) -> None:
        """The engine has said all: its slot is idle, whatever the client still has to read."""
        self.complete = True
        self._done()

    async def frames(self, *, hurry: bool = True) -> list[bytes] | None:
        """The next complete frames, at least one; None when the engine has closed.

        ``hurry``: False: nobody waits for each of them, and more may come together, up to a tenth of a second later.

        Raises:
            UpstreamError: ``upstream_died``, ``upstream_timeout``.
        """
        while True:
            try:
                chunk = await self._connection.read(hurry=hurry)
                if not chunk:
                    return None
                frames = self._splitter.feed(chunk)
            except (EngineConnectionError, FrameTooLongError) as error:
                raise translate(error, self._model) from error
            if frames:
                return frames

    async def body(self) -> bytes:
        """The whole answer at once.

        Raises:
            UpstreamError: ``upstream_died``, ``upstream_timeout``.
        """
        try:
            body = await self._connection.read_all()
        except EngineConnectionError as error:
            raise translate(error, self._model) from error
        self.finish()
        return body

    async def must_be_good(self) -> None:
        """Turn an answer other than 200 into an error.

        Raises:
            StaleError: there is none, of a connection that was kept.
            UpstreamError: ``upstream_refused`` with the engine's own words, or why that could not be read.
        """
        try:
            status = await self._connection.status()
        except StaleError:
            raise
        except EngineConnectionError as error:
            raise translate(error, self._model) from error
        if status == _OK:
            return
        body = await self.body()
        if status in _UNAUTHORISED:
            raise UpstreamError("upstream_unreachable", f"The engine of {self._model} refused the key it was given.")
        raise refusal(body, self._model, status)

    def died(self) -> UpstreamError:
        """The error for an answer that ended too early."""
        return UpstreamError("upstream_died", f"The engine of {self._model} ended before its answer was complete.")


class open_upstream:  # noqa: N801  used as the function that a context manager often is
    """Post to the engine; what is left unread at the end is cut off, and the slot abandoned.

    Closing the connection is what makes the engine stop. Entering raises ``UpstreamError``, any of its codes.
    """

    __slots__ = ("_connection", "_lease", "_post", "_upstream")

    def __init__(self, lease: Lease, post: Post) -> None:
        self._lease = lease
        self._post = post
        self._connection: EngineConnection | None = None
        self._upstream: Upstream | None = None

    async def __aenter__(self) -> Upstream:
        lease, post = self._lease, self._post
        launch = lease.launch
        request = post_bytes(post.path, launch.headers, post.body, keeps=post.whole)
        kept = launch.kept.take()
        if isinstance(kept, EngineConnection):
            kept.again(request, post.idle_timeout)
            try:
                return await self._begun(kept)
            except StaleError:
                kept.close()  # the engine has answered nothing of it, and is asked again
        try:
            connection = await ask(launch.endpoint, request, post.idle_timeout)
        except NotReachedError as error:
            raise translate(error, post.model) from error
        except BaseException:
            lease.abandon()  # the engine may have got the request
            raise
        return await self._begun(connection)

    async def _begun(self, connection: EngineConnection) -> Upstream:
        self._connection = connection
        upstream = self._upstream = Upstream(self._post.model, connection, self._lease.done)
        try:
            await upstream.must_be_good()
        except StaleError:
            raise
        except BaseException:
            self._close()
            raise
        return upstream

    async def __aexit__(self, *_: object) -> None:
        self._close()

    def _close(self) -> None:
        complete = self._upstream is not None and self._upstream.complete
        if self._upstream is not None and not complete:
            self._lease.abandon()
        if self._connection is not None and complete and self._post.whole:
            self._connection.keep(self._lease.launch.kept)
        elif self._connection is not None:
            self._connection.close()


def translate(error: Exception, model: str) -> UpstreamError:
    """What a foreign exception means."""
    if isinstance(error, NotReachedError):
        return UpstreamError("upstream_unreachable", f"The engine of {model} takes no connection.")
    if isinstance(error, SilentError):
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
