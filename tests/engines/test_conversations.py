"""Conversations over the real llama-server: what is restored is what was computed, whatever happened in between."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.engines.conftest import PATIENT
from tests.support.daemon import Daemon, daemon_config, running_daemon_sync
from tests.support.demo import DemoEngine
from tests.support.talks import Talk, text_of
from tests.wire.asking import LOG_ALL, ask, instance

_WORDS = 130
_LAUNCH = {"threads": 1, "threads_batch": 1, "slots": 2}
# Two models of one file, told apart by their context.
_MODELS = {"one": 1024, "two": 768}
_LONG_ENOUGH = 20.0


def _config(engine: DemoEngine, model: Path, **sections: Any) -> dict[str, Any]:
    models = {
        name: {"file": str(model), "serves": ["chat"], "launch": {**_LAUNCH, "ctx_size": size}}
        for name, size in _MODELS.items()
    }
    return daemon_config(engine.as_config(), models=models, supervision=PATIENT, **sections)


@contextmanager
def _daemon(folder: Path, config: Mapping[str, Any]) -> Iterator[Daemon]:
    with running_daemon_sync(folder, config, env=LOG_ALL) as daemon:
        yield daemon


def _kept(folder: Path, suffix: str) -> list[Path]:
    return list((folder / "state" / "kv").glob(f"*{suffix}"))


def _same_without_restore(talk: Talk) -> None:
    """At temperature 0 the last answer is what the engine says when it computes the whole prompt."""
    said = talk.text
    talk.options = {"cache_prompt": False}
    talk.again()
    assert talk.cached == 0
    assert talk.text == said
    talk.options = {}


def test_conversations_outlive_slots_switches_and_daemons(
    tmp_path: Path, demo_engine: DemoEngine, demo_model: Path
) -> None:
    """More of them than slots; two models with memory for one; a restart: each comes back, and says the same."""
    config = _config(demo_engine, demo_model)
    with _daemon(tmp_path, config) as daemon:
        needed = [ask(daemon, f"/admin/v1/plan?model={name}").json["ledger"]["needed"]["host"] for name in _MODELS]
        talks = [Talk(daemon, "one", text_of(_WORDS, name), name) for name in "abc"]
        for talk in talks:
            assert talk.say() in {"cold", "prefix"}
        for talk in talks[:2]:
            assert talk.say() == "restored"
            assert talk.cached > _WORDS
    limited = {
        "host": {"memory": f"{int(max(needed) * 1.2)}B", "reserve": {"memory": 0}},
        "concessions": [],
        "broker": {"eviction": {"min_idle": "1ms"}},
    }
    with _daemon(tmp_path, {**config, **limited}) as daemon:
        for talk in talks:
            talk.daemon = daemon
        assert talks[2].say() == "restored"
        other = Talk(daemon, "two", text_of(_WORDS, "d"), "d")
        assert other.say() in {"cold", "prefix"}
        talks[2].messages.append({"role": "user", "content": "And then?"})
        assert talks[2].again() == "restored"
        assert talks[2].cached > _WORDS
        _same_without_restore(talks[2])
        assert other.say() == "restored"
        evicted = [row["model"] for row in daemon.records if row.get("event") == "evicted"]
        assert evicted == ["one", "two", "one"]


@pytest.mark.slow
def test_a_kill_in_mid_save_leaves_nothing_to_be_read(
    tmp_path: Path, demo_engine: DemoEngine, demo_model: Path
) -> None:
    """The engine is killed while it is asked to save, then the daemon while the next one is: only whole files count."""
    config = _config(demo_engine, demo_model)
    with _daemon(tmp_path, config) as daemon:
        talk = Talk(daemon, "one", text_of(_WORDS, "a"), "a")
        talk.say()
        os.kill(_stopped_in_mid_save(daemon, tmp_path), signal.SIGKILL)
        daemon.wait_for_event("session_not_saved")
        assert not _kept(tmp_path, ".kv")
        assert talk.say() in {"cold", "prefix"}
        engine = _stopped_in_mid_save(daemon, tmp_path)
        daemon.send(signal.SIGKILL)
        daemon.process.wait()
        with_engine = [process for process in (engine,) if _lives(process)]
        for process in with_engine:
            os.kill(process, signal.SIGKILL)
    with _daemon(tmp_path, config) as daemon:
        talk.daemon = daemon
        assert talk.say() in {"cold", "prefix"}
        assert not _kept(tmp_path, ".part")
        _same_without_restore_of_last(talk)


def _same_without_restore_of_last(talk: Talk) -> None:
    """The engine computes the same once more."""
    talk.messages.pop()
    talk.again()
    _same_without_restore(talk)


def _stopped_in_mid_save(daemon: Daemon, folder: Path) -> int:
    """Stop the engine right after its answer, and wait until it is asked to write its idle slot; its process."""
    pid = int(instance(daemon, "one")["pid"])
    os.kill(pid, signal.SIGSTOP)
    deadline = time.monotonic() + _LONG_ENOUGH
    while not _kept(folder, ".part"):
        assert time.monotonic() < deadline, daemon.log_text()
        time.sleep(0.02)
    return pid


def _lives(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small disk takes root")
def test_a_full_disk_is_a_miss(tmp_path: Path, demo_engine: DemoEngine, demo_model: Path) -> None:
    """The folder of the files is on a disk of a megabyte: requests are answered as ever, and an event says why."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "none", str(disk)], check=False, capture_output=True
    )
    if mounted.returncode != 0:
        pytest.skip("nothing can be mounted here")
    try:
        with _daemon(tmp_path, _config(demo_engine, demo_model, cache={"dir": str(disk)})) as daemon:
            talk = Talk(daemon, "one", text_of(_WORDS, "a"), "a")
            talk.say()
            ask(daemon, "/admin/v1/models/one/unload", b"")
            assert "bytes left" in daemon.wait_for_event("session_not_saved")["reason"]
            assert talk.say() in {"cold", "prefix"}
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_a_changed_model_file_is_another_model(tmp_path: Path, demo_engine: DemoEngine, demo_model: Path) -> None:
    """The same name, the same size, and other bytes: nothing of the old one is restored."""
    own = tmp_path / "own.gguf"
    own.write_bytes(demo_model.read_bytes())
    config = _config(demo_engine, own)
    with _daemon(tmp_path, config) as daemon:
        talk = Talk(daemon, "one", text_of(_WORDS, "a"), "a")
        talk.say()
        ask(daemon, "/admin/v1/models/one/unload", b"")
        assert _kept(tmp_path, ".kv")
        with own.open("r+b") as stream:
            stream.seek(-1, os.SEEK_END)
            last = stream.read(1)
            stream.seek(-1, os.SEEK_END)
            stream.write(bytes([last[0] ^ 1]))
        assert talk.say() in {"cold", "prefix"}
        assert talk.cached < _WORDS


@pytest.mark.slow
def test_a_text_that_is_embedded_loses_no_conversation(
    tmp_path: Path, demo_engine: DemoEngine, demo_model: Path
) -> None:
    """The engine chooses its slot, and clears others where they share their memory: what was written comes back."""
    model = {"file": str(demo_model), "serves": ["chat", "embeddings"], "launch": {**_LAUNCH, "ctx_size": 1024}}
    config = daemon_config(demo_engine.as_config(), models={"one": model}, supervision=PATIENT)
    with _daemon(tmp_path, config) as daemon:
        talks = [Talk(daemon, "one", text_of(_WORDS, name), name) for name in "ab"]
        for slot, talk in enumerate(talks):
            talk.say()
            daemon.wait_for_event("session_saved", slot=slot)
        for _ in range(2):
            assert ask(daemon, "/v1/embeddings", {"model": "one", "input": "a text"}).status == 200
        for talk in talks:
            talk.say()
            assert talk.cached > _WORDS
        _same_without_restore_of_last(talks[1])
