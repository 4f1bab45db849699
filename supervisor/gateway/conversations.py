"""Which conversation a request belongs to, by its client's word, and what keeps conversations."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from supervisor.gateway.ports import Lease
from supervisor.instances.launch import Launch
from supervisor.models.catalog import ModelEntry
from supervisor.sessions.conversation import Talk, Touch
from supervisor.sessions.turn import NoTurn

SESSION_HEADER = "x-session-id"
OUTCOME_HEADER = "x-enginehouse-session"
_LONGEST_NAME = 512


class Turn(Protocol):
    """A request's time in its slot."""

    def pinned(self, payload: bytes) -> bytes:
        """The body as it is sent."""
        ...

    def heard(self, progress: bytes | None, *, content: bool) -> None:
        """The data of the first progress report, if any, and whether there is content."""
        ...

    def told(self, total: int, cached: int, seconds: float | None) -> None:
        """At the end of an answer without reports: the prompt's tokens, those in the slot, and seconds for the rest."""
        ...

    def end(self, *, answered: bool) -> None:
        """It is over; ``answered``: the engine has said all."""
        ...


class Conversations(Protocol):
    """Keeps conversations in slots and on disk; see ``sessions.keeper``."""

    def about(self, entry: ModelEntry, owner: str, name: str | None, body: Mapping[str, Any]) -> Talk:
        """What a request's body is to slots; takes time for a large one."""
        ...

    def prefers(self, talk: Talk, launch: Launch, free: Sequence[int]) -> int:
        """One of the free slots."""
        ...

    async def begin(self, lease: Any, talk: Talk, request_id: str, tell: Callable[[str], None]) -> Turn:
        """Make the slot of a lease ready; ``tell`` is told the outcome, perhaps twice. Never fails the request."""
        ...

    def unsure(self, launch: Any) -> None:
        """The engine was told something by hand."""
        ...

    def rows(self) -> list[dict[str, Any]]:
        """Each file, the one used last first."""
        ...

    async def clear(self, model: str | None) -> tuple[int, int]:
        """Remove the files of a model, or all; how many, and their bytes."""
        ...


class NoConversations:
    """Keeps none: engines choose slots themselves."""

    def about(self, _entry: ModelEntry, _owner: str, _name: str | None, _body: Mapping[str, Any]) -> Talk:
        """Nothing."""
        return Touch.NOTHING

    def prefers(self, _talk: Talk, _launch: Launch, free: Sequence[int]) -> int:
        """The first."""
        return free[0]

    async def begin(self, _lease: Lease, _talk: Talk, _request_id: str, _tell: Callable[[str], None]) -> Turn:
        """A turn that does nothing."""
        return NoTurn()

    def unsure(self, _launch: Any) -> None:
        """Nothing to be unsure of."""

    def rows(self) -> list[dict[str, Any]]:
        """None."""
        return []

    async def clear(self, _model: str | None) -> tuple[int, int]:
        """Nothing to remove."""
        return 0, 0


def session_name(headers: Mapping[str, str], body: Mapping[str, Any]) -> str | None:
    """What the client calls its conversation: by header, else by ``prompt_cache_key``; None: nothing, or nonsense."""
    return _sane(headers.get(SESSION_HEADER)) or _sane(body.get("prompt_cache_key"))


def session_name_of_user(headers: Mapping[str, str], body: Mapping[str, Any]) -> str | None:
    """The same for Messages, whose clients name it in ``metadata.user_id``."""
    metadata = body.get("metadata")
    return session_name(headers, body) or (_sane(metadata.get("user_id")) if isinstance(metadata, dict) else None)


def _sane(name: object) -> str | None:
    return name if isinstance(name, str) and 0 < len(name) <= _LONGEST_NAME else None
