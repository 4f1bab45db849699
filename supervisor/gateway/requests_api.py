"""``/admin/v1/requests``: why a request of the last hour went as it did."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import orjson
from aiohttp import web

from supervisor.errors import CallerError

_LONGEST_SHOWN = 100


class RequestsApi:
    """Handlers for the owner and the owner's scripts; ``explain`` gives None for what it does not know."""

    def __init__(self, explain: Callable[[str], dict[str, Any] | None]) -> None:
        self._explain = explain

    def routes(self) -> list[web.RouteDef]:
        """What to mount."""
        return [web.get("/admin/v1/requests/{id}", self.explain)]

    async def explain(self, request: web.Request) -> web.Response:
        """``GET /admin/v1/requests/{id}``: what a request waited for, who went for it, and how it ended."""
        name = request.match_info["id"]
        found = self._explain(name)
        if found is None:
            raise CallerError(
                "request_not_found",
                f"No request {name[:_LONGEST_SHOWN]!r} is known: the last hour's (10000 at most) are kept, until the "
                "daemon ends. An answer names its request in x-request-id.",
            )
        return web.Response(body=orjson.dumps(found, default=str), content_type="application/json")
