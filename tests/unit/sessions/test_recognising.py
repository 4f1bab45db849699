"""Engines that keep conversations themselves: what they served before, a daemon later too."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from engines.mlx.slots import MlxSlots
from supervisor.clock import SystemClock
from supervisor.events import EventBus
from supervisor.sessions.conversation import Conversation, Touch
from supervisor.sessions.launch_slots import LaunchSlots
from supervisor.sessions.recognising import SERVED_FILE, Recognising
from tests.fakes.instances import launch_plan
from tests.unit.sessions.test_conversation import read

_FIRST = [{"role": "user", "content": "a"}]
_MORE = [*_FIRST, {"role": "assistant", "content": "b"}, {"role": "user", "content": "c"}]


def _page(launch: str) -> LaunchSlots:
    facts = SimpleNamespace(id=launch, instance_id="m-1", generation=1, plan=launch_plan())
    return LaunchSlots(cast("Any", facts), MlxSlots(), None)


def _asked(own: Recognising, launch: str, talk: Conversation | Touch, cached: int = 90) -> str:
    """The last that a request hears of how it fared."""
    told: list[str] = []
    turn = own.begin(_page(launch), 0, talk, "r", told.append)
    turn.heard(b'{"choices":[],"prompt_progress":{"total":100,"cache":%d,"processed":100}}' % cached, content=False)
    turn.end(answered=True)
    return told[-1]


async def test_a_conversation_is_recognised_by_the_next_daemon(tmp_path: Path) -> None:
    """It comes back to another launch: restored, if the engine has it; what is cleared is forgotten."""
    model = launch_plan().model_id
    first, more = (_of(model, read(messages)) for messages in (_FIRST, _MORE))
    own = Recognising(EventBus(SystemClock()))
    assert _asked(own, "1", first, 0) == "cold"
    assert _asked(own, "1", more) == "hit"
    await own.write(tmp_path)
    again = Recognising(EventBus(SystemClock()))
    await again.read(tmp_path)
    assert _asked(again, "2", more, 0) == "cold"
    again = Recognising(EventBus(SystemClock()))
    await again.read(tmp_path)
    assert _asked(again, "2", more) == "restored"
    assert _asked(again, "2", more) == "hit"
    await again.forget(tmp_path)
    assert _asked(again, "3", more) == "prefix"
    again = Recognising(EventBus(SystemClock()))
    await again.read(tmp_path)
    assert _asked(again, "3", more) == "prefix"


def _of(model: str, talk: Conversation) -> Conversation:
    return Conversation(model, talk.name, talk.marks, talk.sizes)


@pytest.mark.parametrize("content", [b"", b"{}", b'{"schema":1}', b'{"schema":1,"served":[{"launch":"1"}, 7]}'])
async def test_a_damaged_file_is_as_none(tmp_path: Path, content: bytes) -> None:
    """Nothing is recognised, and nothing fails."""
    (tmp_path / SERVED_FILE).write_bytes(content)
    own = Recognising(EventBus(SystemClock()))
    await own.read(tmp_path)
    assert _asked(own, "1", read(_FIRST)) == "prefix"


def test_several_choices_are_not_remembered() -> None:
    """They are told what the engine had."""
    own = Recognising(EventBus(SystemClock()))
    assert [_asked(own, "1", Touch.SEVERAL, cached) for cached in (0, 90)] == ["cold", "prefix"]
