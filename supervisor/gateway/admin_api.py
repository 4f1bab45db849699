"""``/admin/v1``: the state of everything, what happens, and loads by hand."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import Any

import orjson
from aiohttp import web

from supervisor.errors import CallerError
from supervisor.gateway.client_stream import ClientStream
from supervisor.gateway.exchange import exchange_of
from supervisor.gateway.gate import Gate
from supervisor.gateway.ports import ModelControl
from supervisor.gateway.sse_id import last_seen

_BEGUN = b": connected\n\n"


class AdminApi:
    """Handlers for the owner and the owner's scripts."""

    def __init__(
        self,
        status: Callable[[], dict[str, Any]],
        events: Callable[[int | None], AsyncGenerator[bytes, None]],
        control: ModelControl,
        reload: Callable[[], Awaitable[dict[str, Any]]],
        plan: Callable[[str], Awaitable[dict[str, Any]]],
        gate: Gate,
    ) -> None:
        self._status = status
        self._events = events
        self._control = control
        self._reload = reload
        self._plan = plan
        self._gate = gate

    def routes(self) -> list[web.RouteDef]:
        """What to mount. Ids may hold slashes."""
        return [
            web.get("/admin/v1/status", self.status),
            web.get("/admin/v1/events", self.events, allow_head=False),
            web.post("/admin/v1/reload", self.reload),
            web.get("/admin/v1/plan", self.plan),
            web.post("/admin/v1/plan", self.plan),
            web.post("/admin/v1/models/{id:.+}/load", self.load),
            web.post("/admin/v1/models/{id:.+}/unload", self.unload),
            web.post("/admin/v1/models/{id:.+}/pin", self.pin),
            web.post("/admin/v1/models/{id:.+}/unpin", self.unpin),
        ]

    async def status(self, _request: web.Request) -> web.Response:
        """``GET /admin/v1/status``."""
        return _json(self._status())

    async def events(self, request: web.Request) -> web.StreamResponse:
        """``GET /admin/v1/events``: server-sent events until the client leaves.

        ``Last-Event-ID``, or ``?after=`` for what can't set headers, brings what was missed; 0 all that is kept.
        """
        client = ClientStream(request, exchange_of(request))
        await client.send(_BEGUN)
        async with aclosing(self._events(last_seen(request))) as frames:
            async for frame in frames:
                await client.send(frame)
        return await client.finish()

    async def reload(self, _request: web.Request) -> web.Response:
        """``POST /admin/v1/reload``: what changed; 400 with every problem when the file can't be used."""
        return _json(await self._reload())

    async def plan(self, request: web.Request) -> web.Response:
        """``GET`` or ``POST /admin/v1/plan?model=M``: how the model would be launched now, and why; starts nothing."""
        model = request.query.get("model")
        if not model:
            raise CallerError("model_missing", "Say which model: /admin/v1/plan?model=NAME.")
        return _json(await self._plan(model))

    async def load(self, request: web.Request) -> web.Response:
        """``POST /admin/v1/models/{id}/load``: answers when the model is ready."""
        with self._gate.admit():
            loaded = await self._control.load(request.match_info["id"])
        return _json(loaded)

    async def unload(self, request: web.Request) -> web.Response:
        """``POST /admin/v1/models/{id}/unload``: answers when the model is stopped."""
        with self._gate.admit():
            unloaded = await self._control.unload(request.match_info["id"])
        return _json(unloaded)

    async def pin(self, request: web.Request) -> web.Response:
        """``POST /admin/v1/models/{id}/pin``: its engine is never evicted, until the daemon ends or the config says."""
        return _json(await self._control.pin(request.match_info["id"], on=True))

    async def unpin(self, request: web.Request) -> web.Response:
        """``POST /admin/v1/models/{id}/unpin``: its engine may be evicted."""
        return _json(await self._control.pin(request.match_info["id"], on=False))


def _json(value: Any) -> web.Response:
    return web.Response(body=orjson.dumps(value, default=str), content_type="application/json")
