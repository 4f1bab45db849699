"""Asks an engine, and asks again on its next launch where it ended before the first content of its answer."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from supervisor.broker.lease import LeaseRequest, Prefers
from supervisor.errors import UpstreamError
from supervisor.gateway.conversations import OUTCOME_HEADER, Conversations, NoConversations, Turn
from supervisor.gateway.exchange import Exchange
from supervisor.gateway.ports import Crashes, Lease, Leases
from supervisor.gateway.request_limits import RequestLimits
from supervisor.gateway.upstream import Post, Upstream, open_upstream
from supervisor.gateway.watchdog import Watchdog, watched
from supervisor.models.catalog import ModelEntry
from supervisor.sessions.conversation import Talk, Touch

# A process's end is noticed within milliseconds of it; an engine that lives and refuses is not waited for longer.
_NOTICE_SECONDS = 1.0
# How the end of an engine looks: a killed process closes its connections one by one, so that a second connection may
# still be taken by its listening socket, and be cut as the first was.
_GONE = frozenset({"upstream_unreachable", "upstream_died"})

T = TypeVar("T")


class Reading:
    """One try at an answer.

    Attributes:
        lease: for who has more to ask.
        model: for messages.
        upstream: the engine's answer.
        watchdog: to be told of what comes. ``content`` there is whether the first content has come: from here on it
            is not asked again. Headers and progress are no content.
        turn: to be told of the first progress report and of the first content.
    """

    __slots__ = ("lease", "model", "turn", "upstream", "watchdog")

    def __init__(self, model: str, lease: Lease, watchdog: Watchdog, upstream: Upstream, turn: Turn) -> None:
        self.turn = turn
        self.model = model
        self.lease = lease
        self.watchdog = watchdog
        self.upstream = upstream


Read = Callable[[Reading], Awaitable[T]]


@dataclass(frozen=True, slots=True)
class Question:
    """What an engine is asked, for whom; ``tokens``: of its prompt, by estimate; ``talk``: what it is to slots.

    ``keep_alive``: as ``LeaseRequest``.
    """

    exchange: Exchange
    entry: ModelEntry
    post: Post
    tokens: int
    talk: Talk = Touch.NOTHING
    keep_alive: float | None = None


def lease_request(
    exchange: Exchange,
    entry: ModelEntry,
    body: bytes = b"",
    keep_alive: float | None = None,
    prefers: Prefers | None = None,
) -> LeaseRequest:
    """What the broker is asked for this request: it queues where its caller stands."""
    standing = exchange.standing
    return LeaseRequest(
        exchange.request_id,
        standing.account,
        entry,
        standing.lane,
        standing.weight,
        keep_alive=keep_alive,
        body=body,
        prefers=prefers,
    )


class _EngineGoneError(Exception):
    """The engine ended before the first content of its answer."""

    def __init__(self, error: UpstreamError) -> None:
        super().__init__(error.message)
        self.error = error


class Asking:
    """Holds one lease at a time, and gives it back, however it ends; ``limits`` are asked for at each request."""

    def __init__(
        self,
        leases: Leases,
        crashes: Crashes,
        limits: Callable[[], RequestLimits],
        conversations: Conversations | None = None,
    ) -> None:
        self._conversations = conversations or NoConversations()
        self._leases = leases
        self._crashes = crashes
        self._limits = limits

    async def ask(self, question: Question, read: Read[T]) -> T:
        """What ``read`` makes of the answer; it may be called twice.

        Raises:
            AdmissionError, InstanceError, PlanError: no lease.
            UpstreamError: no answer; ``request_crashes_engine``: this body was there at two crashes.
        """
        post = question.post
        self._crashes.refuse_guilty(post.model, post.body)
        try:
            return await self._in_turn(question, read)
        except _EngineGoneError:
            self._crashes.refuse_guilty(post.model, post.body)
        try:
            return await self._in_turn(question, read)
        except _EngineGoneError as gone:
            self._crashes.refuse_guilty(post.model, post.body)
            raise gone.error from gone

    async def _in_turn(self, question: Question, read: Read[T]) -> T:
        """Who was on an engine when it crashed is asked again one at a time, so that the next crash finds the culprit.

        Raises:
            _EngineGoneError: the launch ended before its first content.
        """
        post = question.post
        turn = self._crashes.turn_of(post.model, post.body)
        if turn is None:
            return await self._once(question, read)
        try:
            await turn.take()
            self._crashes.refuse_guilty(post.model, post.body)  # its twin may have been found out meanwhile
            return await self._once(question, read)
        finally:
            turn.give_back()

    async def _once(self, question: Question, read: Read[T]) -> T:
        post, exchange = question.post, question.exchange
        prefers = partial(self._conversations.prefers, question.talk)
        request = lease_request(exchange, question.entry, post.body, question.keep_alive, prefers)
        async with self._leases.lease(request) as lease:
            exchange.leased(lease)
            tell = partial(exchange.headers.__setitem__, OUTCOME_HEADER)
            turn = await self._conversations.begin(lease, question.talk, exchange.request_id, tell)
            content = answered = False
            try:
                async with watched(lease, self._limits(), question.tokens) as watchdog:
                    try:
                        sent = Post(post.model, post.path, turn.pinned(post.body), post.idle_timeout, post.whole)
                        async with lease.launch.calls, open_upstream(lease, sent) as upstream:
                            result = await read(Reading(post.model, lease, watchdog, upstream, turn))
                            answered = upstream.complete
                    finally:
                        content = watchdog.content
            except UpstreamError as error:
                if content or not await _gone(lease, error):
                    raise
                raise _EngineGoneError(error) from error
            finally:
                turn.end(answered=answered)
        self._crashes.answered(post.model, post.body)
        return result


async def _gone(lease: Lease, error: UpstreamError) -> bool:
    """Whether the engine has ended, or was given up, which is why the request failed."""
    if error.code in _GONE:
        return await lease.broke(_NOTICE_SECONDS)
    return error.code == "upstream_timeout" and await lease.broke(0.0)
