"""When a slot is written that nobody has to wait for."""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest

from supervisor.sessions.choosing import Holding
from supervisor.sessions.filing import BUSY, IDLE, save
from supervisor.sessions.idle import due_at, may_be_written_beside_others
from tests.unit.sessions.test_conversation import read
from tests.unit.sessions.test_filing import bench


def _held(seconds: float) -> Holding:
    return Holding(read([{"role": "user", "content": "a"}]), 100, 1000.0, seconds)


@pytest.mark.parametrize(("seconds", "due"), [(10.0, 1000.25), (0.3, 1010.0)])
def test_what_is_worth_it_is_written_soon(seconds: float, due: float) -> None:
    """Else later, as in a loop of short turns."""
    assert due_at(_held(seconds), 0.1) == due


@pytest.mark.parametrize(
    ("transfer", "now", "written"), [(0.04, 1061.0, True), (0.04, 1030.0, False), (0.1, 1061.0, False)]
)
def test_beside_others_only_what_is_quick_and_long_unused(transfer: float, now: float, written: bool) -> None:
    """An engine that is never idle still loses little in a crash, and its others wait for no longer than that."""
    assert may_be_written_beside_others(_held(10.0), transfer, now) is written


@pytest.mark.parametrize(("why", "came_to"), [(IDLE, 1), (BUSY, 0)])
async def test_nobody_who_came_meanwhile_waits_for_it(tmp_path: Path, why: str, came_to: int) -> None:
    """While its file was prepared a request came: to any slot, or to this one. The engine is not asked."""
    async with bench(tmp_path) as on:
        on.page.take(came_to)
        assert not await save(on.page, 0, on.filing, why)
        assert on.filing.store.files == {}
        assert not on.told("session_not_saved")
        assert {path.name async for path in anyio.Path(on.filing.store.folder).iterdir()} == {"key"}
