"""What every request passes first and last: its id, its caller, errors in the API's form, one event at the end."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from aiohttp import web

from supervisor.clock import Clock
from supervisor.errors import CallerError, SupervisorError
from supervisor.events import EventBus
from supervisor.gateway.afterwards import Afterwards
from supervisor.gateway.caller import Caller
from supervisor.gateway.client_stream import ClientLeftError
from supervisor.gateway.doorkeeper import Doorkeeper
from supervisor.gateway.errors import answer, api_of
from supervisor.gateway.exchange import CLIENT_LEFT_STATUS, begin
from supervisor.gateway.standing import standing_of

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
# Asked every few seconds by machines: their ends are no news.
_QUIET = frozenset({"/", "/healthz", "/readyz", "/metrics", "/admin/v1/events", "/admin/v1/live"})
# ... but who was turned away is.
_REFUSED = frozenset({401, 403})


def front_door(
    door: Doorkeeper, clock: Clock, bus: EventBus, afterwards: Afterwards
) -> Callable[..., Awaitable[web.StreamResponse]]:
    """The one middleware."""

    @web.middleware
    async def pass_through(request: web.Request, handler: Handler) -> web.StreamResponse:
        if request.method == "GET":
            afterwards.flush()  # who looks sees what was, also a moment ago
        exchange = begin(request, Caller(door.address(request)), clock, bus)
        exchange.headers |= door.headers(request)
        status = CLIENT_LEFT_STATUS
        response: web.StreamResponse | None
        try:
            try:
                response = door.preflight(request)
                if response is None:
                    exchange.caller = await door.admit(request)
                    exchange.standing = standing_of(exchange.caller, request.headers)
                    response = await handler(request)
            except ClientLeftError:
                exchange.client_left()
                # Nobody reads it; aiohttp drops it with the connection.
                response = web.Response(status=CLIENT_LEFT_STATUS)
            except Exception as error:  # noqa: BLE001  the last place: nothing may reach aiohttp's own error page
                known = exchange.failed(_known(error, request))
                said = answer(known, exchange.request_id, api_of(request.path, request.headers))
                response = web.Response(status=said.status, headers=said.headers, body=said.body)
            status = response.status
            if not response.prepared:
                response.headers.update(exchange.headers)
        except asyncio.CancelledError:
            exchange.client_left()
            raise
        finally:
            if request.path not in _QUIET or status in _REFUSED:
                # Nobody waits for the log.
                afterwards.later(exchange.finished(request, status))
        return response

    return pass_through


def _known(error: Exception, request: web.Request) -> Exception:
    """Refusals of aiohttp's own as ours; everything else as it is."""
    if isinstance(error, SupervisorError) or not isinstance(error, web.HTTPException):
        return error
    if isinstance(error, web.HTTPMethodNotAllowed):
        allowed = ", ".join(sorted(error.allowed_methods))
        return CallerError(
            "method_not_allowed", f"{request.path} takes {allowed}, not {request.method}.", allow=allowed
        )
    if isinstance(error, web.HTTPNotFound):
        return CallerError("not_found", f"There is nothing at {request.path}. GET / says what there is.")
    return CallerError("invalid_request", f"The request can't be served: {error.reason}.")
