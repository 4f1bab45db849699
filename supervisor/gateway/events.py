"""What the gateway tells of beside requests themselves."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from supervisor.events import Event, Level


@dataclass(frozen=True, slots=True)
class ResponseNotStored(Event):
    """A response was given and could not be kept: nothing can go on from it."""

    level: ClassVar[Level] = "error"
    request_id: str
    response: str
    reason: str
