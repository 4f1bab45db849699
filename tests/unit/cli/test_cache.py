"""``cache list`` and ``cache clear``: asked of the daemon, or done in the folder where none runs."""

from __future__ import annotations

import json
from pathlib import Path

import anyio

from supervisor.events import EventBus
from supervisor.sessions.store import Store, StoreLimits
from supervisor.storage import StateLock
from tests.fakes.clock import HandClock
from tests.unit.cli.command import enginehouse
from tests.unit.sessions.test_store import about


def _config(folder: Path) -> Path:
    path = folder / "config.yaml"
    path.write_text(f"version: 1\nstate_dir: {folder}/state\ndata_dir: {folder}/data\nmodel_dirs: []\n")
    return path


def _stored(folder: Path) -> None:
    async def store() -> None:
        clock = HandClock()
        kept = Store(folder / "state" / "kv", clock, EventBus(clock))
        await kept.load()
        name = await kept.begin(10, StoreLimits(1000, 1e9))
        (kept.folder / name).write_bytes(b"x" * 10)
        await kept.secure(await kept.commit(name, about(size=10)), StoreLimits(1000, 1e9))

    anyio.run(store)


def test_without_a_daemon_the_folder_is_listed_and_cleared(tmp_path: Path) -> None:
    """What is there is shown by model and size, and is gone after `clear`."""
    config = _config(tmp_path)
    _stored(tmp_path)
    listed = enginehouse("cache", "list", "--config", str(config))
    assert [(row["model"], row["bytes"]) for row in json.loads(listed.out)] == [("m", 10)]
    shown = enginehouse("cache", "list", "--config", str(config), on_terminal=True).out
    assert "10 B" in shown
    none = enginehouse("cache", "clear", "--model", "other", "--config", str(config))
    assert json.loads(none.out) == {"files": 0, "bytes": 0}
    cleared = enginehouse("cache", "clear", "--config", str(config))
    assert json.loads(cleared.out) == {"files": 1, "bytes": 10}
    assert not list((tmp_path / "state" / "kv").glob("*.kv"))


def test_a_folder_in_use_is_left_alone(tmp_path: Path) -> None:
    """While a daemon that does not answer here holds the folder, nothing is removed."""
    config = _config(tmp_path)
    _stored(tmp_path)
    lock = StateLock.take(tmp_path / "state")
    try:
        assert enginehouse("cache", "clear", "--config", str(config)).code == 2
    finally:
        lock.release()
    assert list((tmp_path / "state" / "kv").glob("*.kv"))
