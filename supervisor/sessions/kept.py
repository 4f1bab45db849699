"""Files of conversations: which one helps a request, and which go when room is needed. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from supervisor.sessions.choosing import LEAST_TOKENS, chance
from supervisor.sessions.conversation import Conversation

# A conversation of yesterday is half as likely to come back as one of now.
_HALF_LIFE = 86_400.0


@dataclass(frozen=True, slots=True)
class Kept:
    """One file.

    Attributes:
        id: of the file.
        key: what made it: model, build and settings; of use to nothing else.
        tokens: that the file holds.
        size: of the file, in bytes.
        seconds: of prefill that it saves.
        saved_at, used_at: seconds since 1970.
        uses: how often it was restored.
        stamp: of its content, by samples; see ``stamp.py``.
    """

    id: str
    key: str
    talk: Conversation
    tokens: int
    size: int
    seconds: float
    saved_at: float
    used_at: float
    uses: int = 0
    stamp: str = ""

    def common_tokens(self, talk: Conversation) -> int:
        """Tokens that both begin with, by estimate."""
        return round(self.tokens * self.talk.share(self.talk.common(talk)))

    def value(self, now: float) -> float:
        """Seconds of prefill saved, by the chance of a return, for each byte."""
        returns = (1 + self.uses) / (2 + self.uses) * chance(now - self.used_at, _HALF_LIFE)
        return self.seconds * returns / max(1, self.size)

    def not_after(self, now: float) -> Kept:
        """The same, where a clock that was ahead has written later times: it would never grow old."""
        return replace(self, saved_at=min(self.saved_at, now), used_at=min(self.used_at, now))

    def is_replaced_by(self, newer: Kept) -> bool:
        """Whether nothing is lost without it once there is ``newer``."""
        return self.key == newer.key and self.talk.is_continued_by(newer.talk)

    def row(self) -> dict[str, Any]:
        """As ``/admin/v1/cache`` shows it."""
        return {
            "id": self.id,
            "model": self.talk.model,
            "tokens": self.tokens,
            "bytes": self.size,
            "seconds_saved": round(self.seconds, 3),
            "saved_at": self.saved_at,
            "used_at": self.used_at,
            "uses": self.uses,
            "messages": len(self.talk.marks),
        }

    def document(self) -> dict[str, Any]:
        """As it is written beside the file."""
        return {
            **self.row(),
            **self.talk.document(),
            "key": self.key,
            "stamp": self.stamp,
            "seconds": self.seconds,
        }


def kept_of(document: dict[str, Any]) -> Kept:
    """What ``document`` wrote.

    Raises:
        ValueError, LookupError, TypeError: it is nothing of the kind.
    """
    return Kept(
        id=str(document["id"]),
        key=str(document["key"]),
        talk=Conversation.of(document),
        tokens=int(document["tokens"]),
        size=int(document["bytes"]),
        seconds=float(document["seconds"]),
        saved_at=float(document["saved_at"]),
        used_at=float(document["used_at"]),
        uses=int(document["uses"]),
        stamp=str(document["stamp"]),
    )


def best_kept(files: Iterable[Kept], key: str, talk: Conversation) -> tuple[Kept, int] | None:
    """The file that saves ``talk`` the most tokens, and how many; None: none saves enough."""
    found = [(kept, kept.common_tokens(talk)) for kept in files if kept.key == key]
    best = max(found, key=lambda pair: (pair[1], pair[0].saved_at), default=None)
    return None if best is None or best[1] < LEAST_TOKENS else best


def too_many(files: Iterable[Kept], budget: int, max_age: float, now: float) -> tuple[Kept, ...]:
    """Files that go: those unused for ``max_age`` seconds, then the least valuable until the rest is in ``budget``."""
    old = [kept for kept in files if now - kept.used_at > max_age]
    rest = sorted((kept for kept in files if now - kept.used_at <= max_age), key=lambda kept: kept.value(now))
    total, gone = sum(kept.size for kept in rest), []
    for kept in rest:
        if total <= budget:
            break
        gone.append(kept)
        total -= kept.size
    return (*old, *gone)
