"""Writes slots while nobody uses their engine, so that a hand-over, an eviction or a crash finds them written."""

from __future__ import annotations

import math
import traceback
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass

from supervisor.clock import Clock
from supervisor.events import EventBus, InternalError
from supervisor.sessions.choosing import LEAST_SECONDS, Holding
from supervisor.sessions.filing import BUSY, IDLE, Filing, Locks, save
from supervisor.sessions.launch_slots import LaunchSlots

# Idle seconds after which a slot is written. Soon, if computing what is new takes a few times as long as writing all;
# else later, as in a loop of short turns.
IDLE_SECONDS = 0.25
LATER_SECONDS = 10.0
_WORTH_SOON = 4
# Others use their engine: a slot that nobody came back to for so long is written all the same, if that is so quick.
UNUSED_SECONDS = 60.0
QUICK_SECONDS = 0.05
# To look again at an engine that is in use.
_BUSY_SECONDS = 0.5
# After a fault of our own.
_FAULT_SECONDS = 60.0


def due_at(holding: Holding, transfer: float) -> float:
    """The monotonic second at which a slot that nobody uses is written; ``transfer``: seconds that it takes. Pure."""
    return holding.used_at + (IDLE_SECONDS if holding.unsaved >= _WORTH_SOON * transfer else LATER_SECONDS)


def may_be_written_beside_others(holding: Holding, transfer: float, now: float) -> bool:
    """While others use the engine, so that a crash does not lose what a busy one has held for long. Pure."""
    return transfer <= QUICK_SECONDS and now - holding.used_at >= UNUSED_SECONDS


@dataclass(frozen=True, slots=True)
class IdleTools:
    """What the keeper lends: its pages that are kept, how one is settled, and how one is saved."""

    pages: Callable[[], Iterable[LaunchSlots]]
    settle: Callable[[LaunchSlots], Awaitable[None]]
    filing: Callable[[LaunchSlots], Filing]
    locks: Locks


class IdleSaving:
    """Looks at all slots when asked to."""

    def __init__(self, tools: IdleTools, clock: Clock, bus: EventBus) -> None:
        self._tools = tools
        self._clock = clock
        self._bus = bus

    async def look(self) -> float:
        """Write what is due; the monotonic second at which the next one is. A fault of our own loses a file at most."""
        try:
            return min([await self._look_at(page) for page in list(self._tools.pages())], default=math.inf)
        except Exception as error:  # noqa: BLE001  see above
            self._bus.publish(InternalError("saving idle slots", repr(error), traceback.format_exc()))
            return self._clock.monotonic() + _FAULT_SECONDS

    async def _look_at(self, page: LaunchSlots) -> float:
        due, filing = math.inf, self._tools.filing(page)
        if page.is_idle():
            await self._tools.settle(page)
        for slot in page.worth_saving(LEAST_SECONDS):
            holding = page.holdings.get(slot)
            if holding is None or slot in page.active:
                continue
            transfer, now = filing.speeds.transfer(holding.tokens), self._clock.monotonic()
            at, beside = due_at(holding, transfer), may_be_written_beside_others(holding, transfer, now)
            if at > now or not (page.is_idle() or beside):
                due = min(due, max(at, now + _BUSY_SECONDS) if at <= now else at)
                continue
            async with self._tools.locks.alone(page) as current:
                why = IDLE if page.is_idle() else BUSY
                if not current or slot in page.active or (why == BUSY and (not beside or page.is_unsure)):
                    continue
                if not await save(page, slot, filing, why) and (why == BUSY or page.is_idle()):
                    page.give_up_saving(slot)
        return due
