"""``/admin/v1/builds``: what is known of builds, and an operator's word on them."""

from __future__ import annotations

import orjson
from aiohttp import web

from supervisor.gateway.ports import BuildControl


class BuildsApi:
    """Handlers for the owner and the owner's scripts."""

    def __init__(self, control: BuildControl) -> None:
        self._control = control

    def routes(self) -> list[web.RouteDef]:
        """What to mount."""
        return [
            web.get("/admin/v1/builds", self.list),
            web.get("/admin/v1/builds/{name:.+}", self.inspect),
            web.post("/admin/v1/builds/{name:.+}/clear", self.clear),
            web.post("/admin/v1/builds/{name:.+}/pin", self.pin),
            web.post("/admin/v1/builds/{name:.+}/unpin", self.unpin),
        ]

    async def list(self, _request: web.Request) -> web.Response:
        """``GET /admin/v1/builds``: the rows of the status."""
        return _json({"builds": self._control.rows()})

    async def inspect(self, request: web.Request) -> web.Response:
        """``GET /admin/v1/builds/{name}``: one row, by name or fingerprint, or the beginning of one."""
        return _json(self._control.inspect(request.match_info["name"]))

    async def clear(self, request: web.Request) -> web.Response:
        """``POST /admin/v1/builds/{name}/clear``: forget its strikes."""
        return _json(self._control.clear(request.match_info["name"]))

    async def pin(self, request: web.Request) -> web.Response:
        """``POST /admin/v1/builds/{name}/pin``: prefer it for its engine, also while it is set aside."""
        return _json(self._control.pin(request.match_info["name"], on=True))

    async def unpin(self, request: web.Request) -> web.Response:
        """``POST /admin/v1/builds/{name}/unpin``: no longer."""
        return _json(self._control.pin(request.match_info["name"], on=False))


def _json(value: object) -> web.Response:
    return web.Response(body=orjson.dumps(value), content_type="application/json")
