"""Which slot a conversation gets, and what is worth keeping. Pure.

All is weighed in seconds of prefill: what a slot saves the conversation that comes, against what is lost with the one
that it holds, by the chance that this one comes back.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from supervisor.sessions.conversation import Conversation

# A common system prompt of so few tokens is no reason to take a slot.
LEAST_TOKENS = 32
# Seconds of prefill below which nothing is written: about what it costs to write, to read, and to look.
LEAST_SECONDS = 0.25
# A conversation is as likely as not to come back to its slot within this time, in seconds.
_HALF_LIFE = 600.0
_LEAST_CHANCE = 0.05
# What is lost of a conversation that is kept in a file: reading it again takes a small part of computing it.
_LOSS_IF_KEPT = 0.1


@dataclass(frozen=True, slots=True)
class Holding:
    """What a slot holds.

    Attributes:
        tokens: of its last prompt.
        used_at: monotonic seconds.
        seconds: to compute it anew.
        kept: tokens of it that a file holds.
        file: id of that file.
    """

    talk: Conversation
    tokens: int
    used_at: float
    seconds: float
    kept: int = 0
    file: str | None = None

    @property
    def unsaved(self) -> float:
        """Seconds of prefill that no file holds."""
        return self.seconds * max(0, self.tokens - self.kept) / max(1, self.tokens)

    def common_tokens(self, talk: Conversation) -> int:
        """Tokens that both begin with, by estimate."""
        return round(self.tokens * self.talk.share(self.talk.common(talk)))


def choose_slot(
    holdings: Mapping[int, Holding], free: Sequence[int], talk: Conversation, in_file: int, now: float
) -> int:
    """One of the ``free`` slots: the conversation's own, else the one with most in common, else the least valuable.

    Args:
        holdings: what slots hold; the others hold nothing.
        free: at least one.
        talk: the conversation that comes.
        in_file: tokens that it could have from a file instead.
        now: monotonic seconds.
    """
    own = [slot for slot in free if slot in holdings and holdings[slot].talk.is_continued_by(talk)]
    if own:
        return max(own, key=lambda slot: (holdings[slot].common_tokens(talk), -slot))
    return max(free, key=lambda slot: _rank(holdings.get(slot), talk, in_file, now, slot))


def _rank(
    holding: Holding | None, talk: Conversation, in_file: int, now: float, slot: int
) -> tuple[float, bool, float, int]:
    if holding is None:
        return (in_file, True, 0.0, -slot)
    common = holding.common_tokens(talk)
    if common < LEAST_TOKENS or common < in_file:
        common = 0
    rest = holding.tokens - common
    lost = rest * chance(now - holding.used_at) * (_LOSS_IF_KEPT if holding.unsaved < LEAST_SECONDS else 1.0)
    return (max(common, in_file) - lost, False, -holding.used_at, -slot)


def chance(age: float, half_life: float = _HALF_LIFE) -> float:
    """Of a return, for a conversation last heard of ``age`` seconds ago."""
    return max(_LEAST_CHANCE, math.exp2(-max(0.0, age) / half_life))
