"""One client's connection. What is no HTTP request is refused in our own form, before any handler sees it."""

from __future__ import annotations

import secrets
import traceback
from typing import Any

from aiohttp import http_exceptions, web

from supervisor.errors import CallerError, SupervisorError
from supervisor.events import EventBus, InternalError, RequestUnreadable
from supervisor.gateway.errors import answer, internal_error

# Never the library's own words: they quote what was sent, keys among it.
_REASONS: tuple[tuple[type[Exception], str], ...] = (
    (http_exceptions.LineTooLong, "its first line or one of its headers is too long"),
    (
        http_exceptions.ContentEncodingError,
        "its Content-Encoding is none that can be undone here",
    ),
    (http_exceptions.TransferEncodingError, "its Transfer-Encoding is broken"),
    (http_exceptions.ContentLengthError, "its Content-Length is no length"),
    (http_exceptions.InvalidHeader, "one of its headers is malformed"),
    (http_exceptions.InvalidURLError, "its path is no path"),
)
_UNKNOWN = "it is no HTTP request"
_SERVER_FAULT = 500


class Conversation(web.RequestHandler):
    """aiohttp's protocol, with refusals that are JSON, and a line in the log instead of a traceback."""

    def __init__(self, manager: web.Server, bus: EventBus, **settings: Any) -> None:
        super().__init__(manager, **settings)
        self._bus = bus

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,  # noqa: ARG002  aiohttp's words quote the request
    ) -> web.StreamResponse:
        """The answer to what could not be read; the connection is closed after it.

        Raises:
            ConnectionError: an answer has begun.
        """
        if request.writer.output_size > 0:
            raise ConnectionError("the answer has begun")
        request_id = f"req-{secrets.token_hex(12)}"
        said = answer(self._explain(request, request_id, status, exc), request_id)
        headers = {**said.headers, "x-request-id": request_id, "Server": "enginehouse"}
        response = web.Response(status=said.status, headers=headers, body=said.body)
        response.force_close()
        return response

    def _explain(
        self, request: web.BaseRequest, request_id: str, status: int, exc: BaseException | None
    ) -> SupervisorError:
        if status >= _SERVER_FAULT:
            trace = "".join(traceback.format_exception(exc)) if exc is not None else ""
            self._bus.publish(InternalError(f"request {request_id}", repr(exc), trace))
            return internal_error(request_id)
        reason = next((words for kind, words in _REASONS if isinstance(exc, kind)), _UNKNOWN)
        self._bus.publish(RequestUnreadable(request_id, request.remote or "local", reason))
        return CallerError("invalid_request", f"The request can't be read: {reason}.")
