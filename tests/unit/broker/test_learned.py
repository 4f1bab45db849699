"""What launches have shown outlives the daemon, and a bad file does not stop it."""

from __future__ import annotations

from pathlib import Path

import pytest

from engines.contract import MemoryEstimate
from supervisor.broker.learned import SCHEMA, LearnedMemory
from supervisor.clock import SystemClock
from supervisor.events import EventBus, StateFileUnusable
from supervisor.planning.corrections import Learned
from supervisor.storage import JsonFile

MIB = 2**20
DECLARED = {"host": MemoryEstimate(weights=5 * MIB, kv=3 * MIB, mapped=5 * MIB)}


def _memory(path: Path) -> tuple[LearnedMemory, EventBus]:
    bus = EventBus(SystemClock())
    return LearnedMemory(JsonFile(path, SCHEMA), bus), bus


async def test_the_next_daemon_knows_it_too(tmp_path: Path) -> None:
    """Declared figures as they were, and the most that was held."""
    memory, _ = _memory(tmp_path / "memory.json")
    await memory.note("kind", DECLARED, {"host": 5 * MIB}, just_ready=True)
    await memory.note("kind", DECLARED, {"host": 9 * MIB})
    await memory.note("kind", DECLARED, {"host": 4 * MIB})

    known = await _memory(tmp_path / "memory.json")[0].known()
    assert known == {"kind": Learned(DECLARED, {"host": 9 * MIB}, {"host": 5 * MIB})}


async def test_only_news_is_written(tmp_path: Path) -> None:
    """A look that shows nothing new, or a little growth, does not touch the disk."""
    path = tmp_path / "memory.json"
    memory, _ = _memory(path)
    await memory.note("kind", DECLARED, {"host": 9 * MIB})
    path.unlink()
    await memory.note("kind", DECLARED, {"host": 9 * MIB + 1000})
    assert not path.exists()
    await memory.note("kind", DECLARED, {"host": 12 * MIB})
    assert path.exists()


@pytest.mark.parametrize(
    "text",
    [
        "{",
        '{"schema": 99}',
        '{"schema": 1, "kinds": [1]}',
        '{"schema": 1, "kinds": {"kind": {"declared": {"host": 5}}}}',
    ],
)
async def test_a_file_that_can_t_be_used_is_empty(text: str, tmp_path: Path) -> None:
    """And is replaced by what is learned next."""
    path = tmp_path / "memory.json"
    path.write_text(text)
    memory, bus = _memory(path)

    assert await memory.known() == {}
    await memory.note("kind", DECLARED, {})
    assert list(await _memory(path)[0].known()) == ["kind"]
    if "kinds" not in text:
        assert [record.event for record in bus.since(0) if isinstance(record.event, StateFileUnusable)]


async def test_a_full_disk_is_told_and_nothing_else(tmp_path: Path) -> None:
    """What was learned is known for as long as the daemon lives."""
    memory, bus = _memory(tmp_path / "gone" / "memory.json")
    await memory.note("kind", DECLARED, {})
    assert "kind" in await memory.known()
    assert any(isinstance(record.event, StateFileUnusable) for record in bus.since(0))


async def test_without_a_file_it_learns_all_the_same() -> None:
    """As for commands that write nothing."""
    memory = LearnedMemory(None, EventBus(SystemClock()))
    await memory.note("kind", DECLARED, {})
    assert "kind" in await memory.known()
