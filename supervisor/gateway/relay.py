"""Carries a request to an engine and its answer back: streamed, folded, or whole."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any

import orjson

from engines.contract import EngineKind
from supervisor.broker.lease import LeaseRequest
from supervisor.errors import UpstreamError
from supervisor.gateway.client_stream import ClientStream
from supervisor.gateway.exchange import Exchange
from supervisor.gateway.ports import GatewaySettings, Generation, Leases
from supervisor.gateway.request_body import encode, side_by_side
from supervisor.gateway.translate.fold import Fold
from supervisor.gateway.translate.passing import PassThrough
from supervisor.gateway.translate.sse import DONE, data_of, error_of
from supervisor.gateway.translate.watched import Picker, Wrap
from supervisor.gateway.upstream import Post, Upstream, open_upstream, refusal
from supervisor.models.catalog import ModelEntry

# A process's end is noticed within milliseconds of it; an engine that lives and refuses is not waited for longer.
_NOTICE_SECONDS = 1.0
# How a death before the answer's header looks: a killed process closes its connections one by one, so that the second
# try may still be taken by its listening socket, and be cut as the first was.
_UNANSWERED = frozenset({"upstream_unreachable", "upstream_died"})


class _EngineGoneError(Exception):
    """The engine ended before it answered anything."""


@dataclass(frozen=True, slots=True)
class Call:
    """A checked request: which model, which path of its engine, with which body; ``keep_alive`` as ``LeaseRequest``."""

    exchange: Exchange
    entry: ModelEntry
    path: str
    body: dict[str, Any]
    large: bool
    keep_alive: float | None = None


class Relay:
    """Waits for a lease, then talks to its engine. Each method holds one lease and gives it back, however it ends.

    All raise ``AdmissionError``, ``InstanceError``, ``PlanError`` or ``UpstreamError``.
    """

    def __init__(
        self, leases: Leases, generation: Callable[[EngineKind], Generation], settings: GatewaySettings
    ) -> None:
        self._leases = leases
        self._generation = generation
        self._settings = settings

    async def stream(self, call: Call, client: ClientStream, wrap: Wrap | None = None) -> None:
        """Pass the engine's frames to the client as they come, or what ``wrap`` makes of them."""
        adapter = self._generation(call.entry.engine)
        plain = PassThrough(
            adapter.is_progress,
            keep_progress=bool(call.body.get("return_progress")),
            side_by_side=side_by_side(call.body),
        )
        passing: Picker = plain if wrap is None else wrap(plain)
        settings = self._settings
        async with (
            client.told_to_wait(settings.early_header, settings.waiting_interval),
            self._open(call, adapter.prepare_generation(call.body)) as upstream,
        ):
            while not passing.done:
                frames = await upstream.frames()
                if frames is None:
                    raise upstream.died()
                ready = passing.pick(frames)
                if passing.done:
                    upstream.finish()
                if ready:
                    await client.send(ready)
                if passing.error is not None:
                    raise refusal(passing.error, call.entry.id)

    async def folded(self, call: Call, kind: str) -> dict[str, Any]:
        """Ask for a stream, and give the whole answer of that ``kind``; what can't be streamed is asked whole."""
        adapter = self._generation(call.entry.engine)
        if not adapter.can_stream(call.body):
            return _document(await self.whole(call), call.entry.id)
        fold = Fold(kind, adapter.answer_prefix(call.body))
        async with self._open(call, adapter.prepare_generation(call.body)) as upstream:
            while not upstream.complete:
                frames = await upstream.frames()
                if frames is None:
                    raise upstream.died()
                for frame in frames:
                    data = data_of(frame)
                    if data == DONE:
                        upstream.finish()
                        break
                    error = error_of(frame, data)
                    if error is not None:
                        raise refusal(error, call.entry.id)
                    if data is not None and not adapter.is_progress(data):
                        _feed(fold, data, call.entry.id)
        return fold.result()

    async def whole(self, call: Call) -> bytes:
        """An answer that engines don't stream, as its bytes."""
        async with self._open(call, call.body) as upstream:
            return await upstream.body()

    @asynccontextmanager
    async def _open(self, call: Call, body: dict[str, Any]) -> AsyncIterator[Upstream]:
        exchange, entry = call.exchange, call.entry
        payload = await encode({**body, "model": entry.id}, large=call.large)
        post = Post(entry.id, call.path, payload, idle_timeout=self._settings.idle_timeout)
        request = LeaseRequest(exchange.request_id, exchange.caller.name, entry, keep_alive=call.keep_alive)
        async with AsyncExitStack() as stack:
            try:
                upstream = await self._reach(stack, exchange, request, post)
            except _EngineGoneError:
                # It died before it took the request: a fresh launch serves it, once.
                await stack.aclose()
                upstream = await self._reach(stack, exchange, request, post, last=True)
            yield upstream

    async def _reach(
        self, stack: AsyncExitStack, exchange: Exchange, request: LeaseRequest, post: Post, *, last: bool = False
    ) -> Upstream:
        """Lease, and open the request to the engine."""
        lease = await stack.enter_async_context(self._leases.lease(request))
        exchange.leased(lease)
        try:
            return await stack.enter_async_context(open_upstream(lease, post))
        except UpstreamError as error:
            if last or error.code not in _UNANSWERED or not await lease.broke(_NOTICE_SECONDS):
                raise
            raise _EngineGoneError from error


def _document(body: bytes, model: str) -> dict[str, Any]:
    try:
        document = orjson.loads(body)
    except orjson.JSONDecodeError:
        document = None
    if not isinstance(document, dict):
        raise UpstreamError("upstream_died", f"The engine of {model} sent something that is no answer.")
    return document


def _feed(fold: Fold, data: bytes, model: str) -> None:
    try:
        chunk = orjson.loads(data)
        if chunk is not None:
            fold.feed(chunk)
    except (ValueError, TypeError, AttributeError, KeyError) as error:
        raise UpstreamError("upstream_died", f"The engine of {model} sent something that is no answer.") from error
