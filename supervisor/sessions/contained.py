"""A fault of our own in keeping conversations fails no request: it is told, and the request goes on without."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from supervisor.events import EventBus, InternalError
from supervisor.instances.launch import Launch
from supervisor.models.catalog import ModelEntry
from supervisor.sessions.conversation import Talk, Touch
from supervisor.sessions.keeper import Keeper
from supervisor.sessions.ports import HeldSlot
from supervisor.sessions.turn import NoTurn, Turn


class ContainedKeeper:
    """The keeper as requests meet it."""

    def __init__(self, keeper: Keeper, bus: EventBus) -> None:
        self._keeper = keeper
        self._bus = bus

    def about(self, entry: ModelEntry, owner: str, name: str | None, body: Mapping[str, Any]) -> Talk:
        """As ``Keeper.about``; may run in a thread, where nothing can be told."""
        try:
            return self._keeper.about(entry, owner, name, body)
        except Exception:  # noqa: BLE001  see the head
            return Touch.ANY

    def prefers(self, talk: Talk, launch: Launch, free: Sequence[int]) -> int:
        """As ``Keeper.prefers``."""
        try:
            return self._keeper.prefers(talk, launch, free)
        except Exception as error:  # noqa: BLE001  see the head
            self._tell("choosing a slot", error)
            return free[0]

    async def begin(self, lease: HeldSlot, talk: Talk, request_id: str, tell: Callable[[str], None]) -> _ContainedTurn:
        """As ``Keeper.begin``."""
        try:
            turn = await self._keeper.begin(lease, talk, request_id, tell)
        except Exception as error:  # noqa: BLE001  see the head
            self._tell("preparing a slot", error)
            turn = NoTurn()
        return _ContainedTurn(turn, self._tell)

    def unsure(self, launch: Launch) -> None:
        """As ``Keeper.unsure``."""
        self._keeper.unsure(launch)

    def rows(self) -> list[dict[str, Any]]:
        """As ``Keeper.rows``."""
        return self._keeper.rows()

    async def clear(self, model: str | None) -> tuple[int, int]:
        """As ``Keeper.clear``."""
        return await self._keeper.clear(model)

    def _tell(self, where: str, error: Exception) -> None:
        self._bus.publish(InternalError(where, repr(error), "".join(traceback.format_exception(error))))


class _ContainedTurn:
    """A turn whose faults are told."""

    __slots__ = ("_tell", "_turn")

    def __init__(self, turn: Turn | NoTurn, tell: Callable[[str, Exception], None]) -> None:
        self._turn = turn
        self._tell = tell

    def pinned(self, payload: bytes) -> bytes:
        """The body as it is sent."""
        return self._turn.pinned(payload)

    def heard(self, progress: bytes | None, *, content: bool) -> None:
        """What came so far."""
        try:
            self._turn.heard(progress, content=content)
        except Exception as error:  # noqa: BLE001  see the head
            self._tell("reading a first report", error)

    def told(self, total: int, cached: int, seconds: float | None) -> None:
        """What a whole answer says of the prompt."""
        try:
            self._turn.told(total, cached, seconds)
        except Exception as error:  # noqa: BLE001  see the head
            self._tell("reading an answer's figures", error)

    def end(self, *, answered: bool) -> None:
        """The request is over."""
        try:
            self._turn.end(answered=answered)
        except Exception as error:  # noqa: BLE001  see the head
            self._tell("ending a turn", error)
