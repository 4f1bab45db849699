"""Two hundred clients of every API that leave at random moments: nothing is held for any of them afterwards."""

from __future__ import annotations

import asyncio
import json
import random
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import anyio
import anyio.to_thread
import psutil
import pytest

from tests.support.daemon import Daemon, daemon_config, running_daemon
from tests.support.fake_engine import fake_build, tiny_model
from tests.wire.asking import CHAT, EMBEDDINGS, LOG_ALL, TEXT, ask, chat_body, instance, said, status
from tests.wire.beside import until

CLIENTS = 200
SEED = 20_261_130
LONGEST_START = 2.0
LONGEST_STAY = 1.0
# An embedding that was left runs to its end before its slot is seen idle.
PATIENCE_SECONDS = 20.0
_ENDLESS: dict[str, Any] = {"ignore_eos": True, "max_tokens": 100_000}
_CHAT = chat_body("m", **_ENDLESS)
ASKED: list[tuple[str, dict[str, Any]]] = [
    (CHAT, _CHAT | {"stream": True}),
    (CHAT, _CHAT),
    (CHAT, _CHAT | {"stream": True, "messages": said("word " * 2000)}),
    (TEXT, {"model": "m", "prompt": "a", "stream": True, **_ENDLESS}),
    ("/v1/messages", _CHAT | {"stream": True}),
    ("/v1/messages/count_tokens", _CHAT),
    ("/v1/responses", {"model": "m", "input": "hello", "stream": True, "ignore_eos": True}),
    ("/api/chat", _CHAT),
    ("/api/generate", {"model": "m", "prompt": "a", "stream": False, "options": {"num_predict": 100_000}}),
    (EMBEDDINGS, {"model": "m", "input": "a"}),
    ("/upstream/m/tokenize", {"content": "a"}),
]


@pytest.mark.parametrize("seed", [SEED])
async def test_clients_that_leave_at_random_moments(tmp_path: Path, seed: int) -> None:
    """No lease, no ticket, no connection to a client or to the engine is left, and the next request is served."""
    model = tiny_model(tmp_path, chunk_delay=0.01, prefill_delay=0.05)
    config = daemon_config(
        fake_build(tmp_path),
        models={"m": {"file": str(model), "serves": ["chat", "embeddings"], "launch": {"slots": 4}}},
        broker={"queue": {"per_caller": 100, "total": 100}},
    )
    async with running_daemon(tmp_path, config, env=LOG_ALL) as daemon:
        answer = await anyio.to_thread.run_sync(ask, daemon, "/admin/v1/models/m/load", b"")
        assert answer.status == 200
        # What is opened once and kept, such as the database of responses, is no leak.
        await anyio.to_thread.run_sync(ask, daemon, "/v1/responses", {"model": "m", "input": "a"})
        held = await anyio.to_thread.run_sync(_descriptors, daemon)
        moments = random.Random(seed)
        async with anyio.create_task_group() as tasks:
            for number in range(CLIENTS):
                path, body = ASKED[number % len(ASKED)]
                at, stays = moments.uniform(0, LONGEST_START), moments.uniform(0, LONGEST_STAY)
                tasks.start_soon(_come_and_go, daemon, f"crowd-{number}", (path, body), (at, stays), moments.random())
        await anyio.to_thread.run_sync(_nothing_is_held, daemon, held)
        left = [row for row in daemon.records if row.get("outcome") == "client_left"]
        assert len(left) > CLIENTS / 4
        answer = await anyio.to_thread.run_sync(ask, daemon, CHAT, chat_body("m", max_tokens=1))
        assert answer.status == 200


async def _come_and_go(
    daemon: Daemon, name: str, asked: tuple[str, dict[str, Any]], moment: tuple[float, float], manner: float
) -> None:
    """Ask after some seconds, read for some more, and go: by the front door, in the middle of a word, or by a reset."""
    await anyio.sleep(moment[0])
    place = urlsplit(daemon.base_url)
    reader, writer = await asyncio.open_connection(place.hostname, place.port)
    path, body = asked
    sent = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nx-request-id: {name}\r\nContent-Length: {len(sent)}\r\n\r\n"
    try:
        writer.write(head.encode() + (sent[: len(sent) // 2] if manner < 0.1 else sent))
        with anyio.move_on_after(moment[1]):
            while await reader.read(65_536):
                pass
        if manner > 0.5:
            writer.transport.abort()
    finally:
        writer.close()
        try:
            await writer.wait_closed()
        except ConnectionError:
            return


def _descriptors(daemon: Daemon) -> int:
    return psutil.Process(daemon.pid).num_fds()


def _nothing_is_held(daemon: Daemon, descriptors: int) -> None:
    """Hold that within a bound all is as before the first client."""

    def rest() -> dict[str, int]:
        queued = status(daemon)["queue"]["waiting"]
        more = max(0, _descriptors(daemon) - descriptors)
        return {"queued": queued, "leased": instance(daemon, "m")["leases"], "opened": more}

    try:
        until(lambda: not any(rest().values()), PATIENCE_SECONDS)
    except AssertionError as error:
        raise AssertionError(f"after {CLIENTS} clients: {rest()}") from error
