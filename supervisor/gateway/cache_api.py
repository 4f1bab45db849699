"""``/admin/v1/cache``: the conversations that are kept on disk."""

from __future__ import annotations

from typing import Any, Protocol

import orjson
from aiohttp import web


class KeptConversations(Protocol):
    """What of conversations is on disk."""

    def rows(self) -> list[dict[str, Any]]:
        """Each file, the one used last first."""
        ...

    async def clear(self, model: str | None) -> tuple[int, int]:
        """Remove the files of a model, or all; how many, and their bytes."""
        ...


class CacheApi:
    """Handlers for the owner and the owner's scripts."""

    def __init__(self, kept: KeptConversations) -> None:
        self._kept = kept

    def routes(self) -> list[web.RouteDef]:
        """What to mount."""
        return [web.get("/admin/v1/cache", self.list), web.post("/admin/v1/cache/clear", self.clear)]

    async def list(self, _request: web.Request) -> web.Response:
        """``GET /admin/v1/cache``: conversations on disk, by model, tokens, bytes and what they save; no text."""
        return _json({"files": self._kept.rows()})

    async def clear(self, request: web.Request) -> web.Response:
        """``POST /admin/v1/cache/clear``: remove them all, or with ``?model=M`` those of a model."""
        files, size = await self._kept.clear(request.query.get("model") or None)
        return _json({"files": files, "bytes": size})


def _json(value: object) -> web.Response:
    return web.Response(body=orjson.dumps(value), content_type="application/json")
