"""For machines that look after this one: is it alive, does it take requests, what do its numbers say."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import orjson
from aiohttp import web

from supervisor.gateway.gate import Gate


class HealthApi:
    """Handlers that touch no engine."""

    def __init__(
        self,
        readiness: Callable[[], tuple[bool, str]],
        metrics: Callable[[], Awaitable[tuple[bytes, str]]],
        gate: Gate,
    ) -> None:
        self._readiness = readiness
        self._metrics = metrics
        self._gate = gate

    def routes(self) -> list[web.RouteDef]:
        """What to mount."""
        return [
            web.get("/healthz", self.alive),
            web.get("/readyz", self.ready),
            web.get("/metrics", self.metrics),
        ]

    async def alive(self, _request: web.Request) -> web.Response:
        """``GET /healthz``: 200 as long as the loop runs."""
        return web.Response(body=b'{"status":"ok"}', content_type="application/json")

    async def ready(self, _request: web.Request) -> web.Response:
        """``GET /readyz``: 200 if new requests are taken, else 503 with the reason."""
        ready, reason = (False, "draining") if self._gate.draining else self._readiness()
        body = orjson.dumps({"status": "ready" if ready else "not_ready", "reason": reason})
        return web.Response(status=200 if ready else 503, body=body, content_type="application/json")

    async def metrics(self, _request: web.Request) -> web.Response:
        """``GET /metrics``: Prometheus text."""
        body, content_type = await self._metrics()
        return web.Response(body=body, headers={"Content-Type": content_type})
