"""Whether a file is the one that was written, whatever became of it; and what a conversation's file is good for."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from engines.llama_cpp.slots import LlamaCppSlots
from supervisor.events import EventBus
from supervisor.sessions.model_key import model_key
from supervisor.sessions.store import Store, StoreLimits
from tests.fakes.clock import HandClock
from tests.fakes.instances import launch_plan
from tests.unit.sessions.test_store import about

_LIMITS = StoreLimits(10**9, 1e9)
_FAR = 1e12
_SIZE = 300_000


async def _stored(store: Store, text: str, fill: bytes) -> str:
    name = await store.begin(_SIZE, _LIMITS)
    (store.folder / name).write_bytes(text.encode() + fill * _SIZE)
    kept = await store.commit(name, about(text))
    assert await store.secure(kept, _LIMITS)
    return kept.id


def _names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def _cut(path: Path, _other: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def _renamed(path: Path, other: Path) -> None:
    other.rename(path)


def _copied(path: Path, other: Path) -> None:
    shutil.copy2(other, path)


def _overwritten(path: Path, _other: Path) -> None:
    with path.open("r+b") as stream:
        stream.seek(_SIZE // 2 - 2**11)
        stream.write(b"\0" * 2**16)


def _same(path: Path, other: Path) -> None:
    """Moved away and back, as by a backup: of use still."""
    content = path.read_bytes()
    path.rename(other)
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("change", "good"), [(_cut, False), (_renamed, False), (_copied, False), (_overwritten, False), (_same, True)]
)
async def test_a_file_that_is_not_as_it_was_written_is_of_no_use(
    tmp_path: Path, change: Callable[[Path, Path], None], good: bool
) -> None:
    """Cut short, overwritten, or another conversation's by its name, of the same size: also after a restart."""
    clock = HandClock()
    store = Store(tmp_path, clock, EventBus(clock))
    await store.load()
    first, second = await _stored(store, "a", b"x"), await _stored(store, "b", b"y")
    assert await store.is_whole(store.files[first])
    change(tmp_path / f"{first}.kv", tmp_path / f"{second}.kv")
    assert await store.is_whole(store.files[first]) == good
    again = Store(tmp_path, clock, EventBus(clock))
    await again.load()
    assert (first in again.files and await again.is_whole(again.files[first])) == good


async def test_a_clock_that_was_ahead_keeps_no_file_for_ever(tmp_path: Path) -> None:
    """Its times are brought back when the folder is read: it ages like others."""
    ahead, clock = HandClock(), HandClock()
    ahead.advance(_FAR)
    store = Store(tmp_path, ahead, EventBus(ahead))
    await store.load()
    kept = await _stored(store, "a", b"x")
    again = Store(tmp_path, clock, EventBus(clock))
    await again.load()
    assert again.files[kept].used_at == again.files[kept].saved_at == clock.wall()


async def test_what_an_engine_writes_after_it_was_given_up_goes(tmp_path: Path) -> None:
    """Nobody waits for it any more, and its name is nobody's; what is being written stays."""
    clock = HandClock()
    store = Store(tmp_path, clock, EventBus(clock))
    await store.load()
    given_up, under_way = await store.begin(10, _LIMITS), await store.begin(10, _LIMITS)
    await store.discard(given_up)
    (tmp_path / given_up).write_bytes(b"late")
    await store.trim(_LIMITS)
    assert _names(tmp_path) == {"key", under_way}


async def test_a_file_that_is_cleared_before_it_is_on_the_disk_is_gone(tmp_path: Path) -> None:
    """And it is not said to be saved."""
    clock = HandClock()
    store = Store(tmp_path, clock, EventBus(clock))
    await store.load()
    name = await store.begin(10, _LIMITS)
    (tmp_path / name).write_bytes(b"x" * 10)
    kept = await store.commit(name, about())
    assert await store.drop([kept], "cleared") == (1, 10)
    assert not await store.secure(kept, _LIMITS)
    assert _names(tmp_path) == {"key"}


def test_adapters_are_told_by_their_content_also_beside_a_scale(tmp_path: Path) -> None:
    """An adapter that was trained on under its old name is another one: what it computed is of no use any more."""
    adapter = tmp_path / "a.gguf"
    adapter.write_bytes(b"one")
    for words in ((str(adapter),), (f"{adapter}:0.5,/nowhere.gguf:1",)):
        adapter.write_bytes(b"one")
        before = model_key(words, [], _FAR)
        adapter.write_bytes(b"two")
        assert before is not None
        assert model_key(words, [], _FAR) not in {before, None}


def test_flags_that_are_given_by_the_environment_count() -> None:
    """A KV that was computed with another rope is another one."""
    slots, plan = LlamaCppSlots(), launch_plan()
    other = replace(plan, env={"LLAMA_ARG_ROPE_SCALE": "2"})
    assert slots.fingerprint(plan) != slots.fingerprint(other)
