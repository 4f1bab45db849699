"""Short questions to an engine beside generation, such as how many tokens a chat has: under a lease as well."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any, TypeVar

import orjson

from engines.contract import EngineKind
from supervisor.broker.lease import LeaseRequest
from supervisor.errors import UpstreamError
from supervisor.gateway.exchange import Exchange
from supervisor.gateway.ports import GatewaySettings, Generation, Leases
from supervisor.gateway.upstream import Post, open_upstream
from supervisor.models.catalog import ModelEntry

T = TypeVar("T")
# What an engine is asked in turn: path and body out, the answer's body in, and what it all means at the end.
Steps = Generator[tuple[str, dict[str, Any]], bytes, T]


class SideCalls:
    """Asks one after the other under one lease, and gives it back, however it ends."""

    def __init__(
        self, leases: Leases, generation: Callable[[EngineKind], Generation], settings: GatewaySettings
    ) -> None:
        self._leases = leases
        self._generation = generation
        self._settings = settings

    async def count_tokens(self, exchange: Exchange, entry: ModelEntry, chat: dict[str, Any]) -> int:
        """Tokens of the prompt that the engine would make of a chat.

        Raises:
            AdmissionError, InstanceError, PlanError, UpstreamError: as for every request.
        """
        return await self._ask(exchange, entry, self._generation(entry.engine).count_tokens(chat))

    async def load(self, exchange: Exchange, entry: ModelEntry, keep_alive: float | None) -> None:
        """Have the model ready, and kept for so long; as ``LeaseRequest`` says.

        Raises:
            AdmissionError, InstanceError, PlanError: as for every request.
        """
        request = LeaseRequest(exchange.request_id, exchange.caller.name, entry, keep_alive=keep_alive)
        async with self._leases.lease(request) as lease:
            exchange.leased(lease)
            lease.done()

    async def _ask(self, exchange: Exchange, entry: ModelEntry, steps: Steps[T]) -> T:
        async with self._leases.lease(LeaseRequest(exchange.request_id, exchange.caller.name, entry)) as lease:
            exchange.leased(lease)
            try:
                path, body = next(steps)
                while True:
                    post = Post(entry.id, path, orjson.dumps(body), self._settings.idle_timeout)
                    async with open_upstream(lease, post) as upstream:
                        answer = await upstream.body()
                    path, body = steps.send(answer)
            except StopIteration as end:
                result: T = end.value
                return result
            except ValueError as error:
                raise UpstreamError(
                    "upstream_died", f"The engine of {entry.id} sent something that is no answer."
                ) from error
