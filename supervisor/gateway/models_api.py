"""``/v1/models``: what can be asked for, in OpenAI's form with our own facts beside it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import orjson
from aiohttp import web

from supervisor.errors import ModelError
from supervisor.gateway.exchange import exchange_of
from supervisor.gateway.ports import ModelCard
from supervisor.models.catalog import nearest_name

_OWNER = "enginehouse"


class ModelsApi:
    """Lists the models that the caller may use; broken ones are left out, and say why when asked for by name."""

    def __init__(self, models: Callable[[], Sequence[ModelCard]], known: Callable[[], Awaitable[None]]) -> None:
        self._models = models
        self._known = known

    def routes(self) -> list[web.RouteDef]:
        """What to mount. Ids may hold slashes."""
        return [web.get("/v1/models", self.listing), web.get("/v1/models/{id:.+}", self.one)]

    async def listing(self, request: web.Request) -> web.Response:
        """``GET /v1/models``."""
        await self._known()
        rows = [_row(card) for card in self._seen_by(request) if card.broken is None and not card.unlisted]
        return _json({"object": "list", "data": rows})

    async def one(self, request: web.Request) -> web.Response:
        """``GET /v1/models/{id}``, by id or alias."""
        await self._known()
        return _json(_row(_find(self._seen_by(request), request.match_info["id"])))

    def _seen_by(self, request: web.Request) -> list[ModelCard]:
        caller = exchange_of(request).caller
        return [card for card in self._models() if caller.sees(card.id, card.aliases)]


def _find(cards: Sequence[ModelCard], name: str) -> ModelCard:
    found = next((card for card in cards if name == card.id or name in card.aliases), None)
    if found is None:
        names = [known for card in cards if card.broken is None for known in (card.id, *card.aliases)]
        near = nearest_name(name, names)
        hint = f" Did you mean {near!r}?" if near else " GET /v1/models lists the models that there are."
        raise ModelError("model_not_found", f"There is no model {name!r}.{hint}", param="model")
    if found.broken is not None:
        raise ModelError("model_broken", f"The model {found.id!r} can't be served: {found.broken}")
    return found


def _row(card: ModelCard) -> dict[str, Any]:
    return {
        "id": card.id,
        "object": "model",
        # OpenAI's clients need a number here; the listing has no other place for "not known".
        "created": card.created or 0,
        "owned_by": _OWNER,
        "aliases": card.aliases,
        "capabilities": card.capabilities,
        "context_length": card.context_length,
        "state": card.state,
    }


def _json(value: Any) -> web.Response:
    return web.Response(body=orjson.dumps(value), content_type="application/json")
