"""What drawing needs of engines, and no more; ``app`` hands in the real thing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any, Protocol

import aiohttp

from supervisor.models.catalog import ModelEntry


@dataclass(frozen=True, slots=True)
class Room:
    """Memory for pictures of one model, in bytes by pool.

    Attributes:
        budget: what may be promised in all; None: not known.
        idle: what its engine holds, or would, when it draws nothing.
    """

    budget: Mapping[str, int | None]
    idle: Mapping[str, int]

    def beyond(self, working: Mapping[str, int]) -> tuple[str, int, int, int] | None:
        """The pool that could never hold a picture: its name, idle bytes, the picture's, and budget."""
        for pool, size in working.items():
            budget, idle = self.budget.get(pool), self.idle.get(pool, 0)
            if budget is not None and idle + size > budget:
                return pool, idle, size, budget
        return None


class PictureLaunch(Protocol):
    """An engine process that draws; see ``instances.launch.Launch``."""

    @property
    def base_url(self) -> str: ...  # noqa: D102  said in the class

    @property
    def headers(self) -> Mapping[str, str]: ...  # noqa: D102  said in the class

    @property
    def session(self) -> aiohttp.ClientSession: ...  # noqa: D102  said in the class

    @property
    def calls(self) -> AbstractAsyncContextManager[Any]: ...  # noqa: D102  said in the class

    @property
    def listeners(self) -> list[Callable[[str], None]]: ...  # noqa: D102  said in the class

    @property
    def unfinished(self) -> Callable[[], str]: ...  # noqa: D102  said in the class


class PictureHost(Protocol):
    """The engines as drawing sees them."""

    def position(self, request_id: str) -> int | None:
        """Place in the queue of its model, from 1; None: it does not wait."""
        ...

    def is_loading(self, model_id: str) -> bool:
        """Whether its engine is being started."""
        ...

    def load_seconds(self, model_id: str) -> float | None:
        """What its last load took; None: not known."""
        ...

    def stop(self, model_id: str, why: str) -> None:
        """Stop its engine now; who waits for it has it started again."""
        ...

    def make_room(self, model_id: str, why: str) -> int:
        """Stop other engines that are idle, whose memory may help; how many."""
        ...

    def ended_for_memory(self, model_id: str) -> bool:
        """Whether its last engine was ended for want of memory."""
        ...

    async def room(self, entry: ModelEntry) -> Room | None:
        """Memory for its pictures; None: not known."""
        ...
