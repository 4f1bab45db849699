"""Conversations over the whole daemon with fake engines: their slots, and what is saved, restored and refused."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.daemon import Daemon, daemon_config, running_daemon_sync
from tests.support.fake_engine import fake_build, tiny_model
from tests.support.talks import Talk, text_of
from tests.wire.asking import LOG_ALL, ask

# A prompt of 300 words is two batches: more than a millisecond a word, so that it is worth a file.
_SLOW: dict[str, Any] = {"prefill_delay": 0.2}
_WORDS = 300


@contextmanager
def _daemon(folder: Path, slots: int = 2, cache: Any = None, ctx_size: int = 2048, **faults: Any) -> Iterator[Daemon]:
    """A daemon with one model, ``tiny``; its state folder is the same every time."""
    folder.mkdir(exist_ok=True)
    model = {"file": str(_model(folder)), "launch": {"slots": slots, "ctx_size": ctx_size}}
    build = fake_build(folder, **{**_SLOW, **faults})
    config = daemon_config(build, models={"tiny": model}, cache=cache or {})
    with running_daemon_sync(folder, config, env=LOG_ALL) as daemon:
        yield daemon


def _model(folder: Path) -> Path:
    """The model's file, written once: one that was written anew is another model."""
    path = folder / "tiny.gguf"
    return path if path.exists() else tiny_model(folder)


def _talks(daemon: Daemon, *names: str, named: bool = True) -> list[Talk]:
    return [Talk(daemon, "tiny", text_of(_WORDS, name), name if named else None) for name in names]


def _unload(daemon: Daemon) -> None:
    assert ask(daemon, "/admin/v1/models/tiny/unload", b"").status == 200


def _files(folder: Path) -> list[Path]:
    return sorted((folder / "state" / "kv").glob("*.kv"))


@pytest.mark.parametrize("named", [True, False])
def test_a_conversation_comes_back_to_its_slot_and_from_its_file(tmp_path: Path, named: bool) -> None:
    """With a name or by its own beginning: more conversations than slots, and each finds what it had."""
    with _daemon(tmp_path) as daemon:
        talks = _talks(daemon, "a", "b", "c", named=named)
        assert [talk.say() for talk in talks] == ["cold", "cold", "cold"]
        assert talks[2].say() == "hit"
        assert talks[2].cached >= _WORDS
        came_back = [talk.say() for talk in talks]
        assert came_back[:2] == ["restored", "restored"]
        assert came_back[2] in {"restored", "hit"}  # one of the two slots was its own
        assert all(talk.cached >= _WORDS for talk in talks)


def test_a_conversation_outlives_the_launch_and_the_daemon(tmp_path: Path) -> None:
    """What slots hold is saved before an engine is stopped, and again before the daemon ends; for nobody else."""
    with _daemon(tmp_path) as daemon:
        (talk,) = _talks(daemon, "secretname")
        talk.say()
        _unload(daemon)
        assert talk.say() == "restored"
    assert len(_files(tmp_path)) == 1
    folder = tmp_path / "state" / "kv"
    assert folder.stat().st_mode & 0o777 == 0o700
    assert {path.stat().st_mode & 0o777 for path in folder.iterdir()} == {0o600}
    assert all(b"secretname" not in path.read_bytes() for path in folder.glob("*.json"))
    with _daemon(tmp_path) as daemon:
        talk.daemon = daemon
        assert talk.say() == "restored"
        assert talk.cached >= _WORDS


def test_an_idle_slot_is_written_so_that_a_kill_loses_nothing(tmp_path: Path) -> None:
    """A checkpoint is made when nobody uses the engine; after SIGKILL of daemon and engine it is restored."""
    with _daemon(tmp_path) as daemon:
        (talk,) = _talks(daemon, "a")
        talk.say()
        daemon.wait_for_event("session_saved", why="idle")
        engines = daemon.engines()
        daemon.send(signal.SIGKILL)
        daemon.process.wait()
        for engine in engines:
            engine.wait(10)
    with _daemon(tmp_path) as daemon:
        talk.daemon = daemon
        assert talk.say() == "restored"


@pytest.mark.parametrize(
    ("fault", "event"),
    [
        ("full", "session_not_saved"),
        ("short", "session_not_saved"),
        ("refuse", "sessions_not_kept"),
        ("die", "session_not_saved"),
    ],
)
def test_a_save_that_fails_costs_nothing_but_itself(tmp_path: Path, fault: str, event: str) -> None:
    """A full disk, half a file, a refusal, an engine that dies in mid-save: a miss with an event, never an error."""
    with _daemon(tmp_path, slots=1, slot_files=fault, signal="SIGKILL") as daemon:
        first, second = _talks(daemon, "a", "b")
        assert first.say() == "cold"
        assert second.say() == "cold"
        daemon.wait_for_event(event)
        assert first.say() == "cold"
        assert not _files(tmp_path)
        assert not list((tmp_path / "state" / "kv").glob("*.part"))


def test_a_restore_that_does_nothing_is_a_miss(tmp_path: Path) -> None:
    """The engine says 200 and restored nothing: its next prompt tells, the file goes, and after two it is not asked."""
    with _daemon(tmp_path, slots=1, slot_files="no_restore") as daemon:
        first, second = _talks(daemon, "a", "b")
        assert [first.say(), second.say()] == ["cold", "cold"]
        assert first.say() == "cold"
        daemon.wait_for_event("session_not_restored")
        assert second.say() == "cold"
        daemon.wait_for_event("sessions_not_kept")
        restored = len([row for row in daemon.records if row.get("event") == "session_restored"])
        assert first.say() == "cold"
        assert len([row for row in daemon.records if row.get("event") == "session_restored"]) == restored


def test_a_slot_that_is_handed_over_during_a_slow_save_is_not_saved_under_the_first_name(tmp_path: Path) -> None:
    """Both ask at once while the save takes long: answers come, and no file holds another conversation's words."""
    with _daemon(tmp_path, slots=1, save_delay=1.0) as daemon:
        first, second, third = _talks(daemon, "a", "b", "c")
        first.say()
        others = [threading.Thread(target=talk.say) for talk in (second, third)]
        for other in others:
            other.start()
        for other in others:
            other.join()
        assert all(talk.answers[-1].status == 200 for talk in (second, third))
        for talk in (first, second, third):
            talk.say()
            said = talk.answers[-1].headers["x-enginehouse-session"]
            assert (said == "restored") == (talk.cached >= _WORDS)
    for path in _files(tmp_path):
        held = path.read_bytes()
        assert sum(f'"{name} '.encode() in held or f'"{name}"'.encode() in held for name in "abc") == 1


def test_what_was_saved_by_another_model_or_context_is_not_restored(tmp_path: Path) -> None:
    """Other bytes under the same name, or another context: a miss."""
    with _daemon(tmp_path) as daemon:
        (talk,) = _talks(daemon, "a")
        talk.say()
    with _daemon(tmp_path, ctx_size=4096) as daemon:
        talk.daemon = daemon
        assert talk.say() == "cold"
        _unload(daemon)
        with (tmp_path / "tiny.gguf").open("ab") as stream:
            stream.write(b"more weights")
        assert talk.say() == "cold"


def test_without_a_budget_nothing_is_written(tmp_path: Path) -> None:
    """Slots are still given to their conversations."""
    with _daemon(tmp_path, cache={"budget": 0}) as daemon:
        (talk,) = _talks(daemon, "a")
        assert [talk.say(), talk.say()] == ["cold", "hit"]
        _unload(daemon)
        assert talk.say() == "cold"
    assert not _files(tmp_path)


def test_an_embedding_in_between_takes_one_slot_and_no_more(tmp_path: Path) -> None:
    """The engine chooses the slot of what is no conversation, and tells which: the other one holds what it did."""
    folder = tmp_path
    model = {"file": str(tiny_model(folder)), "launch": {"slots": 2}, "serves": ["chat", "embeddings"]}
    config = daemon_config(fake_build(folder, **_SLOW), models={"tiny": model}, cache={"budget": 0})
    with running_daemon_sync(folder, config, env=LOG_ALL) as daemon:
        talks = _talks(daemon, "a", "b")
        assert [talk.say() for talk in talks] == ["cold", "cold"]
        for _ in range(2):
            assert ask(daemon, "/v1/embeddings", {"model": "tiny", "input": "a text"}).status == 200
        assert sorted(talk.say() for talk in talks) == ["cold", "hit"]
        assert [talk.say() for talk in talks] == ["hit", "hit"]
        assert Talk(daemon, "tiny", text_of(50, "c"), options={"n": 2}).say() == "cold"


def test_callers_do_not_share_a_conversation_by_its_name(tmp_path: Path) -> None:
    """Both call it the same, with the same words: what one has on the disk is not the other's."""
    callers = []
    for name in ("one", "two"):
        (tmp_path / f"{name}.token").write_text(f"{name}-c0ffee-0123456789abcdef")
        (tmp_path / f"{name}.token").chmod(0o600)
        callers.append({"name": name, "token_file": f"{name}.token", "roles": ["use", "admin"]})
    model = {"file": str(_model(tmp_path)), "launch": {"slots": 1}}
    config = daemon_config(fake_build(tmp_path, **_SLOW), models={"tiny": model}, auth={"callers": callers})
    with running_daemon_sync(tmp_path, config, env=LOG_ALL) as daemon:
        one, two = (
            Talk(daemon, "tiny", text_of(_WORDS, "a"), "shared", token=f"{name}-c0ffee-0123456789abcdef")
            for name in ("one", "two")
        )
        for talk in (one, two, one, two):
            headers = {"Authorization": f"Bearer {talk.token}"}
            first = not talk.answers
            assert talk.say() == ("cold" if first else "restored")
            assert (talk.cached < _WORDS) == first
            ask(daemon, "/admin/v1/models/tiny/unload", b"", headers=headers)


def test_a_changed_config_saves_before_it_launches_anew(tmp_path: Path) -> None:
    """A reload stops the engine for other settings: what its slots held is there for the next launch."""
    with _daemon(tmp_path) as daemon:
        (talk,) = _talks(daemon, "a")
        talk.say()
        launches = len([row for row in daemon.records if row.get("event") == "launch_ready"])
        path = tmp_path / "config.yaml"
        document = yaml.safe_load(path.read_text())
        document["models"]["tiny"]["launch"]["slots"] = 3
        path.write_text(yaml.safe_dump(document))
        assert ask(daemon, "/admin/v1/reload", b"").status == 200
        assert talk.say() == "restored"
        assert talk.cached >= _WORDS
        assert len([row for row in daemon.records if row.get("event") == "launch_ready"]) == launches + 1


def test_what_is_kept_can_be_seen_and_cleared(tmp_path: Path) -> None:
    """By `/admin/v1/cache`, and in the metrics; what was cleared is not restored, nor written again from its slot."""
    with _daemon(tmp_path, slots=1) as daemon:
        first, second = _talks(daemon, "a", "b")
        assert [first.say(), second.say(), first.say()] == ["cold", "cold", "restored"]
        rows = ask(daemon, "/admin/v1/cache").json["files"]
        assert {row["model"] for row in rows} == {"tiny"}
        assert all(row["bytes"] > 0 and row["tokens"] >= _WORDS for row in rows)
        metrics = ask(daemon, "/metrics").body.decode()
        assert 'enginehouse_sessions_total{model="tiny",outcome="restored"} 1.0' in metrics
        assert ask(daemon, "/admin/v1/cache/clear?model=other", b"").json == {"files": 0, "bytes": 0}
        assert ask(daemon, "/admin/v1/cache/clear?model=tiny", b"").json["files"] == len(rows)
        assert not _files(tmp_path)
        assert second.say() == "cold"
        _unload(daemon)
        assert len(_files(tmp_path)) == 1
        assert second.say() == "restored"
