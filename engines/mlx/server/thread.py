"""The thread that owns MLX: work comes in by a queue, and events go out to the event loop, once for each step."""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeVar

from engines.mlx.server.problems import UNAVAILABLE, RequestError
from engines.mlx.server.work import Done, Event, Failed, Work

_log = logging.getLogger(__name__)
T = TypeVar("T")

State = Literal["loading", "ready", "broken", "ended"]


class RunsWork(Protocol):
    """What the thread needs of an engine."""

    @property
    def busy(self) -> bool: ...  # noqa: D102  see ``engine.Engine``

    def submit(self, work: Work) -> None: ...  # noqa: D102

    def cancel(self, identity: int) -> None: ...  # noqa: D102

    def pause(self, identity: int) -> None: ...  # noqa: D102

    def resume(self, identity: int) -> None: ...  # noqa: D102

    def step(self) -> None: ...  # noqa: D102

    def close(self) -> None: ...  # noqa: D102


@dataclass(frozen=True, slots=True)
class _Cancel:
    identity: int


@dataclass(frozen=True, slots=True)
class _Pace:
    identity: int
    go: bool


@dataclass(frozen=True, slots=True)
class _Call:
    function: Callable[[Any], Any]
    done: Callable[[Any, BaseException | None], None]


class _Stop:
    pass


_Order = Work | _Cancel | _Pace | _Call | _Stop
Deliver = Callable[[list[tuple[int, Event]]], None]
MakeEngine = Callable[[Callable[[int, Event], None]], RunsWork]


class EngineThread:
    """Runs an engine. All methods are for the event loop's thread.

    Args:
        make: makes the engine, in the thread; takes as long as the model takes to load.
        deliver: called on the loop with the events of each step.
        changed: called on the loop when the state has changed.
    """

    def __init__(self, make: MakeEngine, deliver: Deliver, changed: Callable[[], None]) -> None:
        self.state: State = "loading"
        self.reason = ""
        self.engine: Any = None
        self.last_step = time.monotonic()
        self._make = make
        self._deliver = deliver
        self._changed = changed
        self._loop = asyncio.get_running_loop()
        self._orders: queue.SimpleQueue[_Order] = queue.SimpleQueue()
        self._out: list[tuple[int, Event]] = []
        self._known: set[int] = set()
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)

    def start(self) -> None:
        """Begin to load."""
        self._thread.start()

    def submit(self, work: Work) -> None:
        """Have work done; its events come by ``deliver``."""
        self._orders.put(work)

    def cancel(self, identity: int) -> None:
        """Nobody waits for it any more."""
        self._orders.put(_Cancel(identity))

    def pause(self, identity: int) -> None:
        """Its events pile up: no more of them for now, if that can be."""
        self._orders.put(_Pace(identity, go=False))

    def resume(self, identity: int) -> None:
        """They are read again."""
        self._orders.put(_Pace(identity, go=True))

    async def call(self, function: Callable[[Any], T]) -> T:
        """The value of a function of the engine, computed in its thread between two steps.

        Raises:
            RequestError: the engine is broken, or the function raised it.
            Exception: whatever else it raised.
        """
        if self.state not in {"loading", "ready"}:
            message = f"the engine is {self.state}: {self.reason}"
            raise RequestError(message, status=UNAVAILABLE, kind="unavailable_error")
        future: asyncio.Future[T] = self._loop.create_future()

        def done(value: Any, error: BaseException | None) -> None:
            self._loop.call_soon_threadsafe(_settle, future, value, error)

        self._orders.put(_Call(function, done))
        return await future

    def stop(self) -> None:
        """Have it end after the step that it is in."""
        self._orders.put(_Stop())

    async def ended(self) -> None:
        """Wait until the thread has given everything back."""
        while self._thread.is_alive():  # noqa: ASYNC110  a thread has no event of the loop
            await asyncio.sleep(0.01)

    # From here on in the thread itself.

    def _run(self) -> None:
        try:
            self.engine = self._make(self._emit)
        except BaseException as error:  # noqa: BLE001  whatever a model's files make the libraries raise
            _log.exception("the model could not be loaded")
            self._broken(f"{type(error).__name__}: {error}")
            return
        self._tell("ready", "")
        try:
            self._work(self.engine)
        except BaseException as error:  # noqa: BLE001  see ``_broken``
            _log.exception("the engine's thread died")
            self._broken(f"{type(error).__name__}: {error}")
        else:
            self._tell("ended", "it was stopped")

    def _work(self, engine: RunsWork) -> None:
        stopping = False
        while not stopping:
            stopping = self._take_orders(engine)
            if engine.busy and not stopping:
                engine.step()
                self.last_step = time.monotonic()
            self._send()
        engine.close()

    def _take_orders(self, engine: RunsWork) -> bool:
        """Carry out what was ordered; waits for an order while there is nothing to do."""
        block = not engine.busy
        while True:
            try:
                order = self._orders.get(block=block)
            except queue.Empty:
                return False
            block = False
            if isinstance(order, _Stop):
                return True
            if isinstance(order, Work):
                self._known.add(order.id)
                engine.submit(order)
            elif isinstance(order, _Cancel):
                self._known.discard(order.identity)
                engine.cancel(order.identity)
            elif isinstance(order, _Pace):
                (engine.resume if order.go else engine.pause)(order.identity)
            else:
                _carry_out(order, engine)

    def _emit(self, identity: int, event: Event) -> None:
        self._out.append((identity, event))
        if isinstance(event, Done | Failed):
            self._known.discard(identity)

    def _send(self) -> None:
        if self._out:
            out, self._out = self._out, []
            self._loop.call_soon_threadsafe(self._deliver, out)

    def _broken(self, reason: str) -> None:
        """Every request hears of it, and so does whoever asks from now on."""
        self._send()
        self._tell("broken", reason)
        failed = RequestError(f"the engine broke: {reason}", status=UNAVAILABLE, kind="unavailable_error")
        lost: list[tuple[int, Event]] = [(identity, Failed(failed)) for identity in self._known]
        while True:
            try:
                order = self._orders.get(block=False)
            except queue.Empty:
                break
            if isinstance(order, Work):
                lost.append((order.id, Failed(failed)))
            elif isinstance(order, _Call):
                order.done(None, failed)
        self._loop.call_soon_threadsafe(self._deliver, lost)

    def _tell(self, state: State, reason: str) -> None:
        def tell() -> None:
            self.state, self.reason = state, reason
            self._changed()

        self._loop.call_soon_threadsafe(tell)


def _carry_out(call: _Call, engine: RunsWork) -> None:
    try:
        value = call.function(engine)
    except Exception as error:  # noqa: BLE001  it is the caller's
        call.done(None, error)
    else:
        call.done(value, None)


def _settle(future: asyncio.Future[T], value: T, error: BaseException | None) -> None:
    if future.done():
        return
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(value)
