"""Who asks, and what they may."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from dataclasses import dataclass
from typing import get_args

from supervisor.config.sections import Lane, Role

EVERY_ROLE: frozenset[Role] = frozenset(get_args(Role))


@dataclass(frozen=True, slots=True)
class Caller:
    """Someone who asks.

    Attributes:
        name: from the config; where no token is asked for, the address. The queue shares by it.
        roles: what they may; none unless given.
        weight: share of the queue against other callers.
        max_lane: the highest that they may ask for.
        trusted: their user headers divide them into users of their own.
        max_concurrent: requests to models at once; None: no limit.
        models: ids or aliases of what they may use; None: all.
    """

    name: str
    roles: frozenset[Role] = frozenset()
    weight: float = 1.0
    max_lane: Lane = "interactive"
    trusted: bool = False
    max_concurrent: int | None = None
    models: frozenset[str] | None = None

    def sees(self, model_id: str, aliases: Iterable[str]) -> bool:
        """Whether the model is there for them: one that they may not use looks as if it weren't."""
        return self.models is None or not self.models.isdisjoint((model_id, *aliases))


@functools.lru_cache(maxsize=256)
def anyone(address: str) -> Caller:
    """The caller at an address where no token is asked for: may do everything."""
    return Caller(address, EVERY_ROLE)
