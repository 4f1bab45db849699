"""``/v1/models``: what can be asked for, in OpenAI's form with our own facts beside it, or in Anthropic's."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import orjson
from aiohttp import web

from supervisor.errors import ModelError
from supervisor.gateway.errors import Api, api_of
from supervisor.gateway.exchange import exchange_of
from supervisor.gateway.ports import ModelCard
from supervisor.models.catalog import nearest_name

_OWNER = "enginehouse"
# Anthropic's own limits of a page.
_USUAL_ROWS, _MOST_ROWS = 20, 1000


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
        cards = [card for card in self._seen_by(request) if card.broken is None and not card.unlisted]
        if _is_anthropics(request):
            return _json(_page([_anthropic_row(card) for card in cards], request.query))
        return _json({"object": "list", "data": [_row(card) for card in cards]})

    async def one(self, request: web.Request) -> web.Response:
        """``GET /v1/models/{id}``, by id or alias."""
        await self._known()
        card = _find(self._seen_by(request), request.match_info["id"])
        return _json(_anthropic_row(card) if _is_anthropics(request) else _row(card))

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
    row = {
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
    if card.pictures is None:
        return row
    reads = ["text", "image"] if card.pictures.get("supportsImg2Img") else ["text"]
    return {**row, "modalities": {"input": reads, "output": ["image"]}, "pictures": card.pictures}


def _is_anthropics(request: web.Request) -> bool:
    return api_of(request.path, request.headers) is Api.ANTHROPIC


def _anthropic_row(card: ModelCard) -> dict[str, Any]:
    # Where the date is not known, Anthropic's form wants the beginning of time.
    made = datetime.fromtimestamp(card.created or 0, UTC).isoformat().replace("+00:00", "Z")
    return {
        "type": "model",
        "id": card.id,
        "display_name": card.id,
        "created_at": made,
        "lifecycle": "active",
        "max_input_tokens": card.context_length,
        "max_tokens": card.context_length,
    }


def _page(rows: list[dict[str, Any]], query: Mapping[str, str]) -> dict[str, Any]:
    """The part of the rows that was asked for: ``limit`` of them, after one or before one."""
    said = query.get("limit", "")
    limit = int(said) if said.isascii() and said.isdigit() and len(said) < len(str(_MOST_ROWS)) + 1 else _USUAL_ROWS
    limit = min(max(1, limit), _MOST_ROWS)
    ids = [row["id"] for row in rows]
    after, before = query.get("after_id"), query.get("before_id")
    if after in ids:
        rows = rows[ids.index(after) + 1 :]
    elif before in ids:
        rows = rows[: ids.index(before)]
    page = rows[-limit:] if before in ids and after not in ids else rows[:limit]
    first, last = (page[0]["id"], page[-1]["id"]) if page else (None, None)
    return {"data": page, "has_more": len(rows) > len(page), "first_id": first, "last_id": last}


def _json(value: Any) -> web.Response:
    return web.Response(body=orjson.dumps(value), content_type="application/json")
