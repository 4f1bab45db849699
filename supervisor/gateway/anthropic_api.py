"""Anthropic's API: messages, and the count of their tokens."""

from __future__ import annotations

from functools import partial
from typing import Any

import orjson
from aiohttp import web

from supervisor.gateway.chat_forms import Asked, ChatForm, Chats
from supervisor.gateway.client_stream import StreamForm
from supervisor.gateway.conversations import session_name_of_user
from supervisor.gateway.errors import Api
from supervisor.gateway.exchange import Exchange, exchange_of
from supervisor.gateway.gate import Gate
from supervisor.gateway.request_body import require_messages, well_formed
from supervisor.gateway.side_calls import SideCalls
from supervisor.gateway.translate.anthropic_answer import MessageEvents, Told, message
from supervisor.gateway.translate.anthropic_request import shows_thinking, to_chat
from supervisor.gateway.translate.usage import timing_fields

# Clients take it at any place of a stream, also before the first event.
_PING = b'event: ping\ndata: {"type": "ping"}\n\n'


class AnthropicApi:
    """Handlers of Messages: translated to a chat and back, alike on every engine."""

    def __init__(self, chats: Chats, side: SideCalls, gate: Gate) -> None:
        self._chats = chats
        self._side = side
        self._gate = gate

    def routes(self) -> list[web.RouteDef]:
        """What to mount."""
        return [
            web.post("/v1/messages", self.messages),
            web.post("/v1/messages/count_tokens", self.count_tokens),
        ]

    async def messages(self, request: web.Request) -> web.StreamResponse:
        """``POST /v1/messages``."""
        _name(request)
        return await self._chats.serve(request, _FORM)

    async def count_tokens(self, request: web.Request) -> web.StreamResponse:
        """``POST /v1/messages/count_tokens``: of the prompt as the engine's own template makes it."""
        _name(request)
        exchange = exchange_of(request)
        with self._gate.admit_caller(exchange.caller):
            body = await self._chats.read(request)
            with well_formed():
                chat = to_chat(body.json)
            require_messages(chat)
            entry = await self._chats.find(request, (body.model,))
            count = await self._side.count_tokens(exchange, entry, chat, large=body.large)
        return web.Response(body=orjson.dumps({"input_tokens": count}), content_type="application/json")


def _name(request: web.Request) -> None:
    """Anthropic's clients look for the request's id under a name of their own."""
    exchange = exchange_of(request)
    exchange.headers["request-id"] = exchange.request_id


def _read(body: dict[str, Any], exchange: Exchange) -> Asked:
    def timing(timings: Any) -> dict[str, Any]:
        return timing_fields(timings, exchange.waits)

    def stopped_by() -> str | None:
        return exchange.stopped_by

    chat, told = to_chat(body), Told(timing, stopped_by)
    thinking = shows_thinking(body)
    whole, events = partial(message, thinking=thinking, told=told), partial(MessageEvents, thinking=thinking, told=told)
    return Asked(chat, whole, events, name_stop=bool(chat.get("stop")))


_FORM = ChatForm(Api.ANTHROPIC, StreamForm(waiting=_PING), _read, session=session_name_of_user)
