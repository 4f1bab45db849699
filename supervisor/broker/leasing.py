"""The block in which a lease is held."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager

from supervisor.broker.books import Waiter
from supervisor.broker.lease import Lease, LeaseRequest


class Leasing(AbstractAsyncContextManager[Lease]):
    """Queues when entered, and leaves when left, however that is. A class and no generator: there is one a request."""

    __slots__ = ("_enqueue", "_leave", "_request", "_settled", "_waiter")

    def __init__(
        self,
        request: LeaseRequest,
        enqueue: Callable[[LeaseRequest], Waiter],
        settled: Callable[[Waiter], Awaitable[None]],
        leave: Callable[[Waiter], None],
    ) -> None:
        self._request = request
        self._enqueue = enqueue
        self._settled = settled
        self._leave = leave
        self._waiter: Waiter | None = None

    async def __aenter__(self) -> Lease:
        waiter = self._waiter = self._enqueue(self._request)
        try:
            await self._settled(waiter)
        except BaseException:
            self._leave(waiter)
            raise
        assert waiter.lease is not None  # or it was settled by an error
        return waiter.lease

    async def __aexit__(self, *_: object) -> None:
        if self._waiter is not None:
            self._leave(self._waiter)
