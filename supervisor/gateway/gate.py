"""Counts running requests, and closes: nothing new is taken, what runs gets some time, the rest is cut."""

from __future__ import annotations

import asyncio
from collections import Counter
from types import TracebackType

import anyio

from supervisor.errors import AdmissionError
from supervisor.gateway.caller import Caller

# A cut request still has to say so to its client.
_CUT_SECONDS = 1.0


class Passage:
    """One request inside; ``with`` it. Its task is cancelled when its time is over.

    As ``asyncio.timeout`` does it, and not a scope of anyio's: there is one for each request, and it costs a tenth.
    """

    __slots__ = ("_caller", "_cancelling", "_cut", "_gate", "_task")

    def __init__(self, gate: Gate, caller: Caller | None) -> None:
        self._gate = gate
        self._caller = caller
        self._task: asyncio.Task[object] | None = None
        self._cancelling = 0
        self._cut = False

    def __enter__(self) -> None:
        """Go in.

        Raises:
            AdmissionError: ``draining``, ``caller_busy``.
        """
        self._gate.enter(self, self._caller)
        self._task = asyncio.current_task()
        self._cancelling = self._task.cancelling() if self._task is not None else 0

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        """Go out.

        Raises:
            AdmissionError: ``draining``: it was cut.
        """
        self._gate.leave(self, self._caller)
        task, self._task = self._task, None
        # Cancelled by others as well, such as by a client that leaves: then that goes first.
        if self._cut and task is not None and task.uncancel() <= self._cancelling and kind is asyncio.CancelledError:
            raise AdmissionError(
                "draining", "The daemon stopped before this answer was complete. Ask again."
            ) from error

    def cut(self) -> None:
        """Its time is over."""
        if self._task is not None and not self._cut:
            self._cut = True
            self._task.cancel()


class Gate:
    """Every request that reaches an engine passes here.

    Attributes:
        draining: nothing new is taken.
    """

    def __init__(self) -> None:
        self.draining = False
        self._running: set[Passage] = set()
        self._empty = anyio.Event()
        self._by_caller: Counter[str] = Counter()

    @property
    def running(self) -> int:
        """Requests inside."""
        return len(self._running)

    def admit_caller(self, caller: Caller) -> Passage:
        """As ``admit``, and counted against what this caller may run at once: going in may be ``caller_busy``."""
        return Passage(self, caller)

    def admit(self) -> Passage:
        """Be counted while inside; the block is cancelled when its time is over: ``draining``."""
        return Passage(self, None)

    def enter(self, passage: Passage, caller: Caller | None) -> None:
        """Count it; for ``Passage``.

        Raises:
            AdmissionError: ``draining``, ``caller_busy``.
        """
        if caller is not None and caller.max_concurrent is not None:
            running = self._by_caller[caller.name]
            if running >= caller.max_concurrent:
                raise AdmissionError(
                    "caller_busy",
                    f"{running} requests of {caller.name} are running or waiting, and its max_concurrent allows "
                    f"{caller.max_concurrent}. Ask again when one has ended.",
                )
        if self.draining:
            raise AdmissionError("draining", "The daemon is stopping and takes no new requests. Try again shortly.")
        if caller is not None:
            self._by_caller[caller.name] += 1
        self._running.add(passage)

    def leave(self, passage: Passage, caller: Caller | None) -> None:
        """Count it no more; for ``Passage``."""
        self._running.discard(passage)
        if caller is not None:
            self._by_caller[caller.name] -= 1
            if not self._by_caller[caller.name]:
                del self._by_caller[caller.name]  # without tokens there is a name for each address
        if not self._running:
            self._empty.set()

    async def drain(self, seconds: float) -> int:
        """Take nothing new, wait so long for what runs, cut the rest; the answer is how many were cut."""
        self.draining = True
        with anyio.move_on_after(seconds):
            await self._wait_until_empty()
        cut = tuple(self._running)
        for passage in cut:
            passage.cut()
        with anyio.move_on_after(_CUT_SECONDS):
            await self._wait_until_empty()
        return len(cut)

    async def _wait_until_empty(self) -> None:
        while self._running:
            self._empty = anyio.Event()
            await self._empty.wait()
