"""The fake llama-server against the real one, side by side: what the fake promises is what the real one does."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import anyio
import pytest

from tests.support.demo import DemoEngine
from tests.support.fake_engine import API_KEY, fake_engine, sse_payloads
from tests.support.shapes import in_turn, shape
from tests.support.sockets import short_socket_folder

pytestmark = pytest.mark.engine

_ARGUMENTS = ("--ctx-size", "4096", "--parallel", "2", "--no-kv-unified", "--embeddings", "--pooling", "mean")
_CHAT = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 3, "temperature": 0, "cache_prompt": False}
_PROMPT = {"prompt": "Once upon", "max_tokens": 3, "temperature": 0, "cache_prompt": False}
_ALL = {"stream": True, "return_progress": True, "stream_options": {"include_usage": True}}
_REQUESTS: list[tuple[str, dict[str, Any]]] = [
    ("/v1/chat/completions", _CHAT),
    ("/v1/chat/completions", {**_CHAT, "stream": True}),
    ("/v1/chat/completions", {**_CHAT, **_ALL}),
    ("/v1/chat/completions", {**_CHAT, **_ALL, "logprobs": True, "top_logprobs": 2}),
    ("/v1/completions", _PROMPT),
    ("/v1/completions", {**_PROMPT, **_ALL}),
    ("/v1/embeddings", {"input": ["a", "b"]}),
    ("/v1/chat/completions", {}),
    ("/v1/nothing", {}),
]


@dataclass(frozen=True, slots=True)
class _RealEngine:
    client: aiohttp.ClientSession
    socket_path: Path


@asynccontextmanager
async def _real_engine(engine: DemoEngine, model: Path) -> AsyncIterator[_RealEngine]:
    with short_socket_folder() as folder:
        place = folder / "e.sock"
        environment = {"PATH": os.environ["PATH"], "LLAMA_API_KEY": API_KEY, **engine.env}
        argv = [str(engine.executable), "--model", str(model), "--host", str(place), "--alias", "fake", *_ARGUMENTS]
        argv += ["--threads", "2", "--fit", "off", "--offline", "--jinja"]
        process = await anyio.open_process(argv, env=environment, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        try:
            connector = aiohttp.UnixConnector(str(place), force_close=True)
            async with aiohttp.ClientSession(connector=connector) as client:
                await _until_healthy(client)
                yield _RealEngine(client, place)
        finally:
            with anyio.CancelScope(shield=True):
                process.kill()
                await process.aclose()


async def _until_healthy(client: aiohttp.ClientSession) -> None:
    with anyio.fail_after(30):
        while True:
            try:
                async with client.get("http://engine/health") as response:
                    if response.status == 200:
                        return
            except aiohttp.ClientConnectionError:
                pass
            await anyio.sleep(0.02)


async def _ask(client: aiohttp.ClientSession, path: str, body: dict[str, Any]) -> tuple[int, set[str], Any]:
    headers = {"Authorization": f"Bearer {API_KEY}"}
    async with client.post(f"http://engine{path}", json=body, headers=headers) as response:
        text = await response.text()
        said = in_turn(sse_payloads(text)) if text.startswith("data:") else shape(json.loads(text))
        return response.status, set(response.headers), said


async def test_both_answer_in_the_same_shapes(demo_engine: DemoEngine, demo_model: Path, tmp_path: Path) -> None:
    """Status, header names, keys, their order and types are equal for each kind of request."""
    async with _real_engine(demo_engine, demo_model) as real, fake_engine(tmp_path, *_ARGUMENTS) as fake:
        for path, body in _REQUESTS:
            assert await _ask(fake.client, path, body) == await _ask(real.client, path, body), (path, body)


async def _is_closed_after(place: Path, body: dict[str, Any], within: float) -> bool:
    data = json.dumps(body).encode()
    async with await anyio.connect_unix(place) as connection:
        head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {API_KEY}\r\n"
        await connection.send(f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data)
        with anyio.move_on_after(within):
            while True:
                try:
                    await connection.receive()
                except anyio.EndOfStream:
                    return True
    return False


async def test_both_close_the_connection_after_a_stream(
    demo_engine: DemoEngine, demo_model: Path, tmp_path: Path
) -> None:
    """Although both say Keep-Alive, a connection can be used again only after a whole answer."""
    async with _real_engine(demo_engine, demo_model) as real, fake_engine(tmp_path, *_ARGUMENTS) as fake:
        for place in (real.socket_path, fake.socket_path):
            assert await _is_closed_after(place, {**_PROMPT, **_ALL}, within=20)
            assert not await _is_closed_after(place, _PROMPT, within=2)
