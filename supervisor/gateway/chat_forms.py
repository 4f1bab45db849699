"""Serves chats to clients of other APIs: the request is put as a chat, and the answer back into the API's own form."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import orjson
from aiohttp import web

from engines.contract import Capability
from supervisor.errors import CallerError, ModelError, SupervisorError
from supervisor.gateway.client_stream import ClientLeftError, ClientStream, StreamForm
from supervisor.gateway.conversations import session_name
from supervisor.gateway.errors import Api, event
from supervisor.gateway.exchange import Exchange, exchange_of
from supervisor.gateway.gate import Gate
from supervisor.gateway.ports import Router
from supervisor.gateway.presets import apply_preset
from supervisor.gateway.relay import Call, Relay, understood
from supervisor.gateway.request_body import Body, read_body, require_messages, require_prompt, well_formed
from supervisor.gateway.request_options import take_keep_alive
from supervisor.gateway.translate.passing import PassThrough
from supervisor.gateway.translate.tool_calls import CallWatch, recover_whole, watches_calls
from supervisor.gateway.translate.watched import Events, Translation
from supervisor.models.catalog import ModelEntry

CHAT_PATH = "/v1/chat/completions"
TEXT_PATH = "/v1/completions"
# Of a chat's own: no other API has a form for several choices, or for progress.
_OUR_OWN = ("n", "return_progress")


@dataclass(frozen=True, slots=True)
class Asked:
    """A request, understood.

    Attributes:
        chat: the chat that asks the same, or the text completion; its ``stream`` says how the client wants the answer.
        whole: the client's body from a whole answer.
        events: makes the client's events from chunks.
        settle: what is to be done once the answer is complete, before its last event, which it gives.
        name_stop: the exchange is to be told which stop string ended the answer.
    """

    chat: dict[str, Any]
    whole: Callable[[dict[str, Any]], dict[str, Any]]
    events: Callable[[], Events]
    settle: Callable[[], Awaitable[bytes]] | None = None
    name_stop: bool = False

    @property
    def is_text(self) -> bool:
        """Whether it is a text completion."""
        return "messages" not in self.chat


@dataclass(frozen=True, slots=True)
class ChatForm:
    """One API: whose errors, which kind of stream, and how its requests are understood.

    Attributes:
        read: raises ``CallerError``.
        failed: the last event of a stream that failed; None: the API's error event.
        guard: entered while the answer is made.
        session: what the client calls its conversation, from headers and body.
        names: spellings of the model's name, in the order of trying.
    """

    api: Api
    stream: StreamForm
    read: Callable[[dict[str, Any], Exchange], Asked]
    names: Callable[[str], tuple[str, ...]] = lambda name: (name,)
    failed: Callable[[SupervisorError], bytes] | None = None
    guard: Callable[[], AbstractContextManager[None]] = nullcontext
    session: Callable[[Mapping[str, str], Mapping[str, Any]], str | None] = session_name


class Chats:
    """Serves them, whichever API they came by."""

    def __init__(self, router: Router, relay: Relay, gate: Gate, body_limit: int) -> None:
        self._router = router
        self._relay = relay
        self._gate = gate
        self._body_limit = body_limit

    async def serve(self, request: web.Request, form: ChatForm, body: Body | None = None) -> web.StreamResponse:
        """Answer one request; ``body`` where it was read already."""
        exchange = exchange_of(request)
        client = ClientStream(request, exchange, form.stream)
        try:
            with self._gate.admit_caller(exchange.caller), form.guard():
                answer = await self._answer(request, form, client, body)
            if answer is not None:
                exchange.content_sent()
                return web.Response(body=answer, content_type="application/json")
        except ClientLeftError:
            raise
        except Exception as error:
            if not client.started:
                raise
            # The status is out: the error becomes the last event, and no sign of success follows.
            known = exchange.failed(error)
            said = form.failed(known) if form.failed is not None else event(known, exchange.request_id, form.api)
            await client.last_words(said)
        return await client.finish()

    async def known(self) -> None:
        """Wait, within a bound, until the models are known."""
        await self._router.ready()

    async def find(
        self, request: web.Request, names: tuple[str, ...], capability: Capability = Capability.CHAT
    ) -> ModelEntry:
        """The model that serves this under the first of the names that is one, as far as the caller may see it.

        Raises:
            ModelError: there is none, or it can't be served.
        """
        await self._router.ready()
        exchange = exchange_of(request)
        caller = exchange.caller
        for last, name in enumerate(names, 1 - len(names)):
            try:
                entry = self._router.resolve(name, capability, lambda entry: caller.sees(entry.id, entry.aliases))
            except ModelError as error:
                if error.code != "model_not_found" or not last:
                    raise
            else:
                exchange.model = entry.id
                return entry
        raise CallerError("model_missing", "Say which model.")

    async def read(self, request: web.Request, *keys: str) -> Body:
        """The request's body; ``keys`` may stand for ``model``.

        Raises:
            CallerError: it can't be read.
        """
        return await read_body(request, self._body_limit, keys)

    async def _answer(
        self, request: web.Request, form: ChatForm, client: ClientStream, body: Body | None
    ) -> bytes | None:
        """The whole answer; None when it was streamed."""
        body = body or await self.read(request)
        keep_alive = take_keep_alive(request.headers, body.json)
        named = form.session(request.headers, body.json)
        with well_formed():
            asked = form.read(body.json, exchange_of(request))
        (require_prompt if asked.is_text else require_messages)(asked.chat)
        entry = await self.find(request, form.names(body.model))
        apply_preset(entry, form.names(body.model), asked.chat)
        for key in _OUR_OWN:
            asked.chat.pop(key, None)
        path = TEXT_PATH if asked.is_text else CHAT_PATH
        how: dict[str, Any] = {
            "large": body.large,
            "keep_alive": keep_alive,
            "name_stop": asked.name_stop,
            "session": named,
        }
        call = Call(exchange_of(request), entry, path, asked.chat, **how)
        tools = asked.chat["tools"] if watches_calls(asked.chat) else None
        if asked.chat.get("stream"):
            asked.chat["stream_options"] = {"include_usage": True}
            client.ends = asked.settle is None
            await self._relay.stream(call, client, partial(_translate, tools, asked))
            if asked.settle is not None:
                await client.send(await asked.settle())
            return None
        answer = await self._relay.folded(call, "text_completion" if asked.is_text else "chat.completion")
        with understood(entry.id):
            made = asked.whole(recover_whole(answer, tools) if tools else answer)
        if asked.settle is not None:
            await asked.settle()
        return orjson.dumps(made)


def _translate(tools: Any, asked: Asked, passing: PassThrough) -> Translation:
    return Translation(passing, CallWatch(tools) if tools else None, asked.events())
