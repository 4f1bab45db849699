"""The folder of conversations: whole files or none, within a budget, for this user alone."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from supervisor.events import EventBus
from supervisor.sessions.kept import Kept
from supervisor.sessions.store import NoRoomError, Store, StoreLimits
from tests.fakes.clock import HandClock
from tests.unit.sessions.test_conversation import read

_LIMITS = StoreLimits(10_000, 1000.0)


def about(text: str = "a", size: int = 0) -> Kept:
    """What a file is about."""
    return Kept("", "key", read([{"role": "user", "content": text}]), 100, size, 1.0, 0.0, 0.0)


async def _stored(store: Store, text: str, size: int = 3000) -> Kept:
    name = await store.begin(size, _LIMITS)
    path = store.folder / name
    assert path.stat().st_mode & 0o777 == 0o600
    path.write_bytes(b"x" * size)
    kept = await store.commit(name, about(text, size))
    await store.secure(kept, _LIMITS)
    return kept


async def _loaded(folder: Path, clock: HandClock) -> Store:
    store = Store(folder, clock, EventBus(clock))
    await store.load()
    return store


def _names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


async def test_a_file_is_found_again_by_the_next_daemon(tmp_path: Path) -> None:
    """With all that is known of it, and with the same secret."""
    clock = HandClock()
    store = await _loaded(tmp_path / "kv", clock)
    kept = await _stored(store, "a")
    again = await _loaded(tmp_path / "kv", clock)
    assert again.files == {kept.id: kept}
    assert again.secret == store.secret
    assert (tmp_path / "kv").stat().st_mode & 0o777 == 0o700


async def test_what_was_cut_short_is_never_read(tmp_path: Path) -> None:
    """Parts, files without what they are about, files of another size: gone at the next start; the rest stays."""
    clock = HandClock()
    store = await _loaded(tmp_path, clock)
    kept = await _stored(store, "a")
    short = await _stored(store, "b")
    (tmp_path / f"{short.id}.kv").write_bytes(b"x")
    await store.begin(10, _LIMITS)
    (tmp_path / "0123456789abcdef.kv").write_bytes(b"x" * 50)
    (tmp_path / "0123456789abcde0.json").write_bytes(b"{")
    (tmp_path / "mine.json").write_bytes(b"not ours")
    again = await _loaded(tmp_path, clock)
    assert list(again.files) == [kept.id]
    assert _names(tmp_path) == {"key", "mine.json", f"{kept.id}.kv", f"{kept.id}.json"}


@pytest.mark.parametrize("written", [b"", b"half"])
async def test_a_file_of_another_size_than_the_engine_said_is_refused(tmp_path: Path, written: bytes) -> None:
    """An engine does not see that its last bytes did not reach a full disk."""
    store = await _loaded(tmp_path, HandClock())
    name = await store.begin(100, _LIMITS)
    (tmp_path / name).write_bytes(written)
    with pytest.raises(NoRoomError):
        await store.commit(name, about(size=100))
    await store.discard(name)
    assert store.files == {}


async def test_the_budget_holds_and_old_files_go(tmp_path: Path) -> None:
    """The least valuable first; a file that could never fit is not begun."""
    clock = HandClock()
    store = await _loaded(tmp_path, clock)
    for text in "abcd":
        await _stored(store, text)
        clock.advance(1.0)
    assert sum(kept.size for kept in store.files.values()) <= _LIMITS.budget
    assert len(store.files) == 3
    assert len([name for name in _names(tmp_path) if name.endswith(".kv")]) == 3
    clock.advance(2000.0)
    await store.trim(_LIMITS)
    assert store.files == {}
    with pytest.raises(NoRoomError):
        await store.begin(20_000, _LIMITS)


async def test_a_full_disk_is_no_room(tmp_path: Path) -> None:
    """More than any disk has."""
    store = await _loaded(tmp_path, HandClock())
    with pytest.raises(NoRoomError, match="bytes left"):
        await store.begin(2**60, StoreLimits(2**61, 1.0))
    assert _names(tmp_path) == {"key"}


async def test_a_folder_that_can_not_be_made_keeps_nothing(tmp_path: Path) -> None:
    """The daemon goes on without."""
    (tmp_path / "kv").write_text("a file")
    store = await _loaded(tmp_path / "kv", HandClock())
    assert not store.usable


async def test_a_later_file_of_a_conversation_replaces_the_earlier(tmp_path: Path) -> None:
    """Only once it is on the disk itself."""
    store = await _loaded(tmp_path, HandClock())
    first = await _stored(store, "a")
    longer = read([{"role": "user", "content": "a"}, {"role": "user", "content": "b"}])
    name = await store.begin(10, _LIMITS)
    (tmp_path / name).write_bytes(b"y" * 10)
    kept = await store.commit(name, replace(about(size=10), talk=longer))
    assert set(store.files) == {first.id, kept.id}
    await store.secure(kept, _LIMITS)
    assert set(store.files) == {kept.id}
