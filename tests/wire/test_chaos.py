"""Engines that end in every way there is: afterwards nothing of them is left, and the next request is served."""

from __future__ import annotations

import os
import shlex
import signal
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.support.daemon import Daemon, daemon_config, running_daemon_sync
from tests.support.disks import fill, small_disk
from tests.support.fake_engine import FakeBuild, fake_build, set_faults, tiny_model
from tests.support.sockets import short_socket_folder
from tests.wire.asking import CHAT, LOG_ALL, ask, asking, chat_body, endless, instance, status
from tests.wire.beside import until

# Many crashes of one build, on purpose: it is not to be set aside for them.
SUPERVISION = {
    "restart": {"initial": "50ms", "max": "50ms", "budget": 50},
    "stop": {"grace": "1s"},
    "quarantine": {"strikes": 1000},
}
_MEMORY_CGROUP = Path("/sys/fs/cgroup/memory")
_LIMIT = 64 * 2**20
# The daemon's own memory moves by a few MiB by itself.
_RSS_LEEWAY = 40 * 2**20


@contextmanager
def chaos(folder: Path, build: FakeBuild, models: dict[str, dict[str, Any]], **sections: Any) -> Iterator[Daemon]:
    """A daemon over models with these faults; in the end no engine, no socket and no record of a launch is left."""
    with short_socket_folder() as sockets:
        rows = {name: {"file": str(tiny_model(folder, f"{name}.gguf", **faults))} for name, faults in models.items()}
        config = daemon_config(
            build, models=rows, runtime_dir=str(sockets), **({"supervision": SUPERVISION} | sections)
        )
        with running_daemon_sync(folder, config, env=LOG_ALL) as daemon:
            yield daemon
            unload(daemon, *models)
            assert daemon.engines() == []
            assert list(sockets.iterdir()) == []
        launches = folder / "state" / "launches"
        assert not launches.is_dir() or list(launches.iterdir()) == []


def unload(daemon: Daemon, *models: str) -> None:
    """Stop the models' engines."""
    for model in models:
        assert ask(daemon, f"/admin/v1/models/{model}/unload", b"").status == 200


def served_again(daemon: Daemon, model: str) -> dict[str, Any]:
    """Hold that a next request is served, and that no lease or ticket is left; the model's row."""
    answer = ask(daemon, CHAT, chat_body(model))
    assert answer.status == 200, answer.body
    row = instance(daemon, model)
    assert row["leases"] == 0
    assert status(daemon)["queue"]["waiting"] == 0
    return row


ENDS: dict[str, dict[str, Any]] = {
    "segv-in-load": {"die": "load", "signal": "SIGSEGV"},
    "kill-in-load": {"die": "load", "signal": "SIGKILL"},
    "exit-in-load": {"die": "load", "exit": 3},
    "segv-when-ready": {"die": "ready", "signal": "SIGSEGV"},
    "segv-in-prefill": {"die": "prefill", "signal": "SIGSEGV"},
    "abort-in-prefill": {"die": "prefill", "signal": "SIGABRT"},
    "exit-in-prefill": {"die": "prefill", "exit": 1},
    "segv-in-stream": {"die": "stream", "after_chunks": 2, "signal": "SIGSEGV"},
    "bus-in-stream": {"die": "stream", "after_chunks": 2, "signal": "SIGBUS"},
    "kill-in-stream": {"die": "stream", "after_chunks": 2, "signal": "SIGKILL"},
    "exit-in-stream": {"die": "stream", "after_chunks": 2, "exit": 0},
}


def test_every_way_to_end(tmp_path: Path) -> None:
    """Signals and codes in the load, in the prefill and in mid-stream, each once: the next request is served."""
    models = {name: {**faults, "once": True} for name, faults in ENDS.items()}
    with chaos(tmp_path, fake_build(tmp_path), models) as daemon:
        for name, faults in ENDS.items():
            with asking(daemon, chat_body(name, stream=True), id=name) as request:
                request.answer()
            daemon.wait_for_event("launch_exited", model=name)
            served_again(daemon, name)
            last = daemon.wait_for_event("launch_exited", model=name)
            number = faults.get("signal")
            assert last["signal"] == (None if number is None else signal.Signals[number])
            assert (last["exit_code"], last["planned"]) == (faults.get("exit"), False)
            assert last["resident_bytes"] is None or last["resident_bytes"] > 0
            unload(daemon, name)


def test_a_load_that_is_stopped_stands_still(tmp_path: Path) -> None:
    """SIGSTOP in the load: nothing moves, so it is cut after the stall time-out; who waited is served by the next."""
    supervision = {**SUPERVISION, "readiness": {"stall_timeout": "1s"}}
    with chaos(tmp_path, fake_build(tmp_path), {"m": {"load_seconds": 30}}, supervision=supervision) as daemon:
        with asking(daemon, chat_body("m"), id="waits") as request:
            daemon.wait_for_event("load_progress")
            os.kill(daemon.wait_for_event("launch_started")["pid"], signal.SIGSTOP)
            set_faults(tmp_path / "m.gguf")
            answer = request.answer()
        assert answer.status == 200, answer.body
        cut = daemon.wait_for_event("launch_exited")
        assert (cut["phase"], cut["planned"]) == ("starting", False)
        served_again(daemon, "m")


def script(build: FakeBuild, text: str) -> FakeBuild:
    """The build behind a script that does ``text`` first and then becomes the engine."""
    path = build.executable.with_name("script")
    # Short commands only become the engine: they are answered, not tortured.
    path.write_text(
        f'#!/bin/sh\ncase "$1" in --model|-m) {text};; esac\nexec {shlex.quote(str(build.executable))} "$@"\n'
    )
    path.chmod(0o755)
    return FakeBuild(build.name, path)


def test_a_log_flood_from_a_grandchild(tmp_path: Path) -> None:
    """Output as fast as it is read, for seconds: memory stays, the daemon answers, requests are served, all ends."""
    build = script(fake_build(tmp_path), f"yes {'x' * 200} &")
    with chaos(tmp_path, build, {"m": {}}) as daemon:
        served_again(daemon, "m")
        own = psutil.Process(daemon.pid)
        before = own.memory_info().rss
        end = time.monotonic() + 3
        while time.monotonic() < end:
            assert ask(daemon, "/healthz").status == 200
            served_again(daemon, "m")
        assert own.memory_info().rss - before < _RSS_LEEWAY
        family = daemon.engines()
        assert len(family) == 2
        unload(daemon, "m")
        assert not [process for process in family if process.is_running() and process.status() != "zombie"]


@contextmanager
def small_cgroup() -> Iterator[Path]:
    """A memory cgroup with a limit; skips where none can be made."""
    folder = _MEMORY_CGROUP / f"enginehouse-test-{uuid.uuid4().hex[:8]}"
    try:
        folder.mkdir()
        (folder / "memory.limit_in_bytes").write_text(str(_LIMIT))
    except OSError as error:
        pytest.skip(f"no memory cgroup of version 1 can be made here: {error}")
    try:
        yield folder
    finally:
        until(lambda: not (folder / "cgroup.procs").read_text().split())
        folder.rmdir()


def test_the_kernels_kill_for_memory_is_told_from_any_other(tmp_path: Path) -> None:
    """In a cgroup that is too small the exit blames memory, by the cgroup's counter; a SIGKILL by hand does not."""
    with small_cgroup() as cgroup:
        # Long enough in it to be looked at, as a load of real weights is.
        build = script(fake_build(tmp_path), f"echo $$ > {cgroup}/cgroup.procs; sleep 3")
        models: dict[str, dict[str, Any]] = {"small": {}, "large": {"memory_mib": 300}}
        supervision = {**SUPERVISION, "restart": {"initial": "50ms", "max": "50ms", "budget": 1}}
        with chaos(tmp_path, build, models, supervision=supervision) as daemon:
            pid = served_again(daemon, "small")["pid"]
            until(lambda: str(pid) in (cgroup / "cgroup.procs").read_text().split())
            os.kill(pid, signal.SIGKILL)
            daemon.wait_for_event("launch_exited", model="small")
            by_hand = instance(daemon, "small")["last_exit"]
            assert (by_hand["signal"], by_hand["kind"]) == (9, "KILLED")
            assert by_hand["memory"]["resident"] > 2**20
            answer = ask(daemon, CHAT, chat_body("large"))
            assert answer.status >= 500
            killed = instance(daemon, "large")["last_exit"]
            assert (killed["signal"], killed["kind"]) == (9, "OUT_OF_HOST_MEMORY")
            served_again(daemon, "small")


def test_a_full_disk_under_the_state_folder(tmp_path: Path) -> None:
    """Nothing can be written any more: that is told, engines start and stop all the same, and nothing is left."""
    with small_disk(tmp_path / "state") as disk, chaos(tmp_path, fake_build(tmp_path), {"m": {}}) as daemon:
        served_again(daemon, "m")
        unload(daemon, "m")
        fill(disk)
        served_again(daemon, "m")
        assert daemon.wait_for_event("launch_record_failed")["reason"]
        response = ask(daemon, "/v1/responses", {"model": "m", "input": "hello"})
        assert (response.status, response.json["status"]) == (200, "completed")
        assert daemon.wait_for_event("response_not_stored")["response"] == response.json["id"]
        unload(daemon, "m")
        (disk / "filler").unlink()
        served_again(daemon, "m")


def test_a_hung_stream_under_a_stop(tmp_path: Path) -> None:
    """SIGSTOP in mid-stream and then a stop by hand: the client is told, the engine ends within the grace."""
    with chaos(tmp_path, fake_build(tmp_path), {"m": {"chunk_delay": 0.02}}) as daemon:
        with asking(daemon, endless("m"), id="runs") as request:
            request.next_text()
            os.kill(instance(daemon, "m")["pid"], signal.SIGSTOP)
            unload(daemon, "m")
            events = request.answer().events
        assert "error" in events[-1]
        served_again(daemon, "m")
