"""Pictures that end early: cancelled, left, killed with their engine, or too large for the memory there is."""

from __future__ import annotations

import contextlib
import json
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.engines.pictures import IMAGES, JOBS, SMALL, connection, delete, drawing_daemon, get, post, states
from tests.support.cgroups import NoCgroupError, made_cgroup
from tests.support.daemon import Daemon
from tests.support.demo import DemoEngine
from tests.support.toy_pictures import ToyModels, lora, save
from tests.wire.asking import CHAT, ask, chat_body, instance, status
from tests.wire.beside import until

pytestmark = [pytest.mark.engine, pytest.mark.timeout(240)]

# Long enough that a test can do something in the middle of it.
LONG = {"model": "ovis", "prompt": "a cat", "size": "256x256", "steps": 100}


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory, sd_server: Path, toy_models: ToyModels) -> Iterator[Daemon]:
    """It runs, and nothing is loaded."""
    with drawing_daemon(tmp_path_factory.mktemp("ending"), sd_server, toy_models) as running:
        yield running


@pytest.fixture
def daemon(shared: Daemon) -> Iterator[Daemon]:
    """The same for each test, which finds no engine and leaves none."""
    assert shared.engines() == []
    shared.records.clear()
    yield shared
    post(shared, "/admin/v1/models/ovis/unload", {})
    until(lambda: shared.engines() == [])


def _until_step(daemon: Daemon, job: str, step: int) -> None:
    for event in states(daemon, job):
        if event.get("step", 0) >= step:
            return
    raise AssertionError(f"{job} ended before step {step}: {get(daemon, f'{JOBS}/{job}').json}")


def _is_idle(pid: int) -> bool:
    """Its process is gone, or computes nothing."""
    try:
        process = psutil.Process(pid)
        process.cpu_percent()
        time.sleep(0.3)
        return process.cpu_percent() < 20
    except psutil.NoSuchProcess:
        return True


def _no_leases(daemon: Daemon) -> None:
    for _ in range(200):
        rows = status(daemon)["instances"]
        if not any(row["leases"] for row in rows):
            return
        time.sleep(0.05)
    raise AssertionError(status(daemon))


def test_a_cancelled_picture_frees_the_engine_and_the_next_is_drawn(daemon: Daemon) -> None:
    """The server can't interrupt: it is stopped where that is sooner, and started for who waits."""
    job = post(daemon, JOBS, LONG).json["id"]
    _until_step(daemon, job, 3)
    row = instance(daemon, "ovis")
    pid, before = row["pid"], row["generation"]
    began = time.monotonic()
    told = delete(daemon, f"{JOBS}/{job}")
    assert (told.status, told.json["status"]) == (200, "cancelled")
    assert told.json["error"]["code"] == "image_generation_cancelled"
    daemon.wait_for_event("launch_exited", model="ovis", planned=True)
    assert time.monotonic() - began < 5
    assert _is_idle(pid)
    _no_leases(daemon)
    assert post(daemon, IMAGES, {"model": "ovis", "prompt": "x", **SMALL}).status == 200
    assert instance(daemon, "ovis")["generation"] == before + 1
    book = status(daemon)["ledger"]["host"]["entries"]
    assert [entry["working"] for entry in book] == [0]


def test_who_cancels_while_waiting_leaves_no_trace(daemon: Daemon) -> None:
    """The picture before it goes on; the queue is empty, and the engine is the same."""
    running = post(daemon, JOBS, {**LONG, "size": "128x128", "steps": 20}).json["id"]
    _until_step(daemon, running, 1)
    before = instance(daemon, "ovis")["generation"]
    waiting = post(daemon, JOBS, LONG).json["id"]
    first = next(event for event in states(daemon, waiting) if event["state"] == "queued")
    assert first["position"] == 1
    assert delete(daemon, f"{JOBS}/{waiting}").json["status"] == "cancelled"
    assert list(states(daemon, running))[-1] == {"state": "done"}
    assert instance(daemon, "ovis")["generation"] == before
    assert status(daemon)["queue"]["waiting"] == 0


def test_a_client_that_hangs_up_cancels(daemon: Daemon) -> None:
    """Nobody draws on for nobody."""
    asking = connection(daemon)
    asking.request("POST", IMAGES, json.dumps(LONG), {"Content-Type": "application/json"})
    daemon.wait_for_event("request_leased", model="ovis")
    pid = instance(daemon, "ovis")["pid"]
    time.sleep(1.0)
    assert asking.sock is not None
    asking.sock.shutdown(socket.SHUT_RDWR)
    asking.close()
    daemon.wait_for_event("launch_exited", model="ovis", planned=True)
    assert _is_idle(pid)
    _no_leases(daemon)


def test_an_engine_that_is_killed_in_a_picture_is_replaced(daemon: Daemon) -> None:
    """The picture is drawn anew, once; its client only waits longer."""
    job = post(daemon, JOBS, {**LONG, "size": "128x128", "steps": 20}).json["id"]
    _until_step(daemon, job, 2)
    before = instance(daemon, "ovis")
    psutil.Process(before["pid"]).send_signal(signal.SIGKILL)
    told = list(states(daemon, job))
    assert told[-1] == {"state": "done"}
    row = instance(daemon, "ovis")
    assert (row["generation"], row["last_exit"]["signal"]) == (before["generation"] + 1, 9)


def test_a_request_that_ends_the_engine_is_refused_in_the_end(
    tmp_path: Path, sd_server: Path, toy_models: ToyModels
) -> None:
    """A LoRA whose shapes only the engine finds wrong: it dies twice, then this request is refused, others go on."""
    import numpy as np  # noqa: PLC0415  heavy

    # In diffusers' spelling, which the engine translates and the check before it does not: a hundred rows for 128.
    trap = lora(np.random.default_rng(2), {"transformer_blocks.0.attn.to_q": (100, 128)})
    renamed = {name.replace("diffusion_model.", "transformer."): tensor for name, tensor in trap.items()}
    save(toy_models.loras / "trap.safetensors", renamed)
    (toy_models.loras / "trap.yaml").write_text("id: trap\n")
    try:
        with drawing_daemon(tmp_path, sd_server, toy_models) as daemon:
            told = post(daemon, IMAGES, {"model": "ovis", "prompt": "x", **SMALL, "loras": ["trap"]})
            assert (told.status, told.json["error"]["code"]) == (422, "request_crashes_engine")
            ends = [record for record in daemon.records if record.get("event") == "launch_exited"]
            assert [record["planned"] for record in ends] == [False, False]
            assert post(daemon, IMAGES, {"model": "ovis", "prompt": "x", **SMALL}).status == 200
    finally:
        for end in ("yaml", "safetensors"):
            (toy_models.loras / f"trap.{end}").unlink()


def test_broken_files_are_told_of(tmp_path: Path, sd_server: Path, toy_models: ToyModels) -> None:
    """By name, and nothing is started; where only the engine sees it, its words become the reason."""
    names = ("truncated", "garbage", "missing_tensor")
    models = {
        name: {
            "engine": "stable-diffusion.cpp",
            "files": {**toy_models.ovis, "diffusion_model": str(toy_models.broken(name))},
        }
        for name in names
    }
    with drawing_daemon(tmp_path, sd_server, toy_models, models=models) as daemon:
        for name in names[:2]:
            told = post(daemon, IMAGES, {"model": name, "prompt": "x"})
            assert told.json["error"]["code"] == "model_broken"
            assert name in told.json["error"]["message"]
        assert daemon.engines() == []
        assert post(daemon, IMAGES, {"model": names[2], "prompt": "x"}).status == 503
        assert instance(daemon, names[2])["last_exit"]["kind"] == "MODEL_UNSUPPORTED"


def test_a_limit_of_the_kernel_is_kept(tmp_path: Path, sd_server: Path, toy_models: ToyModels) -> None:
    """A container that is too small for a large picture: it is drawn in tiles, and nothing is killed."""
    with contextlib.ExitStack() as stack:
        try:
            group = stack.enter_context(made_cgroup(memory=340 * 2**20))
        except NoCgroupError as error:
            pytest.skip(str(error))
        host = {"reserve": {"memory": "32MiB"}}
        daemon = stack.enter_context(drawing_daemon(tmp_path, sd_server, toy_models, host=host, inside=group))
        large = post(daemon, IMAGES, {"model": "ovis", "prompt": "x", "size": "768x64", "steps": 1})
        assert large.status == 200, large.json
        assert any("tiles, since" in note for note in large.json["settings_notes"])
        lines = (group.memory / ("memory.events" if group.unified else "memory.oom_control")).read_text().split("\n")
        assert sum(int(line.split()[1]) for line in lines if line.startswith("oom_kill ")) == 0


def test_a_chat_and_a_picture_take_turns_in_memory_for_one(
    tmp_path: Path, sd_server: Path, toy_models: ToyModels, demo_engine: DemoEngine, demo_model: Path
) -> None:
    """Each makes room for the other: no error, never two engines, and a book that holds what runs."""
    picture = {"engine": "stable-diffusion.cpp", "files": toy_models.ovis, "launch": {"threads": 1, "cfg_scale": 1}}
    chat = {"engine": "llama.cpp", "file": str(demo_model), "serves": ["chat"]}
    models = {
        "paint": picture,
        "chat": {**chat, "launch": {"slots": 1, "threads": 1, "ctx_size": 2048, "cache_ram": "256MiB"}},
    }
    engines = {
        "llama.cpp": {"builds": [demo_engine.as_config()]},
        "stable-diffusion.cpp": {"builds": [{"name": "real", "executable": str(sd_server)}]},
    }
    sections: dict[str, Any] = {
        "models": models,
        "engines": engines,
        "host": {"memory": "450MiB", "reserve": {"memory": "0MiB"}},
        "concessions": [],
        "broker": {"eviction": {"min_idle": "10ms"}},
    }
    with drawing_daemon(tmp_path, sd_server, toy_models, **sections) as daemon:
        for turn in range(2):
            told = ask(daemon, CHAT, chat_body("chat", max_tokens=4))
            assert told.status == 200, told.body
            assert [entry["model"] for entry in status(daemon)["ledger"]["host"]["entries"]] == ["chat"]
            if turn:
                break
            drawn = post(daemon, IMAGES, {"model": "paint", "prompt": "x", **SMALL})
            assert drawn.status == 200, drawn.json
            assert [entry["model"] for entry in status(daemon)["ledger"]["host"]["entries"]] == ["paint"]
            assert len(daemon.engines()) == 1
        assert len(daemon.engines()) == 1
        assert not [record for record in daemon.records if record.get("event") in {"over_committed", "internal_error"}]
