"""Counts running requests, and closes: nothing new is taken, what runs gets some time, the rest is cut."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import anyio

from supervisor.errors import AdmissionError
from supervisor.gateway.caller import Caller

# A cut request still has to say so to its client.
_CUT_SECONDS = 1.0


class Gate:
    """Every request that reaches an engine passes here.

    Attributes:
        draining: nothing new is taken.
    """

    def __init__(self) -> None:
        self.draining = False
        self._running: set[anyio.CancelScope] = set()
        self._empty = anyio.Event()
        self._by_caller: Counter[str] = Counter()

    @property
    def running(self) -> int:
        """Requests inside."""
        return len(self._running)

    @contextmanager
    def admit_caller(self, caller: Caller) -> Iterator[None]:
        """As ``admit``, and counted against what this caller may run at once.

        Raises:
            AdmissionError: ``draining``, ``caller_busy``.
        """
        running = self._by_caller[caller.name]
        if caller.max_concurrent is not None and running >= caller.max_concurrent:
            raise AdmissionError(
                "caller_busy",
                f"{running} requests of {caller.name} are running or waiting, and its max_concurrent allows "
                f"{caller.max_concurrent}. Ask again when one has ended.",
            )
        with self.admit():
            self._by_caller[caller.name] += 1
            try:
                yield
            finally:
                self._by_caller[caller.name] -= 1
                if not self._by_caller[caller.name]:
                    del self._by_caller[caller.name]  # without tokens there is a name for each address

    @contextmanager
    def admit(self) -> Iterator[None]:
        """Be counted; the block is cancelled when its time is over.

        Raises:
            AdmissionError: ``draining``, at once or when the block was cut.
        """
        if self.draining:
            raise AdmissionError("draining", "The daemon is stopping and takes no new requests. Try again shortly.")
        with anyio.CancelScope() as scope:
            self._running.add(scope)
            try:
                yield
            finally:
                self._running.discard(scope)
                if not self._running:
                    self._empty.set()
        if scope.cancelled_caught:
            raise AdmissionError("draining", "The daemon stopped before this answer was complete. Ask again.")

    async def drain(self, seconds: float) -> int:
        """Take nothing new, wait so long for what runs, cut the rest; the answer is how many were cut."""
        self.draining = True
        with anyio.move_on_after(seconds):
            await self._wait_until_empty()
        cut = tuple(self._running)
        for scope in cut:
            scope.cancel()
        with anyio.move_on_after(_CUT_SECONDS):
            await self._wait_until_empty()
        return len(cut)

    async def _wait_until_empty(self) -> None:
        while self._running:
            self._empty = anyio.Event()
            await self._empty.wait()
