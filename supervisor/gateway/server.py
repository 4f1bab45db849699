"""The application and its listener."""

from __future__ import annotations

import errno
import socket
import ssl

import anyio
from aiohttp import web
from anyio.abc import TaskStatus

from supervisor.clock import Clock
from supervisor.errors import ConfigError
from supervisor.events import EventBus
from supervisor.gateway.admin_api import AdminApi
from supervisor.gateway.front_door import front_door
from supervisor.gateway.gate import Gate
from supervisor.gateway.health_api import HealthApi
from supervisor.gateway.models_api import ModelsApi
from supervisor.gateway.openai_api import OpenAiApi
from supervisor.gateway.ports import GatewaySettings, Ports
from supervisor.gateway.relay import Relay

# Longer than what load balancers and SDK pools keep a connection for, so that they are the ones who close it.
_KEEP_ALIVE_SECONDS = 75.0
# At the end only event streams and stragglers are left; requests had their time in `Gate.drain`.
_SHUTDOWN_SECONDS = 0.2
_CLEANUP_SECONDS = 2.0
# Of connections not yet taken: aiohttp's own 128 made a burst of 256 wait a second for the second SYN.
_BACKLOG = 1024
# Of the request's first line and of each header, in bytes: a longer one is a 400 before anybody here sees it.
_LONGEST_LINE = 8190


def build_app(ports: Ports, settings: GatewaySettings, gate: Gate, clock: Clock, bus: EventBus) -> web.Application:
    """Every route behind the one middleware."""
    app = web.Application(
        middlewares=[front_door(ports.door, clock, bus)],
        client_max_size=settings.body_limit,
    )
    relay = Relay(ports.leases, ports.generation, settings)
    app.add_routes(
        [
            *OpenAiApi(ports.router, relay, gate, settings.body_limit).routes(),
            *ModelsApi(ports.models, ports.router.ready).routes(),
            *AdminApi(ports.status, ports.events, ports.control, ports.reload, ports.plan, gate).routes(),
            *HealthApi(ports.readiness, ports.metrics, gate).routes(),
        ]
    )
    return app


class Listener:
    """The open socket.

    To stop: ``await gate.drain(seconds)``, during which ``/readyz`` and new requests are answered 503, then cancel
    ``run``, which closes the socket.
    """

    def __init__(self, app: web.Application, host: str, port: int, tls: ssl.SSLContext | None = None) -> None:
        self._app = app
        self._host = host
        self._port = port
        self._tls = tls

    async def run(self, *, task_status: TaskStatus[tuple[str, int]] = anyio.TASK_STATUS_IGNORED) -> None:
        """Listen until cancelled; ``started`` with the address, whose port is the real one where 0 was asked for.

        Raises:
            ConfigError: ``address_unusable``.
        """
        # handler_cancellation: else a handler runs on after its client left.
        runner = web.AppRunner(
            self._app,
            handler_cancellation=True,
            access_log=None,
            keepalive_timeout=_KEEP_ALIVE_SECONDS,
            shutdown_timeout=_SHUTDOWN_SECONDS,
            max_line_size=_LONGEST_LINE,
            max_field_size=_LONGEST_LINE,
        )
        await runner.setup()
        try:
            try:
                await web.TCPSite(runner, self._host, self._port, ssl_context=self._tls, backlog=_BACKLOG).start()
            except OSError as error:
                raise _unusable(error, self._host, self._port) from error
            host, port = runner.addresses[0][:2]
            task_status.started((host, port))
            await anyio.sleep_forever()
        finally:
            with anyio.move_on_after(_CLEANUP_SECONDS, shield=True):
                await runner.cleanup()


def _unusable(error: OSError, host: str, port: int) -> ConfigError:
    address = f"{host}:{port}"
    if error.errno == errno.EADDRINUSE:
        what = (
            f"{address} is taken by another program (`ss -ltnp 'sport = :{port}'` says which). Stop that one, or "
            "choose another port with --port or listen.port."
        )
    elif isinstance(error, socket.gaierror) or error.errno == errno.EADDRNOTAVAIL:
        what = f"{host} is no address of this machine. Choose another with --host or listen.host."
    elif error.errno in {errno.EACCES, errno.EPERM}:
        what = f"This user may not listen on {address}. Choose a port of at least 1024 with --port or listen.port."
    else:
        what = f"{address} can't be listened on: {error}. Choose another with --host, --port or listen."
    return ConfigError("address_unusable", what, host=host, port=port)
