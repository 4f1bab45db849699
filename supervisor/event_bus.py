"""What an event is, and the bus that hands each to whoever listens."""

from __future__ import annotations

import re
import traceback
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, cast

from supervisor.clock import Clock

Level = Literal["debug", "info", "warning", "error"]


@dataclass(frozen=True, slots=True)
class Event:
    """Base of all events. ``level`` is how loudly the log says it."""

    level: ClassVar[Level] = "info"
    _name: ClassVar[str] = "event"

    def __init_subclass__(cls) -> None:
        cls._name = re.sub(r"(?<!^)(?=[A-Z])", "_", cls.__name__).lower()

    @classmethod
    def name(cls) -> str:
        """The class's name in snake case: ``InstanceReady`` is ``instance_ready``."""
        return cls._name

    def facts(self) -> dict[str, Any]:
        """The event's fields, which are plain values themselves."""
        names = cast("tuple[str, ...]", type(self).__slots__)
        return {name: getattr(self, name) for name in names}


@dataclass(frozen=True, slots=True)
class InternalError(Event):
    """A bug: an exception that nobody expected, with its traceback; clients hear only their request's id."""

    level: ClassVar[Level] = "error"
    where: str
    error: str
    traceback: str

    @classmethod
    def of(cls, where: str, error: BaseException) -> InternalError:
        """The event of an exception that was caught."""
        return cls(where, repr(error), "".join(traceback.format_exception(error)))


@dataclass(frozen=True, slots=True)
class Record:
    """One published event: its number (from 1, this run), the wall time, the event."""

    number: int
    at: float
    event: Event


class EventBus:
    """Hands each event to every listener at once, and keeps the last ones for late readers."""

    def __init__(self, clock: Clock, keep: int = 2048) -> None:
        self._clock = clock
        self._records: deque[Record] = deque(maxlen=keep)
        self._listeners: list[Callable[[Record], None]] = []
        self._number = 0

    def publish(self, event: Event) -> None:
        """Number the event, keep it, and call every listener. Never blocks.

        A fault of a listener is told by an event of its own: it keeps neither the others from hearing nor whoever
        publishes from going on.
        """
        self._number += 1
        record = Record(self._number, self._clock.wall(), event)
        self._records.append(record)
        for listener in tuple(self._listeners):
            try:
                listener(record)
            except Exception as error:  # noqa: BLE001  see above
                if not isinstance(event, InternalError):  # one that fails on these too is not told of for ever
                    self.publish(InternalError.of(f"listener of {event.name()}", error))

    def listen(self, listener: Callable[[Record], None]) -> Callable[[], None]:
        """Call ``listener`` for each event from now on; call the answer to stop."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    def since(self, number: int) -> list[Record]:
        """Kept records after ``number``, oldest first."""
        return [record for record in self._records if record.number > number]
