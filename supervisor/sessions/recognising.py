"""Engines that find conversations themselves: what they served is remembered, so that a request hears how it fared.

It is written before an engine is stopped, as the engine writes what it holds, so that another daemon knows of it too.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Any

import anyio.to_thread

from supervisor.events import EventBus
from supervisor.sessions.calls import ask_slot
from supervisor.sessions.conversation import Conversation, Touch
from supervisor.sessions.events import SessionRestored, SessionSaved, SessionServed
from supervisor.sessions.launch_slots import LaunchSlots
from supervisor.sessions.turn import COLD, HIT, RESTORED, Turn, TurnEnd
from supervisor.storage import JsonFile

SERVED_FILE = "served.json"
SCHEMA = 1
_REMEMBERED = 64
# Models, of which the ones served last are remembered.
_MODELS = 16
# More than any prompt has: what was served before is expected to be there as a whole.
_ALL = 2**62


@dataclass(frozen=True, slots=True)
class _Served:
    """A conversation, the launch that served it last, in which of its slots, and the tokens that it had then."""

    launch: str
    talk: Conversation
    slot: int = 0
    tokens: int = 0


class Recognising:
    """By model, the conversations of the last requests, with the launch that served each."""

    def __init__(self, bus: EventBus) -> None:
        self._bus = bus
        self._served: dict[str, deque[_Served]] = {}

    def begin(
        self, page: LaunchSlots, slot: int, talk: Conversation | Touch, request_id: str, tell: Callable[[str], None]
    ) -> Turn:
        """A turn that is sent nowhere in particular, and listens to what the engine had of the prompt."""

        def ended(turn: Turn, end: TurnEnd) -> None:
            if end.read is None or not isinstance(talk, Conversation):
                return
            launch = page.launch
            served = self._served.pop(launch.plan.model_id, None)
            self._served[launch.plan.model_id] = served = deque(maxlen=_REMEMBERED) if served is None else served
            served.append(_Served(launch.id, talk, slot, end.read.total))
            if turn.outcome == RESTORED:
                self._bus.publish(
                    SessionRestored(launch.plan.model_id, launch.instance_id, slot, end.read.cached, None, None)
                )
            facts = (request_id, launch.plan.model_id, launch.instance_id, slot, turn.outcome)
            self._bus.publish(SessionServed(*facts, end.read.cached, end.read.total))

        expected = self._expected(page, talk) if isinstance(talk, Conversation) else COLD
        return Turn(page.slots, slot, (expected, _ALL), tell, ended)

    async def flush(self, page: LaunchSlots) -> None:
        """Have the engine write what it holds, and tell of each conversation that this launch has served."""
        launch, began = page.launch, monotonic()
        answer = await ask_slot(launch, page.slots, page.slots.save(0, ""))
        if not answer.done:
            return
        seconds = monotonic() - began
        for served in self._latest(launch.plan.model_id):
            if served.launch == launch.id:
                facts = (launch.plan.model_id, launch.instance_id, served.slot, served.tokens, None, seconds, None)
                self._bus.publish(SessionSaved(*facts, "stop"))

    async def read(self, folder: Path) -> None:
        """What an earlier daemon has written; nothing, where it can't be read."""
        document, _ = await anyio.to_thread.run_sync(JsonFile(folder / SERVED_FILE, SCHEMA).read)
        with contextlib.suppress(ValueError, LookupError, TypeError, AttributeError):
            for row in () if document is None else document["served"]:
                launch, talk = str(row["launch"]), Conversation.of(row)
                self._served.setdefault(talk.model, deque(maxlen=_REMEMBERED)).append(_Served(launch, talk))

    async def write(self, folder: Path) -> None:
        """For the next daemon. Never raises: without it a request hears ``prefix`` where it was its own."""
        models = list(self._served)[-_MODELS:]
        latest = [{"launch": each.launch, **each.talk.document()} for model in models for each in self._latest(model)]
        with contextlib.suppress(OSError):
            await anyio.to_thread.run_sync(_write, folder / SERVED_FILE, {"served": latest})

    async def forget(self, folder: Path) -> None:
        """All engines' own files are cleared."""
        self._served.clear()
        await self.write(folder)

    def _latest(self, model: str) -> list[_Served]:
        """Without those that a later one goes on with, or asks again."""
        latest: list[_Served] = []
        for each in reversed(self._served.get(model, ())):
            if not any(each.talk.is_continued_by(later.talk) for later in latest):
                latest.append(each)
        return latest[::-1]

    def _expected(self, page: LaunchSlots, talk: Conversation) -> str:
        before = self._served.get(page.launch.plan.model_id, ())
        launches = {each.launch for each in before if each.talk.is_continued_by(talk)}
        if page.launch.id in launches:
            return HIT
        return RESTORED if launches else COLD


def _write(path: Path, document: dict[str, Any]) -> None:
    if document["served"] or path.exists():
        JsonFile(path, SCHEMA).write(document, durable=False)
