"""Saves and restores against a fake engine: only of the launch that was meant, and only of what the slot holds then."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import anyio

from engines.llama_cpp.slots import LlamaCppSlots
from supervisor.clock import SystemClock
from supervisor.events import EventBus
from supervisor.instances.launch import Launch
from supervisor.sessions.choosing import Holding
from supervisor.sessions.filing import Filing, Locks, restore, save
from supervisor.sessions.launch_slots import LaunchSlots
from supervisor.sessions.speeds import Speeds
from supervisor.sessions.store import Store, StoreLimits
from tests.fakes.instances import launch_plan
from tests.support.fake_engine import FakeEngine, fake_engine
from tests.unit.sessions.test_conversation import read

_WORDS = "word " * 50


@dataclass
class Bench:
    """A page over a running fake engine, whose slot 0 holds a conversation."""

    engine: FakeEngine
    page: LaunchSlots
    filing: Filing
    bus: EventBus
    started: list[Any] = field(default_factory=list)

    async def chat(self, messages: list[dict[str, Any]], slot: int) -> None:
        """Have the slot hold a conversation."""
        async with self.engine.post("/v1/chat/completions", {"messages": messages, "id_slot": slot}) as answer:
            assert answer.status == 200

    def told(self, name: str) -> list[Any]:
        """The events of this name."""
        return [record.event for record in self.bus.since(0) if record.event.name() == name]


@asynccontextmanager
async def bench(folder: Path, *arguments: str, **faults: Any) -> AsyncIterator[Bench]:
    """With more of the fake engine's arguments, and its faults."""
    bus = EventBus(SystemClock())
    store = Store(folder / "kv", SystemClock(), bus)
    await store.load()
    async with (
        fake_engine(folder, "--slot-save-path", str(store.folder), "--parallel", "2", *arguments, **faults) as engine,
        anyio.create_task_group() as tasks,
    ):
        messages = [{"role": "user", "content": _WORDS}]
        async with engine.post("/v1/chat/completions", {"messages": messages, "id_slot": 0}) as answer:
            assert answer.status == 200
        plan = replace(launch_plan(), argv=("--slot-save-path", str(store.folder)))
        facts: dict[str, Any] = {"id": "one", "instance_id": "m-1", "generation": 1, "plan": plan}
        talking = {"base_url": "http://engine", "session": engine.client, "calls": asyncio.Semaphore(2)}
        talking["headers"] = {"Authorization": f"Bearer {engine.key}"}
        launch = cast("Launch", SimpleNamespace(**facts, **talking))
        page = LaunchSlots(launch, LlamaCppSlots(), store.folder)
        page.key = "key"
        page.keyed.set()
        page.put(0, Holding(read(messages), 51, 0.0, 10.0))
        filing = Filing(store, StoreLimits(10**9, 1e9), Speeds(), bus, tasks.start_soon)
        yield Bench(engine, page, filing, bus)


async def test_what_was_saved_is_restored_to_any_slot(tmp_path: Path) -> None:
    """And is known to be saved."""
    async with bench(tmp_path) as on:
        assert await save(on.page, 0, on.filing, "idle")
        await on.filing.store.secured()
        assert on.page.holdings[0].unsaved == 0.0
        (kept,) = on.filing.store.files.values()
        assert await restore(on.page, 1, kept, on.filing)
        assert on.told("session_restored")[0].tokens == 51


async def test_a_slot_that_is_used_while_it_is_saved_is_not_saved_under_the_first_name(tmp_path: Path) -> None:
    """What the engine wrote may be of the one who came: the file is thrown away."""
    async with bench(tmp_path, save_delay=0.3) as on, anyio.create_task_group() as tasks:
        tasks.start_soon(save, on.page, 0, on.filing, "idle")
        while on.page.saving is None:  # noqa: ASYNC110  nothing tells of it
            await anyio.sleep(0.005)
        on.page.take(0)
        on.page.touch(0)
    assert on.filing.store.files == {}
    assert len(on.told("session_save_dropped")) == 1
    assert {path.suffix for path in _files(on.filing.store.folder)} == {""}


def _files(folder: Path) -> list[Path]:
    return list(folder.iterdir())


async def test_who_waited_for_an_old_launch_is_told_so() -> None:
    """The generation is looked at again after the wait: nothing is saved into, or restored from, the new launch."""
    pages = {generation: _page(generation) for generation in (1, 2)}
    current = {"m-1": pages[1]}
    locks = Locks(current.get)
    seen: list[bool] = []

    async def wait() -> None:
        async with locks.alone(pages[1]) as still:
            seen.append(still)

    async with anyio.create_task_group() as tasks, locks.alone(pages[1]) as still:
        seen.append(still)
        tasks.start_soon(wait)
        await anyio.wait_all_tasks_blocked()
        current["m-1"] = pages[2]
    assert seen == [True, False]


def _page(generation: int) -> LaunchSlots:
    launch = SimpleNamespace(id=str(generation), instance_id="m-1", generation=generation, plan=launch_plan())
    return LaunchSlots(cast("Launch", launch), LlamaCppSlots(), None)


async def test_a_lock_survives_who_fails_under_it() -> None:
    """The next one gets it."""
    page = _page(1)
    locks = Locks({"m-1": page}.get)
    try:
        async with locks.alone(page):
            raise ValueError  # noqa: TRY301  what a bug would do
    except ValueError:
        pass
    with anyio.fail_after(1):
        async with locks.alone(page) as still:
            assert still


async def test_a_file_that_is_gone_is_a_miss(tmp_path: Path) -> None:
    """Somebody has emptied the folder: it is dropped from the list, and nothing is asked."""
    async with bench(tmp_path) as on:
        assert await save(on.page, 0, on.filing, "idle")
        await on.filing.store.secured()
        (kept,) = on.filing.store.files.values()
        await anyio.Path(on.filing.store.folder / f"{kept.id}.kv").unlink()
        assert not await restore(on.page, 0, kept, on.filing)
        assert on.filing.store.files == {}


async def test_an_engine_that_refuses_is_not_asked_again(tmp_path: Path) -> None:
    """As one with a projector."""
    async with bench(tmp_path, slot_files="refuse") as on:
        assert not await save(on.page, 0, on.filing, "idle")
        assert not on.page.keeps
        assert not await save(on.page, 0, on.filing, "idle")
    assert len(on.told("sessions_not_kept")) == 1
