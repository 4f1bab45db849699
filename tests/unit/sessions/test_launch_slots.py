"""What is known of one launch's slots, when files go and when the engine chooses for itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import anyio
import pytest

from supervisor.sessions.choosing import Holding
from supervisor.sessions.conversation import Touch
from supervisor.sessions.filing import give_up, restore, save
from supervisor.sessions.scrambling import look_again, scramble
from tests.unit.sessions.test_conversation import read
from tests.unit.sessions.test_filing import bench

_OTHER = [{"role": "user", "content": "other words " * 20}]


def _nothing(_outcome: str) -> None:
    pass


async def test_a_file_that_is_gone_leaves_its_slot_unsaved(tmp_path: Path) -> None:
    """The budget, or somebody by hand, has taken it: the slot is worth saving again; otherwise it would be lost."""
    async with bench(tmp_path) as on:
        assert await save(on.page, 0, on.filing, "idle")
        await on.filing.store.secured()
        on.page.recheck(on.filing.store.files)
        assert on.page.holdings[0].unsaved == 0.0
        await on.filing.store.drop(list(on.filing.store.files.values()), "budget")
        on.page.recheck(on.filing.store.files)
        assert on.page.worth_saving(1.0) == [0]


async def test_what_is_forbidden_while_it_is_written_is_not_on_the_disk(tmp_path: Path) -> None:
    """`cache clear` in mid-save: the file goes, and the slot is not written again before it is used."""
    async with bench(tmp_path, save_delay=0.3) as on, anyio.create_task_group() as tasks:
        tasks.start_soon(save, on.page, 0, on.filing, "idle")
        await _saving(lambda: on.page.saving is not None)
        on.page.forbid_saving(0)
    assert on.filing.store.files == {}
    assert not on.page.may_save(0)
    on.page.leave(0, on.page.holdings[0], settled=True)
    assert on.page.worth_saving(1.0) == [0]


async def test_only_slots_that_the_engine_took_are_forgotten(tmp_path: Path) -> None:
    """A text was embedded: the fake takes the first slot, and what the second one holds is still there."""
    async with bench(tmp_path, "--embeddings") as on, anyio.create_task_group() as tasks:
        await on.chat(_OTHER, 1)
        on.page.put(1, Holding(read(_OTHER), 41, 0.0, 10.0))
        turn = await scramble(on.page, Touch.ANY, _nothing, tasks.start_soon)
        assert not on.page.is_idle()
        async with on.engine.post("/v1/embeddings", {"input": "a text"}) as answer:
            assert answer.status == 200
        turn.end(answered=True)
        await look_again(on.page)
        assert on.page.is_idle()
        assert set(on.page.holdings) == {1}


@pytest.mark.parametrize("answered", [True, False])
async def test_where_nobody_can_tell_all_is_forgotten(tmp_path: Path, answered: bool) -> None:
    """A request that was given up may take a slot yet; and an engine that says nothing of its slots may have."""
    async with bench(tmp_path) as on, anyio.create_task_group() as tasks:
        turn = await scramble(on.page, Touch.ANY, _nothing, tasks.start_soon)
        if answered:
            on.page.before = {}
        turn.end(answered=answered)
        await look_again(on.page)
        assert on.page.holdings == {}
        assert on.page.is_idle()


async def test_nothing_is_kept_of_a_save_during_which_the_engine_chose_a_slot(tmp_path: Path) -> None:
    """It may have been this one: a file under the first one's name could hold the other's words."""
    async with bench(tmp_path, save_delay=0.3) as on, anyio.create_task_group() as tasks:
        tasks.start_soon(save, on.page, 0, on.filing, "handover")
        await _saving(lambda: on.page.saving is not None)
        await scramble(on.page, Touch.SEVERAL, _nothing, tasks.start_soon)
    assert on.filing.store.files == {}
    assert len(on.told("session_save_dropped")) == 1


async def _saving(begun: Callable[[], bool]) -> None:
    while not begun():  # noqa: ASYNC110  nothing tells of it
        await anyio.sleep(0.005)


async def test_what_is_cleared_while_it_is_restored_is_nobodys_fault(tmp_path: Path) -> None:
    """The file goes under the engine's hands: a miss, which is not held against the launch."""
    async with bench(tmp_path, chunk_delay=0.02) as on, anyio.create_task_group() as tasks:
        assert await save(on.page, 0, on.filing, "idle")
        await on.filing.store.secured()
        (kept,) = on.filing.store.files.values()
        tasks.start_soon(on.chat, _OTHER, 1)
        await on.engine.wait_for_line("id  1 | task")
        outcome: list[bool] = []

        async def come_back() -> None:
            outcome.append(await restore(on.page, 1, kept, on.filing))

        tasks.start_soon(come_back)
        await anyio.wait_all_tasks_blocked()
        await on.filing.store.drop([kept], "cleared by hand")
    assert outcome == [False]
    assert not on.told("session_not_restored")
    assert on.page.useless == 0


@pytest.mark.parametrize(("age", "refused"), [(0.0, True), (86_400.0, False)])
async def test_only_fresh_files_without_effect_count_against_a_launch(
    tmp_path: Path, age: float, refused: bool
) -> None:
    """Prompts of yesterday may have another date at their head: after midnight what is new is kept all the same."""
    async with bench(tmp_path) as on:
        for _ in range(2):
            assert await save(on.page, 0, on.filing, "idle")
            await on.filing.store.secured()
            kept = next(iter(on.filing.store.files.values()))
            await give_up(on.page, 0, replace(kept, saved_at=kept.saved_at - age), "nothing", on.filing)
        assert (on.page.refused is not None) == refused


async def test_the_most_valuable_slot_is_written_first(tmp_path: Path) -> None:
    """Where the time of a stop is short, the dearest is on the disk."""
    async with bench(tmp_path) as on:
        on.page.put(1, Holding(read(_OTHER), 41, 0.0, 20.0))
        assert on.page.worth_saving(1.0) == [1, 0]
