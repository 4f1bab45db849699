"""Decides again after every change: never twice at once, and whatever a decision does."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from supervisor.events import EventBus, InternalError

# After a fault of our own it is decided again in so many seconds, if nothing changes before.
AFTER_A_FAULT = 5.0


class Pump:
    """Call it after a change; a change that a decision itself makes is decided on when that is done.

    Args:
        decide: one decision and its effects.
        look_again: called with the seconds after which to decide again, when a decision has failed.
    """

    def __init__(self, decide: Callable[[], None], look_again: Callable[[float], None], bus: EventBus) -> None:
        self._decide = decide
        self._look_again = look_again
        self._bus = bus
        self._deciding = self._again = False

    def __call__(self) -> None:
        """Something has changed."""
        self._again = True
        if self._deciding:
            return
        self._deciding = True
        try:
            while self._again:
                self._again = False
                self._decide()
        except Exception as error:  # noqa: BLE001  whoever told of the change has no part in it: the next is decided on
            self._bus.publish(InternalError.of("admission", error))
            self._look_again(AFTER_A_FAULT)
        finally:
            self._deciding = False


async def contained(bus: EventBus, where: str, work: Awaitable[None]) -> None:
    """Await it; a fault of our own is told, and ends nothing but itself."""
    try:
        await work
    except Exception as error:  # noqa: BLE001  see above
        bus.publish(InternalError.of(where, error))
