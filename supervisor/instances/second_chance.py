"""A model that has failed gets another chance when its engine's builds are no longer what they were."""

from __future__ import annotations

import traceback
from collections.abc import Awaitable, Callable

import anyio

from supervisor.events import EventBus, InternalError
from supervisor.models.catalog import ModelEntry

MadeOf = Callable[[ModelEntry], Awaitable[object]]


async def made_of_nothing(_entry: ModelEntry) -> object:
    """Nothing that could change."""
    return ()


class SecondChance:
    """Looks, while an instance is FAILED, whether its next launch would be made of something else.

    Args:
        made_of: what a launch would be made of now; equal answers mean that nothing has changed.
        interval: seconds between two looks.
    """

    def __init__(self, made_of: MadeOf, interval: float, bus: EventBus) -> None:
        self._made_of = made_of
        self._interval = interval
        self._bus = bus
        self._failed_with: object = None

    def forget(self) -> None:
        """A launch begins: a later failure is compared with what there is then."""
        self._failed_with = None

    async def look(self, entry: ModelEntry, wake: anyio.Event) -> bool:
        """Whether something has changed; else it waits for the next look, or for ``wake``."""
        try:
            found = await self._made_of(entry)
        except Exception as error:  # noqa: BLE001  a look that fails changes nothing
            self._bus.publish(InternalError(f"builds of {entry.id}", repr(error), traceback.format_exc()))
            found = self._failed_with
        if self._failed_with is None:
            self._failed_with = found
        elif found != self._failed_with:
            self._failed_with = None
            return True
        with anyio.move_on_after(self._interval):
            await wake.wait()
        return False
