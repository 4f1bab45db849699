"""OpenAI's API: chat, text completions, embeddings."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import orjson
from aiohttp import web

from engines.contract import Capability
from supervisor.gateway.client_stream import ClientLeftError, ClientStream
from supervisor.gateway.conversations import session_name
from supervisor.gateway.errors import event
from supervisor.gateway.exchange import exchange_of
from supervisor.gateway.gate import Gate
from supervisor.gateway.ports import Router
from supervisor.gateway.presets import apply_preset
from supervisor.gateway.relay import Call, Relay, understood
from supervisor.gateway.request_body import (
    read_body,
    require_documents,
    require_input,
    require_messages,
    require_prompt,
)
from supervisor.gateway.request_options import take_keep_alive
from supervisor.gateway.translate.passing import PassThrough
from supervisor.gateway.translate.timed import Timed
from supervisor.gateway.translate.tool_calls import CallWatch, recover_whole, watches_calls
from supervisor.gateway.translate.usage import timing_fields
from supervisor.gateway.translate.watched import Picker, Watched, Wrap


@dataclass(frozen=True, slots=True)
class _Kind:
    """One path: what it needs of a model and of a body; ``whole``: its answer's ``object``, None if never streamed."""

    path: str
    capability: Capability
    check: Callable[[dict[str, Any]], None]
    whole: str | None


_CHAT = _Kind("/v1/chat/completions", Capability.CHAT, require_messages, "chat.completion")
_TEXT = _Kind("/v1/completions", Capability.CHAT, require_prompt, "text_completion")
_JSON = {"Content-Type": "application/json"}
_EMBEDDINGS = _Kind("/v1/embeddings", Capability.EMBEDDINGS, require_input, None)


_RERANK = _Kind("/v1/rerank", Capability.RERANK, require_documents, None)


class OpenAiApi:
    """Handlers of the requests that reach an engine."""

    def __init__(self, router: Router, relay: Relay, gate: Gate, body_limit: int) -> None:
        self._router = router
        self._relay = relay
        self._gate = gate
        self._body_limit = body_limit

    def routes(self) -> list[web.RouteDef]:
        """What to mount."""
        return [
            web.post(_CHAT.path, self.chat),
            web.post(_TEXT.path, self.text),
            web.post(_EMBEDDINGS.path, self.embeddings),
            web.post(_RERANK.path, self.rerank),
            web.post("/v1/reranking", self.rerank),
        ]

    async def chat(self, request: web.Request) -> web.StreamResponse:
        """``POST /v1/chat/completions``."""
        return await self._serve(request, _CHAT)

    async def text(self, request: web.Request) -> web.StreamResponse:
        """``POST /v1/completions``."""
        return await self._serve(request, _TEXT)

    async def embeddings(self, request: web.Request) -> web.StreamResponse:
        """``POST /v1/embeddings``."""
        return await self._serve(request, _EMBEDDINGS)

    async def rerank(self, request: web.Request) -> web.StreamResponse:
        """``POST /v1/rerank``, also as ``/v1/reranking``."""
        return await self._serve(request, _RERANK)

    async def _serve(self, request: web.Request, kind: _Kind) -> web.StreamResponse:
        exchange = exchange_of(request)
        client = ClientStream(request, exchange)
        try:
            with self._gate.admit_caller(exchange.caller):
                answer = await self._answer(request, kind, client)
            if answer is not None:
                exchange.content_sent()
                return web.Response(body=answer, headers=_JSON)
        except ClientLeftError:
            raise
        except Exception as error:
            if not client.started:
                raise
            # The status is out: the error becomes the last event, and no [DONE] follows.
            await client.last_words(event(exchange.failed(error), exchange.request_id))
        return await client.finish()

    async def _answer(self, request: web.Request, kind: _Kind, client: ClientStream) -> bytes | None:
        """The whole answer; None when it was streamed."""
        body = await read_body(request, self._body_limit)
        kind.check(body.json)
        keep_alive = take_keep_alive(request.headers, body.json)
        await self._router.ready()
        exchange = exchange_of(request)
        caller = exchange.caller
        entry = self._router.resolve(body.model, kind.capability, lambda entry: caller.sees(entry.id, entry.aliases))
        exchange.model = entry.id
        apply_preset(entry, (body.model,), body.json)
        named = session_name(request.headers, body.json)
        call = Call(exchange, entry, kind.path, body.json, body.large, keep_alive, session=named)
        if kind.whole is None:
            return await self._relay.whole(call)
        watched = kind is _CHAT and watches_calls(body.json)
        if body.json.get("stream"):
            await self._relay.stream(call, client, _wrap(call, body.json["tools"] if watched else None))
            return None
        answer = await self._relay.folded(call, kind.whole)
        with understood(entry.id):
            made = recover_whole(answer, body.json["tools"]) if watched else answer
            if isinstance(made.get("usage"), dict):
                made["usage"] = {**made["usage"], **timing_fields(made.get("timings"), exchange.waits)}
            return orjson.dumps(made)


def _wrap(call: Call, tools: Any) -> Wrap | None:
    """What must be read of a stream on its way: calls in its text, and its usage; None: nothing."""
    usage = call.path == _TEXT.path or _asks_for_usage(call.body)
    if not usage and tools is None:
        return None

    def timing(timings: Any) -> dict[str, Any]:
        return timing_fields(timings, call.exchange.waits)

    def wrap(passing: PassThrough) -> Picker:
        picker: Picker = passing if tools is None else Watched(passing, CallWatch(tools))
        return Timed(picker, timing) if usage else picker

    return wrap


def _asks_for_usage(body: dict[str, Any]) -> bool:
    options = body.get("stream_options")
    return isinstance(options, dict) and bool(options.get("include_usage"))
