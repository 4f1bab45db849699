"""Ollama's API: chats, texts, vectors, and what there is and runs."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import partial
from typing import Any

import orjson
from aiohttp import web

import supervisor
from engines.contract import Capability
from supervisor.errors import CallerError, UpstreamError
from supervisor.gateway.chat_forms import Asked, ChatForm, Chats
from supervisor.gateway.client_stream import StreamForm
from supervisor.gateway.errors import Api
from supervisor.gateway.exchange import Exchange, exchange_of
from supervisor.gateway.gate import Gate
from supervisor.gateway.ollama_listings import Listings
from supervisor.gateway.relay import Call, Relay
from supervisor.gateway.request_body import Body, require_input
from supervisor.gateway.request_options import take_keep_alive
from supervisor.gateway.side_calls import SideCalls
from supervisor.gateway.translate.ollama_answer import Lines, Place, in_message, in_response, whole
from supervisor.gateway.translate.ollama_request import (
    chat_of_chat,
    chat_of_generate,
    completion_of_generate,
    is_load,
    spellings,
    tagged,
)
from supervisor.gateway.translate.usage import tokens

# The version of Ollama whose API this is: its clients compare it with the least that they need.
_API_VERSION = "0.12.0"
_EMBEDDINGS = "/v1/embeddings"
_NOT_RUNNING = frozenset({"stopped", "failed"})


class OllamaApi:
    """Handlers of Ollama's paths; models are named with and without ``:latest``."""

    def __init__(self, chats: Chats, relay: Relay, side: SideCalls, gate: Gate, listings: Listings) -> None:
        self._chats = chats
        self._relay = relay
        self._side = side
        self._gate = gate
        self._listings = listings

    def routes(self) -> list[web.RouteDef]:
        """What to mount."""
        return [
            web.post("/api/chat", self.chat),
            web.post("/api/generate", self.generate),
            web.post("/api/embed", self.embed),
            web.post("/api/embeddings", self.embeddings),
            web.get("/api/tags", self.tags),
            web.get("/api/ps", self.running),
            web.post("/api/show", self.show),
            web.get("/api/version", self.version),
        ]

    async def chat(self, request: web.Request) -> web.StreamResponse:
        """``POST /api/chat``; without messages it loads the model, or unloads it."""
        return await self._generate(request, _CHAT, "messages")

    async def generate(self, request: web.Request) -> web.StreamResponse:
        """``POST /api/generate``; without a prompt it loads the model, or unloads it."""
        return await self._generate(request, _GENERATE, "prompt")

    async def embed(self, request: web.Request) -> web.StreamResponse:
        """``POST /api/embed``: vectors of a text, or of several."""
        exchange = exchange_of(request)
        answer = await self._vectors(request, "input")
        vectors = [row["embedding"] for row in answer["data"]]
        load = exchange.waits.load_seconds if exchange.waits else 0.0
        counted = tokens(answer.get("usage"), "prompt_tokens")
        made = {"model": answer.get("model"), "embeddings": vectors, "prompt_eval_count": counted}
        return _json({**made, "load_duration": round(load * 1e9)})

    async def embeddings(self, request: web.Request) -> web.StreamResponse:
        """``POST /api/embeddings``: the older form, of one text."""
        answer = await self._vectors(request, "prompt")
        return _json({"embedding": answer["data"][0]["embedding"]})

    async def tags(self, request: web.Request) -> web.Response:
        """``GET /api/tags``."""
        await self._chats.known()
        return _json(self._listings.tags(exchange_of(request).caller))

    async def running(self, request: web.Request) -> web.Response:
        """``GET /api/ps``."""
        await self._chats.known()
        return _json(self._listings.running(exchange_of(request).caller))

    async def show(self, request: web.Request) -> web.Response:
        """``POST /api/show``."""
        body = await self._chats.read(request, "name")
        await self._chats.known()
        return _json(self._listings.show(exchange_of(request).caller, body.model))

    async def version(self, _request: web.Request) -> web.Response:
        """``GET /api/version``."""
        return _json({"version": _API_VERSION, "enginehouse": supervisor.__version__})

    async def _generate(self, request: web.Request, form: ChatForm, key: str) -> web.StreamResponse:
        body = await self._chats.read(request, "name")
        if is_load(body.json, key):
            return await self._load(request, body, in_message if key == "messages" else in_response)
        return await self._chats.serve(request, form, body)

    async def _load(self, request: web.Request, body: Body, place: Place) -> web.Response:
        """Have the model ready, or with ``keep_alive: 0`` gone as soon as nobody uses it."""
        keep_alive = take_keep_alive(request.headers, body.json)
        exchange = exchange_of(request)
        with self._gate.admit_caller(exchange.caller):
            await self._chats.known()
            card = self._listings.find(exchange.caller, body.model)
            entry = await self._chats.find(request, (card.id,), Capability(card.capabilities[0]))
            if keep_alive != 0 or card.state not in _NOT_RUNNING:
                await self._side.load(exchange, entry, keep_alive)
        now = datetime.now(UTC).isoformat().replace("+00:00", "Z")
        done = {"done": True, "done_reason": "unload" if keep_alive == 0 else "load"}
        return _json({"model": tagged(entry.id), "created_at": now, **place("", "", []), **done})

    async def _vectors(self, request: web.Request, key: str) -> dict[str, Any]:
        exchange = exchange_of(request)
        with self._gate.admit_caller(exchange.caller):
            body = await self._chats.read(request, "name")
            keep_alive = take_keep_alive(request.headers, body.json)
            sent = {"model": body.model, "input": body.json.get(key), "encoding_format": "float"}
            if body.json.get("dimensions") is not None:
                sent["dimensions"] = body.json["dimensions"]
            require_input(sent)
            entry = await self._chats.find(request, spellings(body.model), Capability.EMBEDDINGS)
            call = Call(exchange, entry, _EMBEDDINGS, sent, large=body.large, keep_alive=keep_alive)
            answer = _parsed(await self._relay.whole(call))
        if answer is None:
            raise UpstreamError("upstream_died", f"The engine of {entry.id} sent something that is no answer.")
        return answer


def _parsed(body: bytes) -> dict[str, Any] | None:
    """The engine's vectors; None: it is something else."""
    try:
        answer = orjson.loads(body)
        complete = bool(answer["data"]) and all("embedding" in row for row in answer["data"])
    except (orjson.JSONDecodeError, TypeError, KeyError):
        return None
    return answer if complete else None


def _understood(chat: dict[str, Any], body: dict[str, Any], exchange: Exchange, place: Place) -> Asked:
    facts: dict[str, Any] = {
        "place": place,
        "thinking": body.get("think") is not False,
        "load_seconds": lambda: exchange.waits.load_seconds if exchange.waits else 0.0,
    }
    return Asked(chat, partial(whole, **facts), partial(Lines, **facts))


def _read_chat(body: dict[str, Any], exchange: Exchange) -> Asked:
    return _understood(chat_of_chat(body), body, exchange, in_message)


def _read_generate(body: dict[str, Any], exchange: Exchange) -> Asked:
    if not isinstance(body.get("prompt") or "", str):
        raise CallerError("invalid_request", "`prompt` must be a text.", param="prompt")
    asked = completion_of_generate(body) if body.get("raw") else chat_of_generate(body)
    return _understood(asked, body, exchange, in_response)


# Its libraries read every line as an answer: there is no way to say that one waits.
_LINES = StreamForm("application/x-ndjson", waiting=None)
_CHAT = ChatForm(Api.OLLAMA, _LINES, _read_chat, spellings)
_GENERATE = ChatForm(Api.OLLAMA, _LINES, _read_generate, spellings)


def _json(value: Any) -> web.Response:
    return web.Response(body=orjson.dumps(value), content_type="application/json")
