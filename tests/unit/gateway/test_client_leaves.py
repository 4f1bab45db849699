from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import orjson
import pytest

from tests.fakes.gateway import PATIENCE_SECONDS, RunningGateway, running_gateway
from tests.fakes.played_engine import Play, PlayedEngine, stream

DATA = Path(__file__).parents[2] / "data" / "gateway"
FRAMES = [frame + b"\n\n" for frame in (DATA / "chat.sse").read_bytes().split(b"\n\n") if frame]
SAY_HI = {"model": "demo", "messages": [{"role": "user", "content": "Say hi"}]}
BOTH = pytest.mark.parametrize("streamed", [False, True])


@asynccontextmanager
async def _asking(
    gateway: RunningGateway, path: str, body: dict[str, Any]
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    reader, writer = await asyncio.open_connection("127.0.0.1", int(gateway.url.rsplit(":", 1)[1]))
    sent = orjson.dumps(body)
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(sent)}\r\n\r\n"
    writer.write(head.encode() + sent)
    try:
        yield reader, writer
    finally:
        writer.close()
        await writer.wait_closed()


async def _left_its_lease(gateway: RunningGateway, *, abandoned: bool) -> None:
    with anyio.fail_after(PATIENCE_SECONDS):
        event = await gateway.finished()
        assert event.outcome == "client_left"
        await gateway.broker.ended.wait()
        assert [(lease.released, lease.abandoned) for lease in gateway.broker.leases] == [(True, abandoned)]
        assert gateway.gate.running == 0


@BOTH
async def test_while_it_waits_for_a_lease(streamed: bool) -> None:
    """Its place in the queue is free at once, and no engine hears of it."""
    async with running_gateway(PlayedEngine(stream(b""))) as gateway:
        gateway.broker.hold = anyio.Event()
        async with _asking(gateway, "/v1/chat/completions", SAY_HI | {"stream": streamed}):
            await gateway.broker.asked.wait()
            assert gateway.broker.waiting == 1
        event = await gateway.finished()
        assert (event.outcome, event.status) == ("client_left", 499)
        assert gateway.broker.waiting == 0
        assert gateway.broker.leases == []
        assert gateway.engine.connections == 0


@BOTH
@pytest.mark.parametrize("headers", [False, True])
async def test_before_the_engine_says_anything(streamed: bool, headers: bool) -> None:
    """The engine's connection is closed, before and after its 200, and the slot counts as taken until seen idle."""
    engine = PlayedEngine(Play(headers=headers, ending="hang"))
    async with running_gateway(engine) as gateway:
        async with _asking(gateway, "/v1/chat/completions", SAY_HI | {"stream": streamed}):
            await engine.arrived.wait()
        await engine.left.wait()
        await _left_its_lease(gateway, abandoned=True)


@BOTH
async def test_in_prefill(streamed: bool) -> None:
    """Progress has come and no content: the engine is told by the closed connection."""
    engine = PlayedEngine(Play(FRAMES[:2], ending="hang"))
    async with running_gateway(engine) as gateway:
        async with _asking(gateway, "/v1/chat/completions", SAY_HI | {"stream": streamed}):
            await engine.arrived.wait()
        await engine.left.wait()
        await _left_its_lease(gateway, abandoned=True)


async def test_in_decode() -> None:
    """In the middle of its answer."""
    engine = PlayedEngine(Play(FRAMES[:5], ending="hang"))
    async with running_gateway(engine) as gateway:
        async with _asking(gateway, "/v1/chat/completions", SAY_HI | {"stream": True}) as (reader, _):
            await reader.readuntil(b'"content":"I"')
        await engine.left.wait()
        await _left_its_lease(gateway, abandoned=True)


async def test_that_reads_nothing_any_more() -> None:
    """A client that stops reading stops the engine's stream with it; when it leaves, the slot is abandoned."""
    engine = PlayedEngine(Play([b"data: " + b"x" * 100_000 + b"\n\n"] * 2000, ending="hang"))
    async with running_gateway(engine) as gateway:
        async with _asking(gateway, "/v1/chat/completions", SAY_HI | {"stream": True}) as (reader, _):
            await reader.readuntil(b"data: x")
        await engine.left.wait()
        await _left_its_lease(gateway, abandoned=True)


async def test_during_embeddings() -> None:
    """An answer that is not streamed is given up in the same way."""
    engine = PlayedEngine(Play(ending="hang", headers=False))
    async with running_gateway(engine) as gateway:
        async with _asking(gateway, "/v1/embeddings", {"model": "demo", "input": "hi"}):
            await engine.arrived.wait()
        await engine.left.wait()
        await _left_its_lease(gateway, abandoned=True)


async def test_while_it_is_told_to_wait() -> None:
    """Also after the comments have begun."""
    async with running_gateway(PlayedEngine(stream(b"")), early_header=0.0, waiting_interval=0.01) as gateway:
        gateway.broker.hold = anyio.Event()
        async with _asking(gateway, "/v1/chat/completions", SAY_HI | {"stream": True}) as (reader, _):
            await reader.readuntil(b": waiting")
        assert (await gateway.finished()).outcome == "client_left"
        assert gateway.broker.waiting == 0


async def test_while_it_sends_its_body() -> None:
    """A body that never ends takes nothing but its own connection."""
    async with running_gateway(PlayedEngine(stream(b""))) as gateway:
        _, writer = await asyncio.open_connection("127.0.0.1", int(gateway.url.rsplit(":", 1)[1]))
        writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{")
        await writer.drain()
        with anyio.fail_after(PATIENCE_SECONDS):
            while not gateway.gate.running:
                await anyio.lowlevel.checkpoint()
        writer.close()
        await writer.wait_closed()
        assert (await gateway.finished()).outcome == "client_left"
        assert not gateway.broker.asked.is_set()
