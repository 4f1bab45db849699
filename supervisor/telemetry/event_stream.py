"""Events as server-sent events: what was kept, then what comes, with a bound on what a slow reader may hold back."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncGenerator, Callable, Mapping
from typing import Any

import anyio

from supervisor.events import Event, EventBus, Record
from supervisor.telemetry.encoding import to_json

_HEARTBEAT = b": heartbeat\n\n"


class EventStream:
    """Hands the bus's records to any number of readers, each with a queue of its own.

    Args:
        bus: where events come from.
        max_pending: records that may wait for one reader; one more, and it is dropped.
        heartbeat_seconds: a comment is sent after so long without an event, so that both ends notice a dead line.
        clean: applied to each event's facts before they leave (see ``Redactor.clean``).
        pick: what a frame says beside the event's own facts; None leaves the event out.
        most: kept records that a reader gets at first; None: all.
    """

    def __init__(
        self,
        bus: EventBus,
        max_pending: int = 1024,
        heartbeat_seconds: float = 15.0,
        clean: Callable[[Any], Any] = lambda facts: facts,
        pick: Callable[[Event], Mapping[str, Any] | None] = lambda _event: {},
        most: int | None = None,
    ) -> None:
        self._bus = bus
        self._max_pending = max_pending
        self._heartbeat_seconds = heartbeat_seconds
        self._clean = clean
        self._pick = pick
        self._most = most

    async def frames(self, after: int | None) -> AsyncGenerator[bytes, None]:
        r"""SSE frames ``id: N\nevent: name\ndata: {json}\n\n``, until the reader leaves.

        ``after`` is the reader's ``Last-Event-ID``: kept records with a greater number come first (0: all of them);
        a number that this run has not reached yet is from an earlier run, and all kept records come. None: only what
        happens from now on. Where records were already forgotten, ``event: missed`` says so. A reader that lets more
        than ``max_pending`` records wait gets those and a final ``event: overflow``; it may come back with the last
        id that it saw.

        Nothing outlives the reader: closing the generator (``contextlib.aclosing``) or cancelling the task ends the
        subscription; a generator that was only forgotten ends its own at the overflow.
        """
        inbox = _Inbox(self._max_pending)
        inbox.stop = self._bus.listen(inbox.put)
        try:
            # No await since `listen`: nothing is lost or doubled between what was kept and what comes.
            for frame in self._replay(after):
                yield frame
            while True:
                while inbox.records:
                    if frame := self._frame(inbox.records.popleft()):
                        yield frame
                if inbox.overflowed:
                    yield _overflow(self._max_pending)
                    return
                if not await inbox.wait(self._heartbeat_seconds):
                    yield _HEARTBEAT
        finally:
            inbox.close()

    def _replay(self, after: int | None) -> list[bytes]:
        if after is None:
            return []
        kept = self._bus.since(0)
        if kept and after > kept[-1].number:
            after = 0
        frames = [frame for record in kept if record.number > after and (frame := self._frame(record))]
        if self._most is not None:
            frames = frames[-self._most :]
        if kept and 0 < after < kept[0].number - 1:
            frames.insert(0, _frame("missed", {"after": after, "before": kept[0].number}))
        return frames

    def _frame(self, record: Record) -> bytes:
        event = record.event
        more = self._pick(event)
        if more is None:
            return b""
        facts = self._clean({**event.facts(), **more})
        return b"id: %d\n" % record.number + _frame(event.name(), {"at": record.at, "level": event.level, **facts})


class _Inbox:
    """What waits for one reader; unsubscribes itself when that grows too much."""

    def __init__(self, limit: int) -> None:
        self.records: deque[Record] = deque()
        self.overflowed = False
        self.stop: Callable[[], None] | None = None
        self._limit = limit
        self._arrived = anyio.Event()

    def put(self, record: Record) -> None:
        if len(self.records) >= self._limit:
            self.overflowed = True
            self.close()
        else:
            self.records.append(record)
        self._arrived.set()

    async def wait(self, seconds: float) -> bool:
        """Whether something arrived within the time."""
        with anyio.move_on_after(seconds):
            await self._arrived.wait()
        arrived = self._arrived.is_set()
        if arrived:
            self._arrived = anyio.Event()
        return arrived

    def close(self) -> None:
        stop, self.stop = self.stop, None
        if stop is not None:
            stop()


def _frame(name: str, data: dict[str, Any]) -> bytes:
    return b"event: %s\ndata: %s\n\n" % (name.encode(), to_json(data))


def _overflow(limit: int) -> bytes:
    return _frame("overflow", {"pending": limit, "why": "the reader was too slow; come back with Last-Event-ID"})
