"""The application and its listener."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Awaitable, Callable
from typing import Any

import anyio
from aiohttp import web
from anyio.abc import TaskStatus

from supervisor.clock import Clock
from supervisor.events import EventBus
from supervisor.gateway.a1111_api import A1111Api
from supervisor.gateway.address import BACKLOG
from supervisor.gateway.admin_api import AdminApi
from supervisor.gateway.afterwards import Afterwards
from supervisor.gateway.anthropic_api import AnthropicApi
from supervisor.gateway.asking import Asking
from supervisor.gateway.builds_api import BuildsApi
from supervisor.gateway.cache_api import CacheApi
from supervisor.gateway.chat_forms import Chats
from supervisor.gateway.conversation import Conversation
from supervisor.gateway.conversations import Conversations, NoConversations
from supervisor.gateway.front_door import front_door
from supervisor.gateway.gate import Gate
from supervisor.gateway.health_api import HealthApi
from supervisor.gateway.images_api import ImagesApi
from supervisor.gateway.live_api import LiveApi
from supervisor.gateway.logs_api import LogsApi
from supervisor.gateway.models_api import ModelsApi
from supervisor.gateway.ollama_api import OllamaApi
from supervisor.gateway.ollama_listings import Listings
from supervisor.gateway.openai_api import OpenAiApi
from supervisor.gateway.openapi import OpenApi
from supervisor.gateway.pictures.links import Links
from supervisor.gateway.ports import GatewaySettings, Ports
from supervisor.gateway.relay import Relay
from supervisor.gateway.requests_api import RequestsApi
from supervisor.gateway.response_store import ResponseStore
from supervisor.gateway.responses_api import ResponsesApi
from supervisor.gateway.side_calls import SideCalls
from supervisor.gateway.status_page.page import StatusPage
from supervisor.gateway.upstream_api import UpstreamApi

# Longer than what load balancers and SDK pools keep a connection for, so that they are the ones who close it.
_KEEP_ALIVE_SECONDS = 75.0
# At the end only event streams and stragglers are left; requests had their time in `Gate.drain`.
_SHUTDOWN_SECONDS = 0.2
_CLEANUP_SECONDS = 2.0
# Of the request's first line and of each header, in bytes: a longer one is a 400 before anybody here sees it.
_LONGEST_LINE = 8190


def build_app(
    ports: Ports,
    settings: GatewaySettings,
    gate: Gate,
    clock: Clock,
    bus: EventBus,
    *,
    conversations: Conversations | None = None,
) -> web.Application:
    """Every route behind the one middleware; without ``conversations`` none is kept."""
    afterwards = Afterwards()
    app = web.Application(
        middlewares=[front_door(ports.door, clock, bus, afterwards)],
        client_max_size=settings.body_limit,
    )
    asking = Asking(ports.leases, ports.crashes, settings.watchdogs, conversations)
    relay = Relay(asking, ports.generation, settings, ports.meter, conversations)
    chats = Chats(ports.router, relay, gate, settings.body_limit)
    side = SideCalls(asking, ports.leases, ports.generation, settings)
    store = ResponseStore(settings.responses, clock.wall)
    app.on_cleanup.append(lambda _app: store.close())
    app.on_cleanup.append(_flushed(afterwards))
    app.add_routes(
        [
            *OpenAiApi(ports.router, relay, gate, settings.body_limit).routes(),
            *AnthropicApi(chats, side, gate).routes(),
            *ResponsesApi(chats, side, gate, store, clock, bus).routes(),
            *OllamaApi(chats, relay, side, gate, Listings(ports.models, ports.status)).routes(),
            *ModelsApi(ports.models, ports.pictures.known if ports.pictures else ports.router.ready).routes(),
            *_picture_routes(ports, settings, clock),
            *UpstreamApi(ports.router, ports.leases, ports.crashes, gate, settings, conversations).routes(),
            *AdminApi(ports.status, ports.events, ports.control, ports.reload, ports.plan, gate).routes(),
            *BuildsApi(ports.builds).routes(),
            *CacheApi(conversations or NoConversations()).routes(),
            *LiveApi(ports.status, ports.models, ports.history, ports.news, ports.look).routes(),
            *LogsApi(settings.logs).routes(),
            *StatusPage().routes(),
            *RequestsApi(ports.explain).routes(),
            *OpenApi().routes(),
            *HealthApi(ports.readiness, ports.metrics, gate).routes(),
        ]
    )
    return app


def _flushed(afterwards: Afterwards) -> Callable[[web.Application], Awaitable[None]]:
    async def flush(_app: web.Application) -> None:
        afterwards.flush()

    return flush


def _picture_routes(ports: Ports, settings: GatewaySettings, clock: Clock) -> list[web.RouteDef]:
    service = ports.pictures
    if service is None:
        return []
    return [
        *ImagesApi(service.pictures, Links(clock, service.keep), settings.body_limit).routes(),
        *A1111Api(service.pictures, ports.models, settings.body_limit).routes(),
    ]


class Listener:
    """The open socket.

    To stop: ``await gate.drain(seconds)``, during which ``/readyz`` and new requests are answered 503, then cancel
    ``run``, which closes the socket.
    """

    def __init__(
        self, app: web.Application, bus: EventBus, opened: socket.socket, tls: ssl.SSLContext | None = None
    ) -> None:
        self._app = app
        self._bus = bus
        self._socket = opened
        self._tls = tls

    async def run(self, *, task_status: TaskStatus[tuple[str, int]] = anyio.TASK_STATUS_IGNORED) -> None:
        """Answer until cancelled; ``started`` with the address, whose port is the real one where 0 was asked for."""
        settings: dict[str, Any] = {
            "access_log": None,
            "keepalive_timeout": _KEEP_ALIVE_SECONDS,
            "max_line_size": _LONGEST_LINE,
            "max_field_size": _LONGEST_LINE,
        }
        # handler_cancellation: else a handler runs on after its client left.
        runner = web.AppRunner(self._app, handler_cancellation=True, shutdown_timeout=_SHUTDOWN_SECONDS, **settings)
        await runner.setup()
        manager = runner.server
        assert manager is not None
        loop = asyncio.get_running_loop()
        listening: asyncio.Server | None = None
        try:
            # Not a site of aiohttp's, which would take its own protocol.
            listening = await loop.create_server(
                lambda: Conversation(manager, self._bus, loop=loop, **settings),
                sock=self._socket,
                ssl=self._tls,
                backlog=BACKLOG,
            )
            host, port = listening.sockets[0].getsockname()[:2]
            task_status.started((host, port))
            await anyio.sleep_forever()
        finally:
            if listening is not None:
                listening.close()
            with anyio.move_on_after(_CLEANUP_SECONDS, shield=True):
                await runner.cleanup()
