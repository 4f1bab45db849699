"""``/admin/v1/live``: all that the status page shows, as server-sent events; first everything, then what changed."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import asdict
from typing import Any

import anyio
import anyio.lowlevel
import orjson
from aiohttp import web

from supervisor.gateway.client_stream import ClientStream
from supervisor.gateway.exchange import exchange_of
from supervisor.gateway.ports import ModelCard
from supervisor.gateway.sse_id import last_seen

_BEGUN = b": connected\n\n"
# After an event things change together: what follows within this is told at once.
_SETTLE_SECONDS = 0.15
_BUSY_SECONDS = 1.0
_IDLE_SECONDS = 5.0
_LOOK_SECONDS = 15.0
# Of the status; these would make every document differ from the one before.
_NEVER_THE_SAME = frozenset({"uptime_seconds"})

Sections = dict[str, Any]


class LiveApi:
    """Handlers of what changes; each reader has a memory of its own of what it was told."""

    def __init__(
        self,
        status: Callable[[], dict[str, Any]],
        models: Callable[[], Sequence[ModelCard]],
        history: Callable[[], dict[str, Any]],
        news: Callable[[int | None], AsyncGenerator[bytes, None]],
        look: Callable[[], Awaitable[None]] = anyio.lowlevel.checkpoint,
    ) -> None:
        self._status = status
        self._models = models
        self._history = history
        self._news = news
        self._look = look

    def routes(self) -> list[web.RouteDef]:
        """What to mount."""
        return [
            web.get("/admin/v1/live", self.live, allow_head=False),
            web.get("/admin/v1/history", self.history),
        ]

    async def history(self, _request: web.Request) -> web.Response:
        """``GET /admin/v1/history``: the last hour as columns, one value each ten seconds."""
        return web.Response(body=orjson.dumps(self._history()), content_type="application/json")

    async def live(self, request: web.Request) -> web.StreamResponse:
        """``GET /admin/v1/live``: the parts of the status that changed, as ``state``, and decisions, each as it is."""
        client = ClientStream(request, exchange_of(request))
        await client.send(_BEGUN)
        changed = anyio.Event()
        teller = _Teller(self._sections)

        async def tell_news() -> None:
            nonlocal changed
            async with aclosing(self._news(last_seen(request))) as frames:
                async for frame in frames:
                    changed.set()
                    await client.send(frame)
            tasks.cancel_scope.cancel()  # it was too slow; it comes back

        async def keep_looking() -> None:
            while True:
                await self._look()
                changed.set()
                await anyio.sleep(_LOOK_SECONDS)

        async with anyio.create_task_group() as tasks:
            await client.send(teller.frame())
            tasks.start_soon(tell_news)
            tasks.start_soon(keep_looking)
            while True:
                with anyio.move_on_after(_BUSY_SECONDS if teller.busy else _IDLE_SECONDS):
                    await changed.wait()
                    await anyio.sleep(_SETTLE_SECONDS)
                changed = anyio.Event()
                if frame := teller.frame():
                    await client.send(frame)
        return await client.finish()

    def _sections(self) -> Sections:
        return sections(self._status(), self._models())


class _Teller:
    """Remembers what one reader knows."""

    def __init__(self, read: Callable[[], Sections]) -> None:
        self._read = read
        self._known: dict[str, bytes] = {}
        self.busy = False

    def frame(self) -> bytes:
        """What is new, as one event; empty when nothing is."""
        found = self._read()
        packed = {key: orjson.dumps(value, default=str) for key, value in found.items()}
        new = [key for key, value in packed.items() if self._known.get(key) != value]
        gone = [key for key in self._known if key not in packed]
        self._known = packed
        self.busy = is_busy(found)
        if not new and not gone:
            return b""
        parts = [orjson.dumps(key) + b":" + packed[key] for key in new] + [orjson.dumps(key) + b":null" for key in gone]
        return b"event: state\ndata: {" + b",".join(parts) + b"}\n\n"


def is_busy(found: Sections) -> bool:
    """Whether figures move without an event: somebody runs, waits or loads."""
    rows = [row for key, row in found.items() if key.startswith("instance:")]
    moving = any(row.get("leases") or row.get("state") in {"starting", "stopping"} for row in rows)
    return moving or bool(found.get("queue", {}).get("waiting"))


def sections(status: dict[str, Any], models: Sequence[ModelCard]) -> Sections:
    """The status in parts that change apart from each other: ``instance:ID`` and ``plan:ID`` for each instance."""
    made: Sections = {}
    for row in status.get("instances", ()):
        made[f"instance:{row['id']}"] = {key: value for key, value in row.items() if key != "plan"}
        made[f"plan:{row['id']}"] = row.get("plan")
    made |= {key: value for key, value in status.items() if key != "instances" and key not in _NEVER_THE_SAME}
    made["models"] = [_model(card) for card in models]
    return made


def _model(card: ModelCard) -> dict[str, Any]:
    facts = asdict(card)
    del facts["created"]
    return facts
