from __future__ import annotations

import socket
from pathlib import Path

import anyio
import orjson
import pytest

from supervisor.config.schema import Config, ListenConfig
from supervisor.errors import ConfigError
from supervisor.events import RequestFinished
from supervisor.gateway.address import open_address, open_socket
from supervisor.storage import StateLock
from tests.fakes.gateway import running_gateway
from tests.fakes.played_engine import Play, PlayedEngine, stream

DATA = Path(__file__).parents[2] / "data" / "gateway"
FRAMES = [frame + b"\n\n" for frame in (DATA / "chat.sse").read_bytes().split(b"\n\n") if frame]
SAY_HI = {"model": "demo", "messages": [{"role": "user", "content": "Say hi"}]}


def _start(host: str, port: int) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        open_socket(host, port)
    assert caught.value.code == "address_unusable"
    return caught.value


def test_a_port_in_use_says_what_to_do() -> None:
    """The message names the address, a command that finds the holder, and the setting to change."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        error = _start("127.0.0.1", port)
    assert f"127.0.0.1:{port}" in error.message
    assert "ss -ltnp" in error.message
    assert "--port" in error.message


def test_a_foreign_address_says_so() -> None:
    """An address of another machine can't be listened on (192.0.2.0/24 is nobody's)."""
    error = _start("192.0.2.1", 0)
    assert "no address of this machine" in error.message


async def test_draining_refuses_newcomers_and_lets_the_others_finish() -> None:
    """While it drains: /readyz and new requests are 503 with a reason, and what runs ends well."""
    gate = anyio.Event()
    engine = PlayedEngine(Play(FRAMES, pauses={5: gate}))
    async with (
        running_gateway(engine) as gateway,
        anyio.create_task_group() as tasks,
        gateway.client.post("/v1/chat/completions", json=SAY_HI | {"stream": True}) as running,
    ):
        tasks.start_soon(gateway.gate.drain, 30)
        await anyio.wait_all_tasks_blocked()
        async with gateway.client.get("/readyz") as ready:
            assert (ready.status, await ready.json()) == (503, {"status": "not_ready", "reason": "draining"})
        async with gateway.client.get("/healthz") as alive:
            assert alive.status == 200
        async with gateway.client.post("/v1/chat/completions", json=SAY_HI) as refused:
            assert refused.status == 503
            assert refused.headers["Retry-After"] == "5"
            assert (await refused.json())["error"]["code"] == "draining"
        gate.set()
        assert (await running.read()).endswith(b"data: [DONE]\n\n")


@pytest.mark.parametrize("streamed", [False, True])
async def test_what_outlasts_the_drain_is_cut_with_a_word(streamed: bool) -> None:
    """A stream ends with an error event, the rest with 503; the engine is left."""
    engine = PlayedEngine(Play(FRAMES[:5], ending="hang"))
    async with running_gateway(engine) as gateway, anyio.create_task_group() as tasks:
        cut: list[int] = []

        async def drain() -> None:
            await engine.arrived.wait()
            cut.append(await gateway.gate.drain(0.05))

        tasks.start_soon(drain)
        async with gateway.client.post("/v1/chat/completions", json=SAY_HI | {"stream": streamed}) as answer:
            got = await answer.read()
            if streamed:
                got = got.split(b"data: ")[-1]
            else:
                assert answer.status == 503
        assert orjson.loads(got)["error"]["code"] == "draining"
        await engine.left.wait()
        assert gateway.broker.leases[0].abandoned
        assert (await gateway.heard(RequestFinished)).outcome == "error"
    assert cut == [1]


async def test_draining_an_idle_gateway_takes_no_time() -> None:
    """With nothing running there is nothing to wait for."""
    async with running_gateway(PlayedEngine(stream(b""))) as gateway:
        with anyio.fail_after(1):
            assert await gateway.gate.drain(60) == 0


async def test_the_socket_closes_with_its_task() -> None:
    """After `run` was cancelled the address is free again, even if an event stream was open."""
    async with running_gateway(PlayedEngine(stream(b""))) as gateway:
        port = int(gateway.url.rsplit(":", 1)[1])
        watching = await gateway.client.get("/admin/v1/events")
        assert watching.status == 200
    watching.close()
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", port)) != 0


def test_the_lock_comes_first_and_goes_with_the_address(tmp_path: Path) -> None:
    """A taken port leaves the state folder free; a closed address leaves both."""
    config = Config(state_dir=tmp_path / "state", listen=ListenConfig(port=0))
    opened = open_address(config)
    port = opened.socket.getsockname()[1]
    taken = config.model_copy(update={"state_dir": tmp_path / "other", "listen": ListenConfig(port=port)})
    with pytest.raises(ConfigError) as caught:
        open_address(taken)
    assert caught.value.code == "address_unusable"
    StateLock.take(tmp_path / "other").release()
    with pytest.raises(ConfigError) as caught:
        open_address(config)
    assert caught.value.code == "state_dir_locked"
    opened.close()
    open_address(taken).close()


def test_who_comes_before_the_daemon_answers_waits() -> None:
    """An open address takes connections at once: they are answered when the rest is there."""
    with open_socket("127.0.0.1", 0) as opened, socket.create_connection(opened.getsockname(), timeout=5) as client:
        assert client.getpeername() == opened.getsockname()
