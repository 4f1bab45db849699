"""``/upstream/{model}/…``: an engine's own paths, as they are, under a lease like every other request."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any
from urllib.parse import quote

import aiohttp
import anyio.to_thread
import orjson
from aiohttp import web

from engines.contract import Endpoint
from supervisor.errors import CallerError, ModelError, UpstreamError
from supervisor.gateway.asking import lease_request
from supervisor.gateway.client_stream import ClientLeftError
from supervisor.gateway.conversations import Conversations, NoConversations
from supervisor.gateway.exchange import Exchange, exchange_of
from supervisor.gateway.gate import Gate
from supervisor.gateway.ports import Crashes, GatewaySettings, Lease, Leases, Router
from supervisor.gateway.prompt_size import estimate_tokens
from supervisor.gateway.request_body import THREAD_BYTES, read_raw, refuse_media
from supervisor.gateway.watchdog import Watchdog, watched
from supervisor.models.catalog import ModelEntry
from supervisor.sessions.conversation import Touch

# What nobody can harm the engine or others with; the rest is for admins.
_OPEN: Mapping[str, frozenset[str]] = MappingProxyType(
    {
        "GET": frozenset({"props", "slots", "metrics"}),
        "POST": frozenset({"tokenize", "detokenize", "apply-template", "infill"}),
    }
)
# What makes an engine act on this machine or reach others, should one be built or started so: for nobody.
_DOORS = frozenset({"agent", "cors-proxy", "mcp", "models/load", "models/unload", "tools"})
_FORM = "multipart/form-data"
# What takes no slot, and what takes one or more and leaves the rest as it is; anything else may change how the engine
# computes.
_QUIET = frozenset({"tokenize", "detokenize", "apply-template"})
_COMPUTING = frozenset(
    {"infill", "completion", "completions", "messages", "responses", "embedding", "embeddings", "rerank"}
)
_CONNECT_SECONDS = 5.0
_PASSED_HEADERS = ("Content-Type", "Accept")


class UpstreamApi:
    """Passes requests to an engine and its answers back, both as they are."""

    def __init__(
        self,
        router: Router,
        leases: Leases,
        crashes: Crashes,
        gate: Gate,
        settings: GatewaySettings,
        conversations: Conversations | None = None,
    ) -> None:
        self._conversations = conversations or NoConversations()
        self._router = router
        self._leases = leases
        self._crashes = crashes
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
        _refuse(request.method, path, exchange)
        body = await read_raw(request, self._settings.body_limit)
        parsed = await _check(body, request.headers.get("Content-Type", ""))
        limits = self._settings.watchdogs()
        known = parsed if isinstance(parsed, dict) else {}
        tokens = estimate_tokens(known, len(body) if known else 0, limits.image_tokens, limits.enough_tokens)
        with self._gate.admit_caller(exchange.caller):
            self._crashes.refuse_guilty(entry.id, body)
            async with self._leases.lease(lease_request(exchange, entry, body)) as lease:
                exchange.leased(lease)
                async with (
                    self._touching(lease, request.method, path, exchange),
                    watched(lease, limits, tokens) as watchdog,
                    lease.launch.calls,
                ):
                    response = await self._pass_on(request, _Try(entry.id, lease, watchdog, path, body))
            if body and exchange.outcome == "ok":
                self._crashes.answered(entry.id, body)
            return response

    @asynccontextmanager
    async def _touching(self, lease: Lease, method: str, path: str, exchange: Exchange) -> AsyncIterator[None]:
        """The engine is asked for this: what it does to its slots is not known, or not wanted to be."""
        quiet = method == "GET" or path in _QUIET
        if not quiet and path.rpartition("/")[2] not in _COMPUTING:
            self._conversations.unsure(lease.launch)
        touch = Touch.NOTHING if quiet else Touch.ANY
        turn = await self._conversations.begin(lease, touch, exchange.request_id, lambda _: None)
        answered = False
        try:
            yield
            answered = True
        finally:
            turn.end(answered=answered)

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

    async def _pass_on(self, request: web.Request, this: _Try) -> web.StreamResponse:
        lease, body = this.lease, this.body
        headers = {name: request.headers[name] for name in _PASSED_HEADERS if name in request.headers}
        headers |= {**lease.launch.headers, "Accept-Encoding": "identity", "Connection": "close"}
        longest = self._settings.watchdogs().longest
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_SECONDS, sock_read=longest)
        connector, base = _connector(lease.launch.endpoint)
        query = request.rel_url.raw_query_string
        url = f"{base}/{quote(this.path)}{f'?{query}' if query else ''}"
        response: web.StreamResponse | None = None
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
                await _copy(request, answer, response, this.watchdog)
                complete = True
        except (aiohttp.ClientError, OSError) as error:
            died = UpstreamError(
                "upstream_died", f"The engine of {this.model} died or cut the connection during this request."
            )
            if response is None or not response.prepared:
                raise died from error
            # Half of an answer is out, in whatever form: the one honest end is none.
            exchange_of(request).failed(died)
            _cut_off(request)
        except asyncio.CancelledError:
            if response is not None and response.prepared:
                _cut_off(request)
            raise
        finally:
            lease.done() if complete else lease.abandon()
        return response


@dataclass(frozen=True, slots=True)
class _Try:
    """What is asked of which model's engine, under which lease."""

    model: str
    lease: Lease
    watchdog: Watchdog
    path: str
    body: bytes


def _refuse(method: str, path: str, exchange: Exchange) -> None:
    """Whether this caller may ask for this path.

    Raises:
        CallerError: ``forbidden``.
    """
    parts = [part for part in path.lower().split("/") if part]
    if not _DOORS.isdisjoint({"/".join(parts[:1]), "/".join(parts[:2])}):
        raise CallerError("forbidden", f"/{path} of an engine opens doors on this machine, and is for nobody.")
    if path not in _OPEN.get(method, ()) and "admin" not in exchange.caller.roles:
        raise CallerError(
            "forbidden",
            f"{method} {path} of an engine is for the role admin; without it there are GET "
            f"{', '.join(sorted(_OPEN['GET']))} and POST {', '.join(sorted(_OPEN['POST']))}.",
        )


async def _copy(
    request: web.Request, answer: aiohttp.ClientResponse, response: web.StreamResponse, watchdog: Watchdog
) -> None:
    watchdog.heard()
    try:
        await response.prepare(request)
    except ConnectionError as error:
        raise ClientLeftError from error
    async for chunk in answer.content.iter_any():
        watchdog.content = True
        watchdog.since = math.inf
        exchange_of(request).content_sent()
        try:
            await response.write(chunk)
        except ConnectionError as error:
            raise ClientLeftError from error
        watchdog.heard()
    try:
        await response.write_eof()
    except ConnectionError as error:
        raise ClientLeftError from error


def _cut_off(request: web.Request) -> None:
    if request.transport is not None:
        request.transport.abort()


def _connector(endpoint: Endpoint) -> tuple[aiohttp.BaseConnector, str]:
    if endpoint.socket_path is not None:
        return aiohttp.UnixConnector(str(endpoint.socket_path)), "http://engine"
    return aiohttp.TCPConnector(), f"http://127.0.0.1:{endpoint.port}"


async def _check(body: bytes, content_type: str) -> Any:
    """The body, parsed. No engine is made to fetch anything, whichever of its paths is asked.

    Engines read as JSON what is none here, such as after a byte order mark: only forms may be none, and by the very
    word that engines go by, which is written small.

    Raises:
        CallerError: ``invalid_json``, ``url_refused``.
    """
    if not body or content_type.startswith(_FORM):
        return None
    return await anyio.to_thread.run_sync(_parse, body) if len(body) > THREAD_BYTES else _parse(body)


def _parse(body: bytes) -> Any:
    try:
        parsed = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise CallerError("invalid_json", f"The body is not valid JSON: {error}.", position=error.pos) from error
    refuse_media(parsed)
    return parsed
