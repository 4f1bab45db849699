"""What is told of conversations: how a request found its own, and what was saved, restored and given up."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from supervisor.events import Event, Level


@dataclass(frozen=True, slots=True)
class SessionServed(Event):
    """How a request found its conversation: ``hit``, ``restored``, ``prefix`` or ``cold``; tokens of its prompt."""

    level: ClassVar[Level] = "debug"
    request_id: str
    model: str
    instance: str
    slot: int
    outcome: str
    cached_tokens: int
    prompt_tokens: int


@dataclass(frozen=True, slots=True)
class SessionSaved(Event):
    """What a slot held was written to a file.

    ``why``: ``handover``, ``idle``, ``busy`` (others used the engine) or ``stop``. ``bytes`` and ``prefill_seconds``:
    None where an engine keeps its conversations by itself.
    """

    model: str
    instance: str
    slot: int
    tokens: int
    bytes: int | None
    seconds: float
    prefill_seconds: float | None
    why: str


@dataclass(frozen=True, slots=True)
class SessionRestored(Event):
    """A slot holds what a file held; None where an engine keeps its conversations by itself."""

    model: str
    instance: str
    slot: int
    tokens: int
    bytes: int | None
    seconds: float | None


@dataclass(frozen=True, slots=True)
class SessionNotSaved(Event):
    """A conversation was not written, and is computed anew when it comes back."""

    level: ClassVar[Level] = "warning"
    model: str
    instance: str
    slot: int
    tokens: int
    reason: str


@dataclass(frozen=True, slots=True)
class SessionSaveDropped(Event):
    """A file was thrown away: its slot was used again while it was written, or its launch has ended."""

    level: ClassVar[Level] = "debug"
    model: str
    instance: str
    slot: int
    reason: str


@dataclass(frozen=True, slots=True)
class SessionNotRestored(Event):
    """A file was of no use, and is gone; the request was computed anew."""

    level: ClassVar[Level] = "warning"
    model: str
    instance: str
    slot: int
    tokens: int
    reason: str


@dataclass(frozen=True, slots=True)
class SessionsNotKept(Event):
    """Nothing of this launch is saved or restored from now on."""

    level: ClassVar[Level] = "warning"
    model: str
    instance: str
    reason: str


@dataclass(frozen=True, slots=True)
class SessionFilesDropped(Event):
    """Files of conversations went: too old, too many, cleared by hand, or not to be read."""

    files: int
    bytes: int
    reason: str


@dataclass(frozen=True, slots=True)
class SessionFolderUnusable(Event):
    """Nothing can be kept on disk: the folder can't be made or read."""

    level: ClassVar[Level] = "warning"
    path: str
    reason: str
