"""The fake llama-server misbehaves exactly as it is told."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import aiohttp
import anyio
import psutil
import pytest

from tests.fakes.engine_parts.faults import FaultError, parse_assignments
from tests.support.fake_engine import FakeEngine, fake_build, fake_engine, set_faults, sse_payloads, tiny_model

_CHAT = "/v1/chat/completions"
_ASK = {"messages": [{"role": "user", "content": "one two three four five"}]}
_DISCONNECTED = (aiohttp.ClientError, ConnectionError)


async def _exit_code(engine: FakeEngine) -> int:
    with anyio.fail_after(20):
        return await engine.process.wait()


async def _until_idle(engine: FakeEngine) -> None:
    with anyio.fail_after(10):
        while await engine.busy_slots():  # noqa: ASYNC110  the state is in another process
            await anyio.sleep(0.01)


async def _collect(response: aiohttp.ClientResponse, received: bytearray) -> None:
    async for data in response.content.iter_any():
        received += data


def _run(build: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    env = {"PATH": os.environ["PATH"], **environment}
    return subprocess.run([build, *arguments], env=env, capture_output=True, text=True, check=False, timeout=30)


async def test_it_says_when_it_is_up(tmp_path: Path) -> None:
    """The two lines that announce readiness come in the real one's form and order."""
    async with fake_engine(tmp_path) as engine:
        loaded = await engine.wait_for_line("I srv  llama_server: model loaded")
        listening = await engine.wait_for_line(f"I srv  llama_server: listening on unix://{engine.socket_path}")
        assert engine.lines.index(loaded) < engine.lines.index(listening)


async def test_it_listens_on_a_port_too(tmp_path: Path, free_tcp_port: int) -> None:
    """Without a socket path it serves on an address and a port."""
    own = tmp_path / "own.gguf"
    async with fake_engine(tmp_path, "--host", "127.0.0.1", "--port", str(free_tcp_port)) as engine:
        assert own.exists()
        async with aiohttp.request("GET", f"http://127.0.0.1:{free_tcp_port}/health") as response:
            assert response.status == 200
        assert not engine.socket_path.exists()


async def test_everything_is_unavailable_while_it_loads(tmp_path: Path) -> None:
    """The socket is open at once, answers 503 without asking for the key, and 200 after the load."""
    async with fake_engine(tmp_path, load_seconds=0.6, wait=False) as engine:
        await engine.wait_for_line("loading model")
        for path in ("/health", "/slots"):
            async with engine.client.get(f"http://engine{path}") as response:
                assert response.status == 503
                assert (await response.json())["error"]["message"] == "Loading model"
        await engine.wait_until_ready()
        async with engine.get("/health") as response:
            assert await response.json() == {"status": "ok"}
        assert any("loading layer" in line for line in engine.lines)


async def test_a_silent_load_logs_nothing(tmp_path: Path) -> None:
    """A slow load can also be one that gives no sign of progress."""
    async with fake_engine(tmp_path, load_seconds=0.3, load_log=False) as engine:
        assert not [line for line in engine.lines if "loading layer" in line]


@pytest.mark.parametrize(
    ("faults", "code"),
    [
        ({"die": "start", "exit": 3}, 3),
        ({"die": "start"}, -signal.SIGABRT),
        ({"die": "load", "load_seconds": 0.1, "signal": "SIGSEGV"}, -signal.SIGSEGV),
        ({"die": "exec", "signal": "SIGILL"}, -signal.SIGILL),
        ({"die": "exec", "signal": 9}, -signal.SIGKILL),
        ({"die": "ready", "exit": 1}, 1),
    ],
)
async def test_it_dies_where_and_how_it_is_told(tmp_path: Path, faults: dict[str, Any], code: int) -> None:
    """Each stage before the first request can end it, by exit code or by signal."""
    async with fake_engine(tmp_path, wait=False, **faults) as engine:
        assert await _exit_code(engine) == code


async def test_an_abort_leaves_the_assertion_in_the_log(tmp_path: Path) -> None:
    """SIGABRT comes with the line that ggml prints."""
    async with fake_engine(tmp_path, wait=False, die="start") as engine:
        await engine.wait_for_line("GGML_ASSERT(fake == real) failed")


@pytest.mark.parametrize(("faults", "contents"), [({"die": "prefill"}, 0), ({"die": "stream", "after_chunks": 3}, 3)])
async def test_it_dies_in_the_middle_of_a_request(tmp_path: Path, faults: dict[str, Any], contents: int) -> None:
    """The stream has started, so many content chunks came, then the connection breaks and the process is gone."""
    async with fake_engine(tmp_path, **faults) as engine:
        received = bytearray()
        async with engine.post(_CHAT, {**_ASK, "stream": True}) as response:
            assert response.status == 200
            with pytest.raises(_DISCONNECTED):
                await _collect(response, received)
        events = sse_payloads(received.decode())
        assert sum(bool(event["choices"][0]["delta"]["content"]) for event in events) == contents
        assert await _exit_code(engine) == -signal.SIGABRT


async def test_a_truncated_stream_has_no_end(tmp_path: Path) -> None:
    """The connection closes after so many chunks, without [DONE] and without the end of the transfer; it lives on."""
    async with fake_engine(tmp_path, truncate=True, after_chunks=2) as engine:
        with pytest.raises(_DISCONNECTED):
            await engine.events(_CHAT, _ASK)
        assert await engine.busy_slots() == 0


async def test_an_error_event_ends_a_stream(tmp_path: Path) -> None:
    """After so many chunks comes an error event, no [DONE], and a proper end of the transfer."""
    async with fake_engine(tmp_path, error=True, after_chunks=1) as engine:
        events = await engine.events(_CHAT, _ASK)
        assert events[-1]["error"]["code"] == 500
        async with engine.post(_CHAT, _ASK) as response:
            assert response.status == 500


@pytest.mark.parametrize("faults", [{"hang": "ready"}, {"hang": "prefill"}, {"hang": "stream", "after_chunks": 1}])
async def test_a_hung_engine_answers_nothing_and_can_be_stopped(tmp_path: Path, faults: dict[str, Any]) -> None:
    """From its stage on not even /health answers, though connections are accepted; SIGTERM works."""
    async with fake_engine(tmp_path, **faults) as engine, anyio.create_task_group() as tasks:

        async def ask() -> None:
            with pytest.raises(_DISCONNECTED):
                await engine.events(_CHAT, _ASK)

        if faults["hang"] != "ready":
            tasks.start_soon(ask)
            await engine.wait_for_line("processing task")
        with anyio.move_on_after(0.3) as waited:
            await engine.client.get("http://engine/health")
        assert waited.cancelled_caught
        os.killpg(engine.pid, signal.SIGKILL)
        await _exit_code(engine)


async def test_a_hang_on_demand_ends_on_demand(tmp_path: Path) -> None:
    """SIGUSR1 makes it hang at any moment, SIGUSR2 lets it go on where it was."""
    ask = {**_ASK, "stream": True}
    async with fake_engine(tmp_path, chunk_delay=0.02) as engine, engine.post(_CHAT, ask) as response:
        await response.content.readuntil(b"said:")
        engine.hang()
        with anyio.move_on_after(0.3) as waited:
            await response.content.readuntil(b"[DONE]")
        assert waited.cancelled_caught
        engine.go_on()
        await response.content.readuntil(b"[DONE]")


async def test_sigterm_is_ignored_on_demand(tmp_path: Path) -> None:
    """Only SIGKILL ends it."""
    async with fake_engine(tmp_path, ignore_sigterm=True) as engine:
        engine.terminate()
        with anyio.move_on_after(0.3) as waited:
            await engine.process.wait()
        assert waited.cancelled_caught


async def test_sigterm_ends_an_idle_engine_at_once(tmp_path: Path) -> None:
    """Exit code 0, with the line that says so; kept-alive connections don't hold it."""
    async with fake_engine(tmp_path) as engine:
        assert await engine.busy_slots() == 0
        engine.terminate()
        assert await _exit_code(engine) == 0
        await engine.wait_for_line("cleaning up before exit")


async def test_sigterm_freezes_open_streams_until_their_clients_leave(tmp_path: Path) -> None:
    """As measured on the real one: it sends nothing more, and does not exit while a client holds on."""
    async with fake_engine(tmp_path, chunks=1000, chunk_delay=0.01) as engine:
        async with engine.post(_CHAT, {**_ASK, "stream": True}) as response:
            await response.content.readuntil(b"word5")
            engine.terminate()
            await engine.wait_for_line("cleaning up before exit")
            with anyio.move_on_after(0.3) as waited:
                await engine.process.wait()
            assert waited.cancelled_caught
            response.close()
        assert await _exit_code(engine) == 0


async def test_a_client_that_leaves_a_stream_frees_its_slot(tmp_path: Path) -> None:
    """In decode the slot is idle within one chunk."""
    async with fake_engine(tmp_path, chunks=2000, chunk_delay=0.01) as engine:
        async with engine.post(_CHAT, {**_ASK, "stream": True}) as response:
            await response.content.readuntil(b"word5")
            assert await engine.busy_slots() == 1
            response.close()
        await _until_idle(engine)
        await engine.wait_for_line("cancel task")


@pytest.mark.parametrize(
    ("wishes", "noticed"),
    [({"stream": True, "return_progress": True}, True), ({"stream": True}, False), ({}, False)],
)
async def test_a_client_that_leaves_a_prefill(tmp_path: Path, wishes: dict[str, Any], noticed: bool) -> None:
    """Only a stream with progress reports is given up between two batches; all else reads the whole prompt."""
    ask = {"messages": [{"role": "user", "content": "word " * 99}], **wishes}
    async with fake_engine(tmp_path, "--batch-size", "10", prefill_delay=0.05) as engine:
        with anyio.move_on_after(0.2):
            async with engine.post(_CHAT, ask) as response:
                await response.read()
        await _until_idle(engine)
        async with engine.get("/slots") as response:
            processed = next(row["n_prompt_tokens_processed"] for row in await response.json() if "id_task" in row)
        assert (processed < 100) is noticed


async def test_requests_beyond_the_slots_wait_their_turn(tmp_path: Path) -> None:
    """With one slot the next request starts after the first; a client that leaves the queue is forgotten."""
    async with fake_engine(tmp_path, "--parallel", "1", chunk_delay=0.05) as engine, anyio.create_task_group() as tasks:
        tasks.start_soon(engine.events, _CHAT, _ASK)
        await engine.wait_for_line("processing task")
        with anyio.move_on_after(0.05):
            await engine.events(_CHAT, _ASK)
        assert (await engine.events(_CHAT, _ASK))[-1] == "[DONE]"
        assert sum("processing task" in line for line in engine.lines) == 2


@pytest.mark.parametrize("where", ["group", "session"])
async def test_a_grandchild_outlives_it(tmp_path: Path, where: str) -> None:
    """It stays in the engine's group, or escapes into a session of its own."""
    async with fake_engine(tmp_path, grandchild=where) as engine:
        line = await engine.wait_for_line("grandchild: pid ")
        grandchild = psutil.Process(int(line.rpartition(" ")[2]))
        try:
            assert (os.getpgid(grandchild.pid) == engine.pid) is (where == "group")
            engine.process.kill()
            await engine.process.wait()
            assert grandchild.is_running()
        finally:
            grandchild.kill()


async def test_it_holds_memory(tmp_path: Path) -> None:
    """The bytes are anonymous and resident."""
    async with fake_engine(tmp_path, memory_mib=64) as engine:
        assert psutil.Process(engine.pid).memory_info().rss > 64 << 20


async def test_it_replays_a_recorded_log(tmp_path: Path) -> None:
    """Every line as it stands, then the recorded exit code."""
    log = tmp_path / "recorded.log"
    log.write_text("first line\nCUDA error: out of memory\n", encoding="utf-8")
    async with fake_engine(tmp_path, replay=str(log), exit=134, wait=False) as engine:
        assert await _exit_code(engine) == 134
        await engine.wait_for_line("CUDA error")
        assert engine.lines[-2:] == ["first line", "CUDA error: out of memory"]


async def test_it_floods_the_log(tmp_path: Path) -> None:
    """So many long lines, whole."""
    async with fake_engine(tmp_path, log_flood=2000) as engine:
        await engine.wait_for_line("line 1999 ")
        assert sum("xxx" in line for line in engine.lines) == 2000


async def test_a_launch_can_fail_once(tmp_path: Path) -> None:
    """The second launch with the same model file is healthy."""
    model = tiny_model(tmp_path, die="start", exit=5, once=True)
    async with fake_engine(tmp_path, model=model, wait=False) as engine:
        assert await _exit_code(engine) == 5
    async with fake_engine(tmp_path, model=model):
        pass


async def test_faults_belong_to_models_by_name_or_by_a_file_beside_them(tmp_path: Path) -> None:
    """One build, three models: one fails by its name, one by its file, one works."""
    good, bad, changed = (tiny_model(tmp_path, f"{name}.gguf") for name in ("good", "bad", "changed"))
    set_faults(changed, die="start", exit=7)
    faults: dict[str, Any] = {"models": {"bad*.gguf": {"die": "start", "exit": 6}}}
    for model, code in ((bad, 6), (changed, 7)):
        async with fake_engine(tmp_path, model=model, wait=False, **faults) as engine:
            assert await _exit_code(engine) == code
    async with fake_engine(tmp_path, model=good, **faults):
        pass


@pytest.mark.parametrize(
    ("content", "said"), [(None, "No such file or directory"), (b"not a model", "invalid magic characters")]
)
def test_a_bad_model_file_ends_the_start(tmp_path: Path, content: bytes | None, said: str) -> None:
    """Exit code 1 and the real one's lines."""
    model = tmp_path / "bad.gguf"
    if content is not None:
        model.write_bytes(content)
    done = _run(fake_build(tmp_path).executable, "--model", str(model), "--host", str(tmp_path / "s.sock"))
    assert done.returncode == 1
    assert said in done.stderr
    assert "exiting due to model loading error" in done.stderr


def test_a_stale_socket_file_ends_the_start(tmp_path: Path) -> None:
    """Like the real one it does not remove what is in its way."""
    (tmp_path / "s.sock").touch()
    done = _run(fake_build(tmp_path).executable, "--model", "x", "--host", str(tmp_path / "s.sock"))
    assert done.returncode == 1
    assert "couldn't bind HTTP server socket" in done.stderr


def test_the_short_commands_answer(tmp_path: Path) -> None:
    """Version on stderr; flags and devices on stdout, in the real one's layout."""
    executable = fake_build(tmp_path, devices=["CUDA0: Fake Card (8192 MiB, 8000 MiB free)"]).executable
    assert _run(executable, "--version").stderr.startswith("version: 1 (571d0d5)\n")
    assert _run(executable, "--list-devices").stdout == (
        "Available devices:\n  CUDA0: Fake Card (8192 MiB, 8000 MiB free)\n"
    )
    flags = _run(executable, "--help").stdout
    assert "-c,    --ctx-size N                     size of the prompt context" in flags
    assert "\n--offline  " in flags


def test_an_older_build_knows_fewer_flags_and_refuses_the_rest(tmp_path: Path) -> None:
    """Its help lacks them, and a strict one ends its start on them, as the real one does."""
    executable = fake_build(tmp_path, help="old", strict=True).executable
    assert "--offline" not in _run(executable, "--help").stdout
    done = _run(executable, "--model", "x", "--offline")
    assert (done.returncode, done.stderr) == (1, "error: invalid argument: --offline\n")


def test_a_build_that_can_not_run_fails_even_its_version(tmp_path: Path) -> None:
    """A loader's error and exit code 127, before anything else."""
    log = tmp_path / "loader.log"
    log.write_text("error while loading shared libraries: libcuda.so.1: cannot open shared object file\n")
    executable = fake_build(tmp_path, die="exec", exit=127, replay=str(log)).executable
    done = _run(executable, "--version")
    assert done.returncode == 127
    assert "libcuda.so.1" in done.stderr


def test_a_probe_can_hang(tmp_path: Path) -> None:
    """A short command that never ends, for the time limit to cut."""
    executable = fake_build(tmp_path, probe_hang=True).executable
    with pytest.raises(subprocess.TimeoutExpired):
        subprocess.run([executable, "--version"], timeout=0.5, check=False, capture_output=True)


def test_a_fault_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    """A typo in a test must not make it pass: neither here nor in the environment of a launch."""
    with pytest.raises(FaultError, match="no such fault: dei"):
        fake_build(tmp_path, dei="start")
    done = _run(fake_build(tmp_path).executable, "--model", "x", FAKE_ENGINE="chunk=3")
    assert done.returncode == 99
    assert "no such fault: chunk" in done.stderr


def test_faults_are_written_as_json_or_as_assignments() -> None:
    """Both forms give the same values."""
    expected = {"chunks": 3, "die": "stream", "truncate": True, "load_seconds": 0.5}
    assert parse_assignments("chunks=3, die=stream,truncate=true,load-seconds=0.5") == expected
    assert parse_assignments('{"chunks":3,"die":"stream","truncate":true,"load_seconds":0.5}') == expected
    with pytest.raises(FaultError, match="KEY=VALUE"):
        parse_assignments("hang")
