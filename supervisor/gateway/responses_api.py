"""OpenAI's Responses: ours on every engine, since they hold state; translated to chats and back."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

import anyio
import anyio.to_thread
import orjson
from aiohttp import web

from supervisor.clock import Clock
from supervisor.errors import CallerError, SupervisorError
from supervisor.events import EventBus
from supervisor.gateway.caller import EVERY_ROLE
from supervisor.gateway.chat_forms import Asked, ChatForm, Chats
from supervisor.gateway.client_stream import SERVER_SENT_EVENTS
from supervisor.gateway.errors import Api
from supervisor.gateway.events import ResponseNotStored
from supervisor.gateway.exchange import Exchange, exchange_of
from supervisor.gateway.gate import Gate
from supervisor.gateway.request_body import THREAD_BYTES, Body, require_messages, well_formed
from supervisor.gateway.response_store import ResponseStore, StoredResponse
from supervisor.gateway.side_calls import SideCalls
from supervisor.gateway.translate.responses_answer import ResponseEvents
from supervisor.gateway.translate.responses_request import as_stored, chain_messages, items_of, to_chat
from supervisor.gateway.translate.usage import timing_fields

_PATH = "/v1/responses"
_MOST_ITEMS = 100


class ResponsesApi:
    """Handlers of Responses."""

    def __init__(
        self, chats: Chats, side: SideCalls, gate: Gate, store: ResponseStore, clock: Clock, bus: EventBus
    ) -> None:
        self._chats = chats
        self._side = side
        self._gate = gate
        self._store = store
        self._now = clock.wall
        self._bus = bus
        self._running: dict[tuple[str, str], anyio.CancelScope] = {}

    def routes(self) -> list[web.RouteDef]:
        """What to mount."""
        return [
            web.post(_PATH, self.create),
            web.post(f"{_PATH}/input_tokens", self.count_tokens),
            web.get(f"{_PATH}/{{id}}", self.retrieve),
            web.delete(f"{_PATH}/{{id}}", self.delete),
            web.get(f"{_PATH}/{{id}}/input_items", self.input_items),
            web.post(f"{_PATH}/{{id}}/cancel", self.cancel),
        ]

    async def create(self, request: web.Request) -> web.StreamResponse:
        """``POST /v1/responses``."""
        exchange = exchange_of(request)
        owner = _owner(exchange)
        body, before = await self._with_before(await self._chats.read(request), owner)
        with well_formed():
            making = _Making(body, before, exchange, self._now())
        form = ChatForm(
            Api.RESPONSES,
            SERVER_SENT_EVENTS,
            lambda _body, _exchange: making.asked(self._keep(making)),
            failed=making.failed,
            guard=partial(self._cancellable, making.id, owner),
        )
        with self._store.writing(making.id) if making.stored else nullcontext():
            return await self._chats.serve(request, form, body)

    async def count_tokens(self, request: web.Request) -> web.Response:
        """``POST /v1/responses/input_tokens``: of the prompt as the engine's own template makes it."""
        exchange = exchange_of(request)
        with self._gate.admit_caller(exchange.caller):
            body, before = await self._with_before(await self._chats.read(request), _owner(exchange))
            with well_formed():
                chat = to_chat(body.json, before)
            require_messages(chat)
            entry = await self._chats.find(request, (body.model,))
            count = await self._side.count_tokens(exchange, entry, chat, large=body.large)
        return _json(orjson.dumps({"object": "response.input_tokens", "input_tokens": count}))

    async def retrieve(self, request: web.Request) -> web.Response:
        """``GET /v1/responses/{id}``."""
        if request.query.get("stream", "false") not in {"", "false", "0"}:
            raise CallerError("invalid_request", "A response that was given can't be streamed again.", param="stream")
        response, _ = await self._store.get(*_named(request))
        return _json(response)

    async def delete(self, request: web.Request) -> web.Response:
        """``DELETE /v1/responses/{id}``."""
        known, owner = _named(request)
        await self._store.delete(known, owner)
        return _json(orjson.dumps({"id": known, "object": "response", "deleted": True}))

    async def input_items(self, request: web.Request) -> web.Response:
        """``GET /v1/responses/{id}/input_items``: newest first unless ``order=asc``."""
        known, owner = _named(request)
        _, given = await self._store.get(known, owner)
        items = as_stored(orjson.loads(given), known)
        if request.query.get("order", "desc") != "asc":
            items.reverse()
        after = request.query.get("after")
        if after is not None:
            ids = [item["id"] for item in items]
            items = items[ids.index(after) + 1 :] if after in ids else []
        said = request.query.get("limit", "20")
        limit = min(max(int(said), 1), _MOST_ITEMS) if said.isascii() and said.isdigit() and len(said) < 9 else 20  # noqa: PLR2004  as OpenAI's
        page = items[:limit]
        first, last = (page[0]["id"], page[-1]["id"]) if page else (None, None)
        more = len(items) > len(page)
        return _json(
            orjson.dumps({"object": "list", "data": page, "first_id": first, "last_id": last, "has_more": more})
        )

    async def cancel(self, request: web.Request) -> web.Response:
        """``POST /v1/responses/{id}/cancel``: cuts one that is being made; one that is complete is given as it is."""
        known, owner = _named(request)
        scope = self._running.get((known, owner))
        if scope is None:
            response, _ = await self._store.get(known, owner)
            return _json(response)
        scope.cancel()
        return _json(orjson.dumps({"id": known, "object": "response", "status": "cancelled", "output": []}))

    @contextmanager
    def _cancellable(self, response_id: str, owner: str) -> Iterator[None]:
        with anyio.CancelScope() as scope:
            self._running[response_id, owner] = scope
            try:
                yield
            finally:
                del self._running[response_id, owner]
        if scope.cancelled_caught:
            raise CallerError("response_cancelled", f"The response {response_id} was cancelled by another request.")

    async def _with_before(self, body: Body, owner: str) -> tuple[Body, list[dict[str, Any]]]:
        """The messages of the chain that the request goes on from; with a long one the request is large too."""
        previous = body.json.get("previous_response_id")
        if previous is None:
            return body, []
        if not isinstance(previous, str):
            raise CallerError("invalid_request", "`previous_response_id` must be a text.", param="previous_response_id")
        records = await self._store.chain(previous, owner)
        if sum(len(given) + len(output) for given, output in records) <= THREAD_BYTES:
            return body, chain_messages(records)
        return replace(body, large=True), await anyio.to_thread.run_sync(chain_messages, records)

    def _keep(self, making: _Making) -> Callable[[], Any]:
        async def keep() -> None:
            if making.stored:
                record = await anyio.to_thread.run_sync(making.record) if making.large else making.record()
                why = await self._store.put(record)
                if why is not None:
                    self._bus.publish(ResponseNotStored(making.request_id, making.id, why))

        return keep


class _Making:
    """One response while it is made."""

    def __init__(self, body: Body, before: list[dict[str, Any]], exchange: Exchange, now: float) -> None:
        self.id = f"resp_{secrets.token_hex(24)}"
        self.stored = body.json.get("store") is not False
        self.large = body.large
        self._body = body.json
        self._exchange = exchange
        self._now = now
        self._items = items_of(body.json.get("input"))
        self._chat = to_chat(body.json, before)
        self._events = ResponseEvents(
            self.id, int(now), body.json, lambda timings: timing_fields(timings, exchange.waits)
        )

    @property
    def request_id(self) -> str:
        """Of the request that it is made for."""
        return self._exchange.request_id

    def asked(self, keep: Callable[[], Any]) -> Asked:
        """As the shell takes it."""

        async def settle() -> bytes:
            await keep()
            return self._events.last() if self._chat.get("stream") else b""

        return Asked(self._chat, self._events.whole, lambda: self._events, settle)

    def failed(self, error: SupervisorError) -> bytes:
        """The last event of one that failed."""
        return self._events.failed(error.code, error.message)

    def record(self) -> StoredResponse:
        """What is kept of it."""
        response = self._events.response()
        return StoredResponse(
            id=self.id,
            owner=_owner(self._exchange),
            created=self._now,
            previous_id=self._body.get("previous_response_id"),
            input=orjson.dumps(self._items),
            output=orjson.dumps(response["output"]),
            response=orjson.dumps(response),
        )


def _owner(exchange: Exchange) -> str:
    """Whose a response is: a caller's own, or everybody's where no token is asked for."""
    caller = exchange.caller
    return "" if caller.roles is EVERY_ROLE else caller.name


def _named(request: web.Request) -> tuple[str, str]:
    return request.match_info["id"], _owner(exchange_of(request))


def _json(body: bytes) -> web.Response:
    return web.Response(body=body, content_type="application/json")
