from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest

from supervisor.errors import AdmissionError, CallerError
from supervisor.gateway import response_store
from supervisor.gateway.response_store import KEPT_SECONDS, ResponseStore, StoredResponse
from tests.support.disks import fill, small_disk


@asynccontextmanager
async def _store(path: Path | None = None, now: Callable[[], float] = lambda: 100.0) -> AsyncIterator[ResponseStore]:
    store = ResponseStore(path, now)
    try:
        yield store
    finally:
        await store.close()


def _record(number: int, previous: int | None = None, created: float = 100.0, owner: str = "me") -> StoredResponse:
    before = None if previous is None else f"r{previous}"
    return StoredResponse(f"r{number}", owner, created, before, b"i%d" % number, b"o%d" % number, b"{}")


async def test_a_chain_is_found_oldest_first(tmp_path: Path) -> None:
    """Each record's input and output, along the chain and not beside it; also by another process later."""
    async with _store(tmp_path / "r.sqlite") as store:
        for record in (_record(1), _record(2, 1), _record(3, 2), _record(4, 2)):
            await store.put(record)
        assert await store.chain("r3", "me") == [(b"i1", b"o1"), (b"i2", b"o2"), (b"i3", b"o3")]
    async with _store(tmp_path / "r.sqlite") as store:
        assert await store.chain("r4", "me") == [(b"i1", b"o1"), (b"i2", b"o2"), (b"i4", b"o4")]
        assert await store.get("r4", "me") == (b"{}", b"i4")
    assert (tmp_path / "r.sqlite").stat().st_mode & 0o777 == 0o600


async def test_unknown_of_others_deleted() -> None:
    """Each is not there, and the error names it."""
    async with _store() as store:
        await store.put(_record(1))
        await store.put(_record(2, 1))
        for name, owner in (("r9", "me"), ("r1", "you")):
            with pytest.raises(CallerError, match=name) as caught:
                await store.chain(name, owner)
            assert caught.value.code == "response_not_found"
        await store.delete("r1", "me")
        with pytest.raises(CallerError, match="r1"):
            await store.get("r1", "me")
        with pytest.raises(CallerError, match="r1"):
            await store.delete("r1", "me")
        with pytest.raises(CallerError, match="r1"):
            await store.chain("r2", "me")


async def test_after_a_week_it_is_gone() -> None:
    """An expired one is not there, and ends the chains that go on from it; a sweep removes its row."""
    moment = [100.0]
    async with _store(now=lambda: moment[0]) as store:
        await store.put(_record(1))
        await store.put(_record(2, 1, created=200.0))
        moment[0] = 101.0 + KEPT_SECONDS
        assert await store.get("r2", "me")
        with pytest.raises(CallerError, match="r1"):
            await store.chain("r2", "me")


async def test_one_that_is_being_written_is_waited_for() -> None:
    """Who names it meanwhile gets it once it is there."""
    async with _store() as store, anyio.create_task_group() as tasks:
        found: list[object] = []

        async def look() -> None:
            found.append(await store.chain("r1", "me"))

        with store.writing("r1"):
            tasks.start_soon(look)
            await anyio.wait_all_tasks_blocked()
            assert not found
            await store.put(_record(1))
        while not found:
            await anyio.wait_all_tasks_blocked()
    assert found == [[(b"i1", b"o1")]]


async def test_the_wait_has_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """After it the answer is to ask again, never that there is none."""
    monkeypatch.setattr(response_store, "PATIENCE_SECONDS", 0.01)
    async with _store() as store:
        with store.writing("r1"), pytest.raises(AdmissionError) as caught:
            await store.get("r1", "me")
    assert caught.value.code == "storage_timeout"


async def test_a_database_that_can_not_be_read_is_set_aside(tmp_path: Path) -> None:
    """A broken file stops nothing: it is kept under another name, and a new one begun."""
    path = tmp_path / "r.sqlite"
    path.write_bytes(b"no database" * 1000)
    async with _store(path) as store:
        await store.put(_record(1))
        assert await store.get("r1", "me")
    assert (tmp_path / "r.unreadable").read_bytes().startswith(b"no database")


async def test_a_full_disk_is_said_and_loses_nothing(tmp_path: Path) -> None:
    """What can't be kept is told with its reason; what is there already can be read, and kept again later.

    Prevents: a database that could not be opened for want of space was taken for a broken one, and set aside.
    """
    with small_disk(tmp_path / "disk") as disk:
        path = disk / "r.sqlite"
        async with _store(path) as store:
            assert await store.put(_record(1)) is None
        fill(disk)
        async with _store(path) as store:
            assert await store.put(_record(2, 1))
        (disk / "filler").unlink()
        assert [file.name for file in disk.iterdir() if "unreadable" in file.name] == []
        async with _store(path) as store:
            assert await store.put(_record(3, 1)) is None
            assert await store.chain("r3", "me") == [(b"i1", b"o1"), (b"i3", b"o3")]


async def test_a_database_that_cannot_be_opened_is_no_missing_response(tmp_path: Path) -> None:
    """A folder in its place: whoever names a response hears of trouble, not that there never was one."""
    (tmp_path / "r.sqlite").mkdir()
    async with _store(tmp_path / "r.sqlite") as store:
        assert await store.put(_record(1))
        with pytest.raises(AdmissionError) as caught:
            await store.chain("r1", "me")
    assert caught.value.code == "storage_unusable"
