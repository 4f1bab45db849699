"""A build's identity: its bytes and its libraries' bytes, hashed only when something changed."""

import os
from pathlib import Path

import pytest

from supervisor.builds import fingerprint
from supervisor.builds.fingerprint import Fingerprints
from supervisor.errors import PlanError
from supervisor.events import EventBus
from supervisor.storage import JsonFile
from tests.fakes.clock import HandClock

CACHE_SCHEMA = fingerprint.SCHEMA


@pytest.fixture
def build(tmp_path: Path) -> Path:
    """A build: bin/engine, a library beside it under two names, one in ../lib."""
    (tmp_path / "b/bin").mkdir(parents=True)
    (tmp_path / "b/lib").mkdir()
    (tmp_path / "b/bin/engine").write_bytes(b"engine")
    (tmp_path / "b/bin/libggml.so.1").write_bytes(b"ggml")
    (tmp_path / "b/bin/libggml.so").symlink_to("libggml.so.1")
    (tmp_path / "b/bin/readme.txt").write_bytes(b"text")
    (tmp_path / "b/lib/libmtmd.dylib").write_bytes(b"mtmd")
    return tmp_path / "b/bin/engine"


@pytest.fixture
def bus() -> EventBus:
    """Where state file troubles are told."""
    return EventBus(HandClock())


@pytest.fixture
def hashed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the files whose content is read, in order."""
    names: list[str] = []
    original = fingerprint._hash_parts

    def record(parts: list[fingerprint._Part]) -> list[tuple[fingerprint._Part, str, bool]]:
        names.extend(part.path.name for part in parts)
        return original(parts)

    monkeypatch.setattr(fingerprint, "_hash_parts", record)
    return names


def _overwrite(path: Path, data: bytes) -> None:
    facts = path.stat()
    with path.open("r+b") as stream:
        stream.write(data)
    os.utime(path, ns=(facts.st_atime_ns, facts.st_mtime_ns))


@pytest.mark.parametrize("name", ["bin/engine", "bin/libggml.so.1", "lib/libmtmd.dylib"])
async def test_new_bytes_are_a_new_build(build: Path, bus: EventBus, name: str) -> None:
    """The executable and each library count; so does their number."""
    prints = Fingerprints(None, bus)
    before = await prints.of(build)
    (build.parent.parent / name).write_bytes(b"other")
    assert await prints.of(build) != before


async def test_a_new_library_is_a_new_build_and_other_files_are_not(build: Path, bus: EventBus) -> None:
    """What no loader reads says nothing about the build."""
    prints = Fingerprints(None, bus)
    before = await prints.of(build)
    (build.parent / "readme.txt").write_bytes(b"changed")
    assert await prints.of(build) == before
    (build.parent / "libnew.dll").write_bytes(b"new")
    assert await prints.of(build) != before


async def test_a_build_that_is_moved_or_reached_by_a_link_is_the_same(
    build: Path, bus: EventBus, tmp_path: Path
) -> None:
    """Paths are not part of it, nor is the executable's name."""
    prints = Fingerprints(None, bus)
    before = await prints.of(build)
    (tmp_path / "link").symlink_to(build)
    assert await prints.of(tmp_path / "link") == before
    moved = build.parent.parent.rename(tmp_path / "moved") / "bin/engine"
    assert await prints.of(moved.rename(moved.with_name("llama-server"))) == before


async def test_each_file_is_hashed_once_until_it_changes(
    build: Path, bus: EventBus, hashed: list[str], tmp_path: Path
) -> None:
    """Neither a second name, nor a second call, nor a restart reads 200 MB again; a touched file alone is read."""
    cache = JsonFile(tmp_path / "cache.json", CACHE_SCHEMA)
    first = await Fingerprints(cache, bus).of(build)
    assert sorted(hashed) == ["engine", "libggml.so", "libmtmd.dylib"]
    hashed.clear()
    prints = Fingerprints(cache, bus)
    assert await prints.of(build) == first == await prints.of(build)
    assert hashed == []
    os.utime(build, ns=(1, 1))
    assert await prints.of(build) == first
    assert hashed == ["engine"]


async def test_bytes_changed_under_the_old_times_are_noticed(build: Path, bus: EventBus) -> None:
    """Prevents ``rsync --inplace --times`` and the like from hiding a new library of the same size."""
    prints = Fingerprints(None, bus)
    before = await prints.of(build)
    _overwrite(build, b"ENGINE")
    assert await prints.of(build) != before


@pytest.mark.parametrize("content", ["{", '{"schema": 99}', '{"schema": 1}', '{"schema": 1, "entries": {"/x": 3}}'])
async def test_a_bad_cache_costs_time_only(build: Path, bus: EventBus, tmp_path: Path, content: str) -> None:
    """A damaged file is never believed and never stops anything."""
    (tmp_path / "cache.json").write_text(content.replace("/x", str(build)))
    prints = Fingerprints(JsonFile(tmp_path / "cache.json", CACHE_SCHEMA), bus)
    assert await prints.of(build) == await Fingerprints(None, bus).of(build)


async def test_a_cache_that_cannot_be_written_is_told_and_costs_nothing(
    build: Path, bus: EventBus, tmp_path: Path
) -> None:
    """A full disk or a missing folder is an event, not an error."""
    prints = Fingerprints(JsonFile(tmp_path / "none/cache.json", CACHE_SCHEMA), bus)
    assert await prints.of(build)
    assert [record.event.name() for record in bus.since(0)] == ["state_file_unusable"]


async def test_a_file_that_is_not_there_is_an_error_that_names_it(bus: EventBus, tmp_path: Path) -> None:
    """Foreign exceptions are translated."""
    with pytest.raises(PlanError, match="none") as caught:
        await Fingerprints(None, bus).of(tmp_path / "none")
    assert caught.value.code == "build_unusable"
