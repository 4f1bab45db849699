"""The life of a real engine under the daemon: killed, drained, shared, and gone with it."""

from __future__ import annotations

import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from tests.engines.conftest import config_for, load
from tests.support.daemon import daemon_config, running_daemon_sync
from tests.support.demo import DemoEngine
from tests.support.sockets import short_socket_folder
from tests.wire.asking import CHAT, EMBEDDINGS, LOG_ALL, ask, asking, chat_body, instance, launches
from tests.wire.beside import busy_slots, until

pytestmark = [pytest.mark.engine, pytest.mark.timeout(180)]

STORY = chat_body("smol", "Tell me a long story.", stream=True, ignore_eos=True, max_tokens=1900)


def test_killed_in_mid_stream(tmp_path: Path, demo_engine: DemoEngine, demo_model: Path) -> None:
    """After kill -9 of the engine the stream ends with one error event, and the next request has a new engine."""
    with running_daemon_sync(tmp_path, config_for(demo_engine, demo_model), env=LOG_ALL) as daemon:
        with asking(daemon, STORY, id="killed") as request:
            for _ in range(3):
                request.next_text()
            first = instance(daemon, "smol")
            os.kill(first["pid"], signal.SIGKILL)
            rest = request.answer().events
            after = ask(daemon, CHAT, chat_body("smol", max_tokens=2))
        assert [event["error"]["code"] for event in rest if "error" in event] == ["upstream_died"]
        assert rest[-1] != "[DONE]"
        assert after.status == 200, after.body
        second = instance(daemon, "smol")
        assert (first["generation"], second["generation"]) == (1, 2)
        assert (second["last_exit"]["signal"], second["last_exit"]["kind"]) == (9, "KILLED")


def test_killed_before_the_first_content(tmp_path: Path, demo_engine: DemoEngine, demo_model: Path) -> None:
    """An engine killed while it reads the prompt: nothing had been said, so the next launch answers."""
    config = config_for(demo_engine, demo_model, batch_size=64)
    with running_daemon_sync(tmp_path, config, env=LOG_ALL) as daemon:
        pid = load(daemon, "smol")["pid"]
        with asking(daemon, chat_body("smol", "word " * 400, stream=True, max_tokens=2), id="killed") as request:
            until(lambda: busy_slots(pid) == 1)
            os.kill(pid, signal.SIGKILL)
            events = request.answer().events
        assert events[-1] == "[DONE]"
        assert not any("error" in event for event in events)
        assert instance(daemon, "smol")["generation"] == 2


def test_stopped_before_the_first_content(tmp_path: Path, demo_engine: DemoEngine, demo_model: Path) -> None:
    """SIGSTOP of the real engine in its prefill: it is found out and replaced, and the same request is answered."""
    config = config_for(demo_engine, demo_model, batch_size=64)
    config["supervision"] = {"liveness": {"interval": "500ms", "timeout": "2s", "failures": 2}}
    with running_daemon_sync(tmp_path, config, env=LOG_ALL) as daemon:
        pid = load(daemon, "smol")["pid"]
        with asking(daemon, chat_body("smol", "word " * 400, stream=True, max_tokens=2), id="stopped") as request:
            until(lambda: busy_slots(pid) == 1)
            os.kill(pid, signal.SIGSTOP)
            daemon.wait_for_event("instance_changed", 60, new="unresponsive")
            events = request.answer().events
        assert events[-1] == "[DONE]"
        assert not any("error" in event for event in events)
        assert instance(daemon, "smol")["generation"] == 2


def test_first_requests_share_one_start(tmp_path: Path, demo_engine: DemoEngine, demo_model: Path) -> None:
    """Chats and an embedding that come at once to a model that is not loaded wait for one launch, and are told so."""
    with running_daemon_sync(tmp_path, config_for(demo_engine, demo_model)) as daemon:
        with ThreadPoolExecutor(4) as pool:
            asked = [pool.submit(ask, daemon, CHAT, chat_body("smol", max_tokens=2)) for _ in range(3)]
            asked.append(pool.submit(ask, daemon, EMBEDDINGS, {"model": "smol", "input": "a"}))
            answers = [future.result() for future in asked]
        assert [answer.status for answer in answers] == [200] * 4
        assert all(int(answer.headers["x-enginehouse-load-ms"]) > 0 for answer in answers)
        assert len(launches(daemon, "smol")) == 1


def test_drained_and_gone(tmp_path: Path, demo_engine: DemoEngine, demo_model: Path) -> None:
    """On SIGTERM a running stream is finished, then the engine stops by itself; no process and no socket is left."""
    with short_socket_folder() as sockets:
        config = {**config_for(demo_engine, demo_model), "runtime_dir": str(sockets)}
        config["shutdown"] = {"drain": "60s", "total": "70s"}
        with running_daemon_sync(tmp_path, config) as daemon:
            load(daemon, "smol")
            [engine] = daemon.engines()
            with asking(daemon, {**STORY, "max_tokens": 20}, id="runs") as request:
                request.next_text()
                daemon.send(signal.SIGTERM)
                events = request.answer().events
            assert events[-1] == "[DONE]"
            assert daemon.process.wait(20) == 0
            assert not engine.is_running()
            exited = daemon.wait_for_event("launch_exited")
            assert (exited["planned"], exited["exit_code"], exited["signal"]) == (True, 0, None)
        assert list(sockets.iterdir()) == []


def test_cut_at_the_end_of_the_drain(tmp_path: Path, demo_engine: DemoEngine, demo_model: Path) -> None:
    """A stream that outlives the drain ends with an error event; the engine, freed of it, still stops by itself."""
    config = {**config_for(demo_engine, demo_model), "shutdown": {"drain": "500ms", "total": "9s"}}
    with running_daemon_sync(tmp_path, config) as daemon:
        load(daemon, "smol")
        with asking(daemon, STORY, id="runs") as request:
            request.next_text()
            began = time.monotonic()
            daemon.send(signal.SIGTERM)
            events = request.answer().events
            assert daemon.process.wait(20) == 0
            assert time.monotonic() - began < 9 + 2
        assert events[-1]["error"]["code"] == "draining"
        assert "[DONE]" not in events
        assert daemon.wait_for_event("launch_exited")["planned"]


def test_killed_daemon_leaves_no_engine(tmp_path: Path, demo_engine: DemoEngine, demo_model: Path) -> None:
    """SIGKILL of the daemon, in the middle of an answer, ends its engine."""
    with (
        running_daemon_sync(tmp_path, config_for(demo_engine, demo_model)) as daemon,
        asking(daemon, STORY, id="runs") as request,
    ):
        request.next_text()
        engines = daemon.engines()
        assert engines
        daemon.send(signal.SIGKILL)
        daemon.process.wait(10)
        _, alive = psutil.wait_procs(engines, timeout=5)
        assert alive == []


def test_model_file_cut_in_half(tmp_path: Path, demo_engine: DemoEngine, demo_model: Path) -> None:
    """Half of the real model is listed as broken with the reason, is not offered, and says why when asked for."""
    half = tmp_path / "half.gguf"
    with demo_model.open("rb") as whole:
        half.write_bytes(whole.read(demo_model.stat().st_size // 2))
    config = daemon_config(
        demo_engine.as_config(), models={"half": {"file": str(half)}, "smol": {"file": str(demo_model)}}
    )
    with running_daemon_sync(tmp_path, config) as daemon:
        broken = daemon.wait_for_event("model_broken", model="half")
        assert [row["id"] for row in ask(daemon, "/v1/models").json["data"]] == ["smol"]
        answer = ask(daemon, CHAT, chat_body("half"))
        assert (answer.status, answer.error["code"]) == (503, "model_broken")
        assert broken["reason"] in answer.error["message"]
        assert launches(daemon, "half") == []


def test_without_a_config(tmp_path: Path, demo_engine: DemoEngine, demo_model: Path) -> None:
    """With the package installed and a model in the data folder, a daemon without any config answers."""
    data = tmp_path / ".local/share/enginehouse"
    data.mkdir(parents=True)
    (data / demo_model.name).symlink_to(demo_model)
    with running_daemon_sync(tmp_path, None) as daemon:
        [model] = [row["id"] for row in ask(daemon, "/v1/models").json["data"]]
        answer = ask(daemon, CHAT, chat_body(model, max_tokens=2))
        assert answer.status == 200
        assert answer.json["choices"][0]["message"]["content"]
        argv = instance(daemon, model)["plan"]["argv"]
        assert argv[0] == str(demo_engine.executable)


def test_keys_are_not_told(tmp_path: Path, demo_engine: DemoEngine, demo_model: Path) -> None:
    """The engine's key is in no argument, log line or status; the engine's socket is in a folder of its own."""
    with running_daemon_sync(tmp_path, config_for(demo_engine, demo_model), env=LOG_ALL) as daemon:
        load(daemon, "smol")
        assert ask(daemon, CHAT, chat_body("smol", max_tokens=1)).status == 200
        [engine] = daemon.engines()
        key = engine.environ()["LLAMA_API_KEY"]
        argv = engine.cmdline()
        assert len(key) > 20
        assert not any(key in word for word in argv)
        assert key not in daemon.log_text()
        assert key.encode() not in ask(daemon, "/admin/v1/status").body
        socket = Path(argv[argv.index("--host") + 1])
        assert socket.is_socket()
        assert socket.parent.stat().st_mode & 0o777 == 0o700
