"""Carries a request to an engine and its answer back: streamed, folded, or whole."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from time import monotonic
from typing import Any, TypeVar

import anyio.to_thread
import orjson

from engines.contract import EngineKind
from supervisor.errors import UpstreamError
from supervisor.gateway.asking import Asking, Question, Read, Reading
from supervisor.gateway.brief import is_brief, is_read_at_once
from supervisor.gateway.client_stream import ClientStream
from supervisor.gateway.conversations import Conversations, NoConversations
from supervisor.gateway.exchange import Exchange
from supervisor.gateway.measure import Measure, Worked
from supervisor.gateway.media import refuse_unread_media
from supervisor.gateway.ports import GatewaySettings, Generation
from supervisor.gateway.prompt_size import estimate_tokens
from supervisor.gateway.request_body import encode, side_by_side
from supervisor.gateway.token_meter import TokenMeter
from supervisor.gateway.translate.fold import Fold
from supervisor.gateway.translate.passing import PassThrough
from supervisor.gateway.translate.sse import DONE, data_of, error_of
from supervisor.gateway.translate.stopped import StopWatch
from supervisor.gateway.translate.watched import Picker, Wrap
from supervisor.gateway.upstream import Post, refusal
from supervisor.models.catalog import ModelEntry

# What reading a document of any shape raises where it has a wrong one.
MISREAD = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Call:
    """A checked request: which model, which path of its engine, with which body; ``keep_alive`` as ``LeaseRequest``.

    ``name_stop``: its exchange is told which stop string ended the answer, where there was one. ``session``: what the
    client calls its conversation.
    """

    exchange: Exchange
    entry: ModelEntry
    path: str
    body: dict[str, Any]
    large: bool
    keep_alive: float | None = None
    name_stop: bool = False
    session: str | None = None


class Relay:
    """Waits for a lease, then talks to its engine; the lease is given back, however it ends.

    All raise ``AdmissionError``, ``InstanceError``, ``ModelError``, ``PlanError`` or ``UpstreamError``.
    """

    def __init__(
        self,
        asking: Asking,
        generation: Callable[[EngineKind], Generation],
        settings: GatewaySettings,
        meter: TokenMeter,
        conversations: Conversations | None = None,
    ) -> None:
        self._conversations = conversations or NoConversations()
        self._meter = meter
        self._asking = asking
        self._generation = generation
        self._settings = settings

    async def stream(self, call: Call, client: ClientStream, wrap: Wrap | None = None) -> None:
        """Pass the engine's frames to the client as they come, or what ``wrap`` makes of them."""
        adapter = self._generation(call.entry.engine)
        settings = self._settings

        async def read(reading: Reading) -> None:
            plain = PassThrough(
                adapter.is_progress,
                keep_progress=bool(call.body.get("return_progress")),
                side_by_side=side_by_side(call.body),
            )
            passing: Picker = plain if wrap is None else wrap(plain)
            if call.name_stop:
                passing = StopWatch(passing, adapter.stop_string, call.exchange)
            measure = call.exchange.measure(call.entry.id, self._meter)
            await _pass_on(reading, plain, passing, client, measure)

        async with client.told_to_wait(settings.early_header, settings.waiting_interval):
            progress = wrap is not None or not is_read_at_once(call.body)
            await self._ask(call, _sent(adapter, call, progress=progress), read)

    async def folded(self, call: Call, kind: str) -> dict[str, Any]:
        """Ask for a stream, and give the whole answer of that ``kind``; what can't be streamed is asked whole."""
        adapter = self._generation(call.entry.engine)
        if not adapter.can_stream(call.body):
            return _document(await self.whole(call), call.entry.id)
        if is_brief(call.body) and not call.name_stop:
            brief = adapter.prepare_whole(call.body)
            if brief is not None:
                return await self._brief(call, brief)

        async def read(reading: Reading) -> dict[str, Any]:
            fold = Fold(kind, adapter.answer_prefix(call.body))
            watch = StopWatch(None, adapter.stop_string, call.exchange) if call.name_stop else None
            measure = call.exchange.measure(call.entry.id, self._meter)
            await _fold_up(reading, fold, adapter.is_progress, measure, watch)
            with understood(reading.model):
                return fold.result()

        return await self._ask(call, _sent(adapter, call), read)

    async def _brief(self, call: Call, sent: dict[str, Any]) -> dict[str, Any]:
        async def read(reading: Reading) -> dict[str, Any]:
            document = _document(await reading.upstream.body(), reading.model)
            _tell_turn(reading, call.exchange.measure(call.entry.id, self._meter).whole(document.get("timings")))
            return document

        return await self._ask(call, sent, read, whole=True)

    async def whole(self, call: Call) -> bytes:
        """An answer that engines don't stream, as its bytes."""

        async def read(reading: Reading) -> bytes:
            return await reading.upstream.body()

        return await self._ask(call, call.body, read, whole=True)

    async def _ask(self, call: Call, body: dict[str, Any], read: Read[T], *, whole: bool = False) -> T:
        entry = call.entry
        refuse_unread_media(entry, self._generation(entry.engine), call.body)
        payload = await encode({**body, "model": entry.id}, large=call.large)
        limits = self._settings.watchdogs()
        tokens = estimate_tokens(call.body, len(payload), limits.image_tokens, limits.enough_tokens)
        post = Post(entry.id, call.path, payload, limits.longest, whole)
        look = partial(self._conversations.about, entry, call.exchange.standing.account, call.session, call.body)
        talk = await anyio.to_thread.run_sync(look) if call.large else look()
        return await self._asking.ask(Question(call.exchange, entry, post, tokens, talk, call.keep_alive), read)


def _sent(adapter: Generation, call: Call, *, progress: bool = True) -> dict[str, Any]:
    sent = adapter.prepare_generation(call.body, progress=progress)
    return adapter.name_stop(sent) if call.name_stop else sent


async def _pass_on(
    reading: Reading, plain: PassThrough, passing: Picker, client: ClientStream, measure: Measure
) -> None:
    """From the engine to the client, until the engine has said all."""
    upstream, watchdog = reading.upstream, reading.watchdog
    while not passing.done:
        frames = await upstream.frames()
        if frames is None:
            raise upstream.died()
        watchdog.heard()
        ready = passing.pick(frames)
        if not watchdog.content:
            reading.turn.heard(plain.progress, content=plain.content)
            watchdog.content = plain.content
        if plain.content:
            measure.heard(frames)
        if passing.done:
            upstream.finish()
        if ready:
            watchdog.since = math.inf
            await client.send(ready, last=passing.done and client.ends)
            watchdog.since = monotonic()
        if passing.error is not None:
            raise refusal(passing.error, reading.model)
    if plain.progress is None:
        _tell_turn(reading, measure.result())


def _tell_turn(reading: Reading, worked: Worked | None) -> None:
    """What the engine's own figures say of the prompt, where it sent no reports."""
    if worked is not None and worked.prompt_tokens is not None:
        reading.turn.told(worked.prompt_tokens, worked.cached_tokens or 0, worked.prompt_seconds)


async def _fold_up(
    reading: Reading, fold: Fold, is_progress: Callable[[bytes], bool], measure: Measure, watch: StopWatch | None
) -> None:
    """From the engine into ``fold``, until the engine has said all."""
    upstream, watchdog = reading.upstream, reading.watchdog
    while not upstream.complete:
        frames = await upstream.frames(hurry=False)
        if frames is None:
            raise upstream.died()
        watchdog.heard()
        if watch is not None:
            watch.look(frames)
        for frame in frames:
            data = data_of(frame)
            if data == DONE:
                upstream.finish()
                break
            error = error_of(frame, data)
            if error is not None:
                raise refusal(error, reading.model)
            if data is not None and is_progress(data):
                if not watchdog.content:
                    reading.turn.heard(data, content=False)
            elif data is not None:
                if not watchdog.content:
                    reading.turn.heard(None, content=True)
                    watchdog.content = True
                _feed(fold, data, reading.model)
        if watchdog.content:
            measure.heard(frames)


def _document(body: bytes, model: str) -> dict[str, Any]:
    try:
        document = orjson.loads(body)
    except orjson.JSONDecodeError:
        document = None
    if not isinstance(document, dict):
        raise garbled(model)
    return document


def _feed(fold: Fold, data: bytes, model: str) -> None:
    # Not ``with understood(model)``: for each chunk that would cost as much as the reading.
    try:
        chunk = orjson.loads(data)
        if chunk is not None:
            fold.feed(chunk)
    except MISREAD as error:
        raise garbled(model) from error


@contextmanager
def understood(model: str) -> Iterator[None]:
    """The block reads an engine's answer, which may have any shape.

    Raises:
        UpstreamError: ``upstream_died``: it has a wrong one.
    """
    try:
        yield
    except MISREAD as error:
        raise garbled(model) from error


def garbled(model: str) -> UpstreamError:
    """The engine's answer can't be understood."""
    return UpstreamError("upstream_died", f"The engine of {model} sent something that is no answer.")
