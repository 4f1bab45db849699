"""``/upstream/{model}/…``: an engine's own paths, as they are, under a lease like every other request."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any
from urllib.parse import quote

import aiohttp
import anyio.to_thread
import orjson
from aiohttp import web

from engines.contract import Endpoint
from supervisor.broker.lease import LeaseRequest
from supervisor.errors import CallerError, ModelError, UpstreamError
from supervisor.gateway.client_stream import ClientLeftError
from supervisor.gateway.exchange import Exchange, exchange_of
from supervisor.gateway.gate import Gate
from supervisor.gateway.ports import GatewaySettings, Lease, Leases, Router
from supervisor.gateway.request_body import THREAD_BYTES, read_raw, refuse_media
from supervisor.models.catalog import ModelEntry

# What nobody can harm the engine or others with; the rest is for admins.
_OPEN: Mapping[str, frozenset[str]] = MappingProxyType(
    {
        "GET": frozenset({"props", "slots", "metrics"}),
        "POST": frozenset({"tokenize", "detokenize", "apply-template", "infill"}),
    }
)
_CONNECT_SECONDS = 5.0
_PASSED_HEADERS = ("Content-Type", "Accept")


class UpstreamApi:
    """Passes requests to an engine and its answers back, both as they are."""

    def __init__(self, router: Router, leases: Leases, gate: Gate, settings: GatewaySettings) -> None:
        self._router = router
        self._leases = leases
        self._gate = gate
        self._settings = settings

    def routes(self) -> list[web.RouteDef]:
        """What to mount. Ids may hold slashes."""
        return [web.route("*", "/upstream/{rest:.+}", self.passed)]

    async def passed(self, request: web.Request) -> web.StreamResponse:
        """Any method on ``/upstream/{model}/{path}``."""
        exchange = exchange_of(request)
        await self._router.ready()
        entry, path = self._find(request.match_info["rest"], exchange)
        if path not in _OPEN.get(request.method, ()) and "admin" not in exchange.caller.roles:
            raise CallerError(
                "forbidden",
                f"{request.method} {path} of an engine is for the role admin; without it there are GET "
                f"{', '.join(sorted(_OPEN['GET']))} and POST {', '.join(sorted(_OPEN['POST']))}.",
            )
        body = await read_raw(request, self._settings.body_limit)
        await _check(body)
        with self._gate.admit_caller(exchange.caller):
            async with self._leases.lease(LeaseRequest(exchange.request_id, exchange.caller.name, entry)) as lease:
                exchange.leased(lease)
                try:
                    return await self._pass_on(request, lease, path, body)
                except (aiohttp.ClientError, OSError) as error:
                    raise UpstreamError(
                        "upstream_died", f"The engine of {entry.id} died or cut the connection during this request."
                    ) from error

    def _find(self, rest: str, exchange: Exchange) -> tuple[ModelEntry, str]:
        """The model and the path: of several ways to part them, the longest name that is one."""
        caller = exchange.caller
        parts = rest.split("/")
        for end in range(len(parts) - 1, 0, -1):
            name, path = "/".join(parts[:end]), "/".join(parts[end:])
            try:
                entry = self._router.find(name, lambda entry: caller.sees(entry.id, entry.aliases))
            except ModelError as error:
                if end == 1 or error.code != "model_not_found":
                    raise
                continue
            if entry.broken is not None:
                raise ModelError("model_broken", f"model {entry.id!r} can't be served: {entry.broken}")
            if not path or {".", ".."} & set(path.split("/")):
                break
            exchange.model = entry.id
            return entry, path
        raise CallerError("not_found", "Ask for /upstream/MODEL/PATH, such as /upstream/demo/props.")

    async def _pass_on(self, request: web.Request, lease: Lease, path: str, body: bytes) -> web.StreamResponse:
        headers = {name: request.headers[name] for name in _PASSED_HEADERS if name in request.headers}
        headers |= {**lease.launch.headers, "Accept-Encoding": "identity", "Connection": "close"}
        timeout = aiohttp.ClientTimeout(
            total=None, sock_connect=_CONNECT_SECONDS, sock_read=self._settings.idle_timeout
        )
        connector, base = _connector(lease.launch.endpoint)
        query = request.rel_url.raw_query_string
        url = f"{base}/{quote(path)}{f'?{query}' if query else ''}"
        complete = False
        try:
            async with (
                aiohttp.ClientSession(connector=connector, timeout=timeout, auto_decompress=False) as session,
                session.request(
                    request.method, url, data=body or None, headers=headers, allow_redirects=False
                ) as answer,
            ):
                response = web.StreamResponse(status=answer.status, headers=exchange_of(request).headers)
                response.headers["Content-Type"] = answer.headers.get("Content-Type", "application/octet-stream")
                await _copy(request, answer, response)
                complete = True
                return response
        finally:
            lease.done() if complete else lease.abandon()


async def _copy(request: web.Request, answer: aiohttp.ClientResponse, response: web.StreamResponse) -> None:
    try:
        await response.prepare(request)
        async for chunk in answer.content.iter_any():
            exchange_of(request).content_sent()
            await response.write(chunk)
        await response.write_eof()
    except ConnectionError as error:
        raise ClientLeftError from error


def _connector(endpoint: Endpoint) -> tuple[aiohttp.BaseConnector, str]:
    if endpoint.socket_path is not None:
        return aiohttp.UnixConnector(str(endpoint.socket_path)), "http://engine"
    return aiohttp.TCPConnector(), f"http://127.0.0.1:{endpoint.port}"


async def _check(body: bytes) -> None:
    """No engine is made to fetch anything, whichever of its paths is asked; what is no JSON can't make it."""
    if not body:
        return
    try:
        large = len(body) > THREAD_BYTES
        parsed: Any = await anyio.to_thread.run_sync(orjson.loads, body) if large else orjson.loads(body)
    except orjson.JSONDecodeError:
        return
    refuse_media(parsed)
