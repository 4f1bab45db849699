"""Many conversations at once over few slots, with all that disturbs them: no file ever holds another one's words."""

from __future__ import annotations

import json
import random
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import anyio
import pytest

from engines.registry import adapter_for
from supervisor.clock import SystemClock
from supervisor.sessions.keeper import Keeper, KeepLimits
from supervisor.sessions.store import StoreLimits
from tests.fakes.instances import model_entry
from tests.unit.sessions.test_filing import Bench, bench

# So slow that a prompt is worth a file, and so quick that many fit into a test.
_SLOW = {"prefill_delay": 0.3, "save_delay": 0.1}
_WORDS = 60
_CALLERS = 4
_TURNS = 7
_MARK = re.compile(rb"own\d+")


@dataclass
class _Storm:
    """Who asks, and what the keeper says to it; ``free`` are the slots that nobody holds."""

    on: Bench
    keeper: Keeper
    chance: random.Random
    free: list[int] = field(default_factory=lambda: [0, 1])
    changed: anyio.Condition = field(default_factory=anyio.Condition)
    outcomes: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)

    async def talk(self, number: int) -> None:
        """One caller: its conversation grows; now and then it leaves early, or begins again under the same name."""
        messages: list[dict[str, Any]] = []
        for turn in range(_TURNS):
            if self.chance.random() < 0.2:
                messages = []
            text = " ".join([f"own{number}"] + [f"{turn}w{self.chance.randrange(99)}" for _ in range(_WORDS)])
            messages = [*messages, {"role": "user", "content": text}]
            await self.ask({"messages": messages}, f"name {number}", leaves=self.chance.random() < 0.2)
            messages = [*messages, {"role": "assistant", "content": f"own{number}"}]
            await anyio.sleep(self.chance.random() * 0.4)

    async def disturb(self) -> None:
        """A text to embed, several choices, a hand that clears."""
        for _ in range(2):
            await anyio.sleep(0.5 + 2 * self.chance.random())
            await self.ask({"input": "own99 to embed"}, None)
            await self.ask({"messages": [{"role": "user", "content": "own98 twice"}], "n": 2}, None)
            if self.chance.random() < 0.2:
                await self.keeper.clear(None)

    async def ask(self, body: dict[str, Any], name: str | None, *, leaves: bool = False) -> None:
        """As the gateway does it."""
        talk = self.keeper.about(model_entry(), "me", name, body)
        async with self.changed:
            while not self.free:
                await self.changed.wait()
            slot = self.keeper.prefers(talk, self.on.page.launch, self.free)
            self.free.remove(slot)
        lease: Any = SimpleNamespace(launch=self.on.page.launch, slot=slot)
        turn = await self.keeper.begin(lease, talk, "r", self.outcomes.append)
        answered = False
        try:
            with anyio.move_on_after(0.1 if leaves else 30):
                answered = await self._send(body, turn)
        finally:
            turn.end(answered=answered)
            await self._idle(slot)
            async with self.changed:
                self.free.append(slot)
                self.changed.notify_all()

    async def _send(self, body: dict[str, Any], turn: Any) -> bool:
        if "input" in body:
            async with self.on.engine.post("/v1/embeddings", body) as answer:
                return bool((await answer.json())["data"])
        sent = json.loads(turn.pinned(json.dumps({**body, "stream": True, "return_progress": True}).encode()))
        async with self.on.engine.post("/v1/chat/completions", sent) as answer:
            async for line in answer.content:
                data = line.removeprefix(b"data: ").strip()
                turn.heard(data if b"prompt_progress" in data else None, content=b'"content":"' in data)
                if data == b"[DONE]":
                    return True
        return False

    async def _idle(self, slot: int) -> None:
        """Until the engine has noticed that its client left: so long a lease is held."""
        while True:
            async with self.on.engine.get("/slots") as answer:
                if not (await answer.json())[slot]["is_processing"]:
                    return
            await anyio.sleep(0.02)

    def look(self) -> None:
        """Each file's words are those of its conversation alone."""
        for kept in self.keeper.store.files.values():
            marks = set(_MARK.findall((self.keeper.store.folder / f"{kept.id}.kv").read_bytes()))
            names = {b"own%d" % number for number in range(_CALLERS) if kept.talk.name == self._talk_of(number).name}
            if marks != names:
                self.wrong.append(f"{kept.id} of {names} holds {marks}")

    def _talk_of(self, number: int) -> Any:
        return self.keeper.about(
            model_entry(), "me", f"name {number}", {"messages": [{"role": "user", "content": "any"}]}
        )


@asynccontextmanager
async def _storm(folder: Path, seed: int) -> AsyncIterator[_Storm]:
    async with bench(folder, "--embeddings", **_SLOW) as on, anyio.create_task_group() as tasks:
        limits = KeepLimits(enabled=True, files=StoreLimits(300_000, 1e9))
        keeper = Keeper(on.filing.store, adapter_for, lambda: limits, SystemClock(), on.bus)
        await keeper.load()
        await tasks.start(keeper.run)
        model = folder / "m.gguf"
        model.write_bytes(b"GGUF")
        launch = cast("Any", on.page.launch)
        launch.plan = replace(launch.plan, argv=(*launch.plan.argv, "--parallel", "2"))
        instance = SimpleNamespace(
            id="m-1", entry=replace(model_entry(), files=(model,)), is_starting=True, launch=None
        )
        keeper.instance_changed(cast("Any", instance))
        instance.is_starting, instance.launch = False, launch
        keeper.instance_changed(cast("Any", instance))
        yield _Storm(on, keeper, random.Random(seed))
        tasks.cancel_scope.cancel()


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
async def test_no_file_holds_the_words_of_another_conversation(tmp_path: Path, seed: int) -> None:
    """Hand-overs during saves, restores, clients that leave, texts to embed, and a hand that clears, in any order."""
    async with _storm(tmp_path, seed) as storm:
        async with anyio.create_task_group() as tasks:
            for number in range(_CALLERS):
                tasks.start_soon(storm.talk, number)
            tasks.start_soon(storm.disturb)
        storm.look()
        await storm.keeper.flush(storm.on.page.launch)
        await storm.keeper.store.secured()
        storm.look()
        assert storm.wrong == []
        assert storm.on.told("session_saved")
        assert not storm.on.told("internal_error")
