from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from typing import Any

import anyio
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from supervisor.clock import SystemClock
from supervisor.events import EventBus
from supervisor.gateway.caller import Caller
from supervisor.gateway.exchange import begin
from supervisor.gateway.live_api import LiveApi, is_busy, sections
from supervisor.gateway.ports import ModelCard

CARD = ModelCard("demo", created=5, capabilities=("chat",), state="stopped")


def row(**facts: Any) -> dict[str, Any]:
    """An instance's row."""
    return {"id": "demo-1", "model": "demo", "state": "ready", "leases": 0, "plan": {"ctx_size": 1}, **facts}


def test_the_status_falls_into_parts_that_change_apart() -> None:
    """A plan is large and seldom new; the daemon's age would be new each time."""
    made = sections({"version": "1", "uptime_seconds": 3.5, "instances": [row()], "queue": {"waiting": 0}}, [CARD])
    assert made["plan:demo-1"] == {"ctx_size": 1}
    assert "plan" not in made["instance:demo-1"]
    assert "uptime_seconds" not in made
    assert made["models"][0]["id"] == "demo"


def test_busy_is_what_moves_without_an_event() -> None:
    """Then figures are told each second."""
    quiet = sections({"instances": [row()], "queue": {"waiting": 0}}, [])
    assert not is_busy(quiet)
    assert is_busy(sections({"instances": [row(leases=1)]}, []))
    assert is_busy(sections({"instances": [row(state="starting")]}, []))
    assert is_busy(sections({"instances": [], "queue": {"waiting": 2}}, []))


class Said:
    """A status that a test changes, and news that it makes."""

    def __init__(self) -> None:
        self.status: dict[str, Any] = {"version": "1", "instances": [row()], "queue": {"waiting": 0}}
        self.after: list[int | None] = []
        self.happened = anyio.Event()

    async def news(self, after: int | None) -> AsyncGenerator[bytes, None]:
        """One piece of news once it happened, then silence."""
        self.after.append(after)
        await self.happened.wait()
        yield b'id: 9\nevent: evicted\ndata: {"sentence": "x"}\n\n'
        await anyio.sleep_forever()


async def test_first_everything_then_what_changed() -> None:
    """A reader hears the whole, and then only parts that are others; one that is gone as null."""
    said = Said()
    api = LiveApi(lambda: said.status, lambda: [CARD], lambda: {"at": []}, said.news)
    bus = EventBus(SystemClock())

    async def live(request: web.Request) -> web.StreamResponse:
        begin(request, Caller("c"), SystemClock(), bus)
        return await api.live(request)

    app = web.Application()
    app.router.add_get("/live", live)
    async with TestClient(TestServer(app)) as client:
        answer = await client.get("/live", headers={"Last-Event-ID": "4"})
        first = await _next(answer)
        assert set(first) == {"version", "queue", "models", "instance:demo-1", "plan:demo-1"}
        said.status = {"version": "1", "instances": [], "queue": {"waiting": 1}}
        said.happened.set()
        assert await _next(answer) == {"queue": {"waiting": 1}, "instance:demo-1": None, "plan:demo-1": None}
        assert said.after == [4]
        answer.close()


async def _next(answer: Any) -> dict[str, Any]:
    """The next `state` event; others are passed over."""
    name = ""
    with anyio.fail_after(10):
        async for line in answer.content:
            if line.startswith(b"event: "):
                name = line[7:].decode().strip()
            elif line.startswith(b"data: ") and name == "state":
                found: dict[str, Any] = json.loads(line[6:])
                return found
    raise AssertionError("the stream ended")
