"""Asks an engine, and asks again on its next launch where it ended before the first content of its answer."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from supervisor.broker.lease import LeaseRequest
from supervisor.errors import UpstreamError
from supervisor.gateway.exchange import Exchange
from supervisor.gateway.ports import Crashes, Leases
from supervisor.gateway.upstream import Post, Upstream, open_upstream

# A process's end is noticed within milliseconds of it; an engine that lives and refuses is not waited for longer.
_NOTICE_SECONDS = 1.0
# How the end of an engine looks: a killed process closes its connections one by one, so that a second connection may
# still be taken by its listening socket, and be cut as the first was.
_GONE = frozenset({"upstream_unreachable", "upstream_died"})

T = TypeVar("T")


class Reading:
    """One try at an answer.

    Attributes:
        model: for messages.
        upstream: the engine's answer.
        content: its first content has come: from here on it is not asked again. Headers and progress are no content.
    """

    __slots__ = ("content", "model", "upstream")

    def __init__(self, model: str) -> None:
        self.model = model
        self.upstream: Upstream
        self.content = False


Read = Callable[[Reading], Awaitable[T]]


class _EngineGoneError(Exception):
    """The engine ended before the first content of its answer."""

    def __init__(self, error: UpstreamError) -> None:
        super().__init__(error.message)
        self.error = error


class Asking:
    """Holds one lease at a time, and gives it back, however it ends."""

    def __init__(self, leases: Leases, crashes: Crashes) -> None:
        self._leases = leases
        self._crashes = crashes

    async def ask(self, exchange: Exchange, request: LeaseRequest, post: Post, read: Read[T]) -> T:
        """What ``read`` makes of the answer; it may be called twice.

        Raises:
            AdmissionError, InstanceError, PlanError: no lease.
            UpstreamError: no answer; ``request_crashes_engine``: this body was there at two crashes.
        """
        self._crashes.refuse_guilty(post.model, post.body)
        try:
            return await self._in_turn(exchange, request, post, read)
        except _EngineGoneError:
            self._crashes.refuse_guilty(post.model, post.body)
        try:
            return await self._in_turn(exchange, request, post, read)
        except _EngineGoneError as gone:
            self._crashes.refuse_guilty(post.model, post.body)
            raise gone.error from gone

    async def _in_turn(self, exchange: Exchange, request: LeaseRequest, post: Post, read: Read[T]) -> T:
        """Who was on an engine when it crashed is asked again one at a time, so that the next crash finds the culprit.

        Raises:
            _EngineGoneError: the launch ended before its first content.
        """
        turn = self._crashes.turn_of(post.model, post.body)
        if turn is None:
            return await self._once(exchange, request, post, read)
        try:
            await turn.take()
            self._crashes.refuse_guilty(post.model, post.body)  # its twin may have been found out meanwhile
            return await self._once(exchange, request, post, read)
        finally:
            turn.give_back()

    async def _once(self, exchange: Exchange, request: LeaseRequest, post: Post, read: Read[T]) -> T:
        reading = Reading(post.model)
        async with self._leases.lease(request) as lease:
            exchange.leased(lease)
            try:
                async with open_upstream(lease, post) as reading.upstream:
                    result = await read(reading)
            except UpstreamError as error:
                if error.code not in _GONE or reading.content or not await lease.broke(_NOTICE_SECONDS):
                    raise
                raise _EngineGoneError(error) from error
        self._crashes.answered(post.model, post.body)
        return result
