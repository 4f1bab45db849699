"""Asks each ready engine for what it tells of itself, so that one address has everything."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence

import aiohttp

from engines.contract import EngineAdapter, EngineKind
from supervisor.instances.instance import Instance
from supervisor.instances.launch import Launch

# A scraper waits for all of it; an engine in a long batch is left out this time.
_SECONDS = 1.0
_MOST_BYTES = 256 * 2**10


class EngineMetrics:
    """Reads the texts of all engines at once."""

    def __init__(
        self, instances: Callable[[], Iterable[Instance]], adapter_for: Callable[[EngineKind], EngineAdapter]
    ) -> None:
        self._instances = instances
        self._adapter_for = adapter_for

    async def read(self) -> Sequence[tuple[str, str]]:
        """Model and text of each engine that answers in time; an engine is no reason to have no metrics."""
        asked = []
        for instance in self._instances():
            path = self._adapter_for(instance.entry.engine).metrics_path
            if path is not None and instance.accepting and instance.launch is not None:
                asked.append((instance.model_id, _ask(instance.launch, path)))
        texts = await asyncio.gather(*(answer for _, answer in asked))
        return [(model, text) for (model, _), text in zip(asked, texts, strict=True) if text is not None]


async def _ask(launch: Launch, path: str) -> str | None:
    url = f"{launch.base_url}{path}"
    try:
        async with asyncio.timeout(_SECONDS), launch.calls, launch.session.get(url, headers=launch.headers) as answer:
            if answer.status != 200:  # noqa: PLR2004  HTTP
                return None
            return (await answer.content.read(_MOST_BYTES)).decode(errors="replace")
    except (aiohttp.ClientError, TimeoutError, RuntimeError):  # RuntimeError: the session is closed
        return None
