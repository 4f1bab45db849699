"""What is done once an answer is out and nobody waits for it: soon, together, and surely."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

# The next request of the same client comes within a millisecond: it goes first.
_SOON_SECONDS = 0.005


class Afterwards:
    """Keeps calls for a moment, in order; ``flush`` makes them now."""

    def __init__(self) -> None:
        self._calls: deque[Callable[[], None]] = deque()
        self._timer: asyncio.TimerHandle | None = None

    def later(self, call: Callable[[], None]) -> None:
        """Have it made soon."""
        self._calls.append(call)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_SOON_SECONDS, self.flush)

    def flush(self) -> None:
        """Make every call that is kept; one that raises is told to the event loop, and stops no other."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        while self._calls:
            call = self._calls.popleft()
            try:
                call()
            except Exception as error:  # noqa: BLE001  told
                context = {"message": "a call after an answer failed", "exception": error}
                asyncio.get_running_loop().call_exception_handler(context)
