"""Short questions to an engine beside generation, such as how many tokens a chat has: asked like every other one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from engines.contract import EngineKind
from supervisor.errors import UpstreamError
from supervisor.gateway.asking import Asking, Question, Reading, lease_request
from supervisor.gateway.exchange import Exchange
from supervisor.gateway.media import refuse_unread_media
from supervisor.gateway.ports import GatewaySettings, Generation, Leases
from supervisor.gateway.prompt_size import estimate_tokens
from supervisor.gateway.request_body import THREAD_BYTES, encode
from supervisor.gateway.upstream import Post, open_upstream
from supervisor.models.catalog import ModelEntry


class SideCalls:
    """Asks one after the other under one lease, and gives it back, however it ends."""

    def __init__(
        self,
        asking: Asking,
        leases: Leases,
        generation: Callable[[EngineKind], Generation],
        settings: GatewaySettings,
    ) -> None:
        self._asking = asking
        self._leases = leases
        self._generation = generation
        self._settings = settings

    async def count_tokens(self, exchange: Exchange, entry: ModelEntry, chat: dict[str, Any], *, large: bool) -> int:
        """Tokens of the prompt that the engine would make of a chat; ``large``: it is written in a thread.

        Raises:
            AdmissionError, InstanceError, ModelError, PlanError, UpstreamError: as for every request.
        """
        generation = self._generation(entry.engine)
        refuse_unread_media(entry, generation, chat)
        limits = self._settings.watchdogs()
        path, body = next(generation.count_tokens(chat))
        payload = await encode(body, large=large)
        tokens = estimate_tokens(chat, len(payload), limits.image_tokens, limits.enough_tokens)

        async def read(reading: Reading) -> int:
            steps = generation.count_tokens(chat)
            next(steps)  # its answer is what is read now
            answer = await reading.upstream.body()
            try:
                while True:
                    path, body = steps.send(answer)
                    answer = await self._next(reading, path, body)
            except StopIteration as end:
                count: int = end.value
                return count
            except ValueError as error:
                raise UpstreamError(
                    "upstream_died", f"The engine of {entry.id} sent something that is no answer."
                ) from error

        post = Post(entry.id, path, payload, limits.longest, whole=True)
        return await self._asking.ask(Question(exchange, entry, post, tokens), read)

    async def load(self, exchange: Exchange, entry: ModelEntry, keep_alive: float | None) -> None:
        """Have the model ready, and kept for so long; as ``LeaseRequest`` says.

        Raises:
            AdmissionError, InstanceError, PlanError: as for every request.
        """
        async with self._leases.lease(lease_request(exchange, entry, keep_alive=keep_alive)) as lease:
            exchange.leased(lease)
            lease.done()

    async def _next(self, reading: Reading, path: str, body: dict[str, Any]) -> bytes:
        """What the engine answers to one more question, within the same call of its gate."""
        reading.watchdog.heard()
        long = any(isinstance(value, str) and len(value) > THREAD_BYTES for value in body.values())
        payload = await encode(body, large=long)
        post = Post(reading.model, path, payload, self._settings.watchdogs().longest, whole=True)
        async with open_upstream(reading.lease, post) as upstream:
            return await upstream.body()
