"""Jobs: every picture is one, whoever waits for it. Each runs in a task of its own, which outlives its client.

A client that waits and leaves cancels its job; the job's task goes on until the engine is free.
"""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import secrets
import traceback
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from typing import Any

import anyio
import orjson
from anyio.abc import TaskGroup, TaskStatus

from engines.pictures import PictureAbilities, PictureEngine
from supervisor.clock import Clock
from supervisor.config.schema import PicturesConfig
from supervisor.errors import CallerError, SupervisorError, UpstreamError
from supervisor.events import EventBus, InternalError
from supervisor.gateway.asking import lease_request
from supervisor.gateway.errors import internal_error
from supervisor.gateway.exchange import Exchange
from supervisor.gateway.gate import Gate
from supervisor.gateway.pictures.drawing import (
    Drawing,
    Drawn,
    EngineGoneError,
    Order,
    OutOfMemoryError,
    cancelled_error,
)
from supervisor.gateway.pictures.host import PictureHost, Room
from supervisor.gateway.pictures.progress import Progress
from supervisor.gateway.pictures.wishes import Asked
from supervisor.gateway.ports import Crashes, Leases
from supervisor.models.catalog import ModelEntry
from supervisor.units import format_size

# While it waits, its place in the queue is looked at this often.
_LOOK_SECONDS = 0.25
_MOST_KEPT = 256
_MOST_EVENTS = 2000
# Of pictures that were not fetched by a request that waited for them.
_MOST_BYTES = 256 * 2**20
_QUEUED, _DONE, _FAILED, _CANCELLED = "queued", "done", "failed", "cancelled"
_ENDS = frozenset({_DONE, _FAILED, _CANCELLED})


@dataclass(slots=True, eq=False)
class Job:
    """One request for pictures.

    Attributes:
        id: unguessable.
        caller: who may see it.
        events: states so far, oldest first.
        result: set when it is done; ``error`` when it is not.
    """

    id: str
    caller: str
    entry: ModelEntry
    asked: Asked
    exchange: Exchange
    abilities: PictureAbilities
    engine: PictureEngine
    created: float
    keep_alive: float | None = None
    state: str = _QUEUED
    progress: Progress = field(default_factory=lambda: Progress(_QUEUED))
    events: deque[tuple[int, dict[str, Any]]] = field(default_factory=lambda: deque(maxlen=_MOST_EVENTS))
    result: Drawn | None = None
    error: SupervisorError | None = None
    ended: float | None = None
    order: Order | None = None
    news: anyio.Event = field(default_factory=anyio.Event)
    numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    @property
    def over(self) -> bool:
        """Whether its client has nothing more to wait for."""
        return self.state in _ENDS

    @property
    def held_bytes(self) -> int:
        """Bytes of its pictures, in base64."""
        return sum(map(len, self.result.images)) if self.result is not None else 0

    def tell(self, event: dict[str, Any]) -> None:
        """One more state."""
        self.events.append((next(self.numbers), event))
        news, self.news = self.news, anyio.Event()
        news.set()

    async def until_over(self) -> None:
        """Return when it is."""
        while not self.over:
            await self.news.wait()


class PictureJobs:
    """Owns all jobs; ``run`` must be running while any is."""

    def __init__(
        self,
        leases: Leases,
        crashes: Crashes,
        host: PictureHost,
        gate: Gate,
        clock: Clock,
        bus: EventBus,
        limits: Callable[[], PicturesConfig],
    ) -> None:
        self._leases = leases
        self._crashes = crashes
        self._host = host
        self._gate = gate
        self._clock = clock
        self._bus = bus
        self._limits = limits
        self._drawing = Drawing(host, lambda: limits().silence)
        self._jobs: dict[str, Job] = {}
        self._tasks: TaskGroup | None = None

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Own the jobs' tasks; ends when cancelled."""
        async with anyio.create_task_group() as tasks:
            self._tasks = tasks
            task_status.started()
            try:
                await anyio.sleep_forever()
            finally:
                self._tasks = None

    def begin(self, job: Job) -> Job:
        """Start it."""
        self._forget_old()
        self._jobs[job.id] = job
        if self._tasks is None:
            raise AssertionError("no job is taken before `run` runs")
        self._tasks.start_soon(self._run, job)
        return job

    def find(self, name: str, caller: str) -> Job:
        """The caller's job of this id.

        Raises:
            CallerError: ``image_job_not_found``.
        """
        self._forget_old()
        job = self._jobs.get(name)
        if job is None or job.caller != caller:
            raise CallerError("image_job_not_found", "There is no such picture job, or it ended long ago.")
        return job

    def running(self, caller: str) -> list[Job]:
        """The caller's jobs that are not over, oldest first."""
        return [job for job in self._jobs.values() if job.caller == caller and not job.over]

    def cancel(self, job: Job, why: str) -> None:
        """Nobody wants it any more; its client hears so at once, and the engine is freed."""
        if job.over:
            return
        self._end(job, _CANCELLED, cancelled_error(why))
        if job.order is not None:
            job.order.why_cancelled = why
            job.order.cancelled.set()

    async def wait(self, job: Job) -> Drawn:
        """What it makes; who waits and is cancelled cancels it.

        Raises:
            SupervisorError: it failed, or was cancelled.
        """
        try:
            await job.until_over()
        except asyncio.CancelledError:
            self.cancel(job, "its client left")
            raise
        if job.error is not None:
            raise job.error
        if job.result is None:
            raise AssertionError("a job that is done has a result")
        self._jobs.pop(job.id, None)  # nobody else knows it
        return job.result

    async def events(self, job: Job) -> AsyncIterator[bytes]:
        """Its states as server-sent events, from the first to the last."""
        last = 0
        while True:
            news = job.news
            for number, event in tuple(job.events):
                if number > last:
                    last = number
                    yield f"id: {number}\nevent: {event['state']}\ndata: ".encode() + orjson.dumps(event) + b"\n\n"
            if job.over and not any(number > last for number, _ in job.events):
                return
            await news.wait()

    async def _run(self, job: Job) -> None:
        """To its end, which is always told; a fault of our own ends this job alone."""
        job.order = Order(job.entry.id, job.asked.wish, job.abilities, lambda progress: self._show(job, progress))
        try:
            with self._gate.admit_caller(job.exchange.caller):
                drawn = await self._drawn(job, job.order)
            self._end(job, _DONE, None, drawn)
        except SupervisorError as error:
            cancelled = error.code == "image_generation_cancelled"
            self._end(job, _CANCELLED if cancelled else _FAILED, error)
        except Exception as error:  # noqa: BLE001  see above
            trace = traceback.format_exc()
            self._bus.publish(InternalError(f"picture {job.id}", f"{type(error).__name__}: {error}", trace))
            self._end(job, _FAILED, internal_error(job.exchange.request_id))
        finally:
            if not job.over:
                self._end(job, _FAILED, cancelled_error("the daemon stopped"))

    async def _drawn(self, job: Job, order: Order) -> Drawn:
        """Tried once more where the engine ended, or with less memory where it did not fit."""
        room = await self._host.room(job.entry)
        await self._fit(job, order, room)
        mark = _mark(job)
        for last in (False, True):
            self._crashes.refuse_guilty(job.entry.id, mark)
            try:
                drawn = await self._once(job, order, mark)
            except EngineGoneError as error:
                lacked = self._host.ended_for_memory(job.entry.id)
                self._crashes.refuse_guilty(job.entry.id, mark)
                if last:
                    raise self._gone(job, order, room, lacked=lacked) from error
                if lacked:
                    self._shrink(job, order)
            except OutOfMemoryError as error:
                if last or not self._shrink(job, order):
                    raise _out_of_memory(job, order, room, error.asked_bytes) from error
            else:
                self._crashes.answered(job.entry.id, mark)
                return drawn
        raise AssertionError("the second try returns or raises")

    def _gone(self, job: Job, order: Order, room: Room | None, *, lacked: bool) -> SupervisorError:
        if lacked:
            return _out_of_memory(job, order, room, None)
        return UpstreamError("upstream_died", f"The engine of {job.entry.id} ended twice during this picture.")

    async def _fit(self, job: Job, order: Order, room: Room | None) -> None:
        """Tiles where the picture would not fit otherwise, or as the config says.

        Raises:
            UpstreamError: ``image_out_of_memory``: it never fits.
        """
        said = job.engine.tiling(job.entry.launch)
        if said:
            order.wish = replace(order.wish, tiled=True)
        if room is None or room.beyond(self._working(job, order)) is None:
            return
        if said is None:
            whole, order.wish = order.wish, replace(order.wish, tiled=True)
            if room.beyond(self._working(job, order)) is None:
                need = self._working(job, replace(order, wish=whole))
                self._note(
                    job, f"memory: decoded in tiles, since {format_size(max(need.values()))} are not free for it"
                )
                return
        raise _out_of_memory(job, order, room, None)

    def _shrink(self, job: Job, order: Order) -> bool:
        """Less for the second try: tiles, and other engines that idle go; whether anything could be done."""
        gone = self._host.make_room(job.entry.id, f"{job.entry.id} ran out of memory with a picture")
        tiled = not order.wish.tiled and job.engine.tiling(job.entry.launch) is not False
        if tiled:
            order.wish = replace(order.wish, tiled=True)
            self._note(job, "memory: decoded in tiles, since the engine ran out of memory without them")
        return tiled or gone > 0

    async def _once(self, job: Job, order: Order, mark: bytes) -> Drawn:
        turn = self._crashes.turn_of(job.entry.id, mark)
        if turn is None:
            return await self._leased(job, order, mark)
        try:
            await turn.take()
            self._crashes.refuse_guilty(job.entry.id, mark)
            return await self._leased(job, order, mark)
        finally:
            turn.give_back()

    async def _leased(self, job: Job, order: Order, mark: bytes) -> Drawn:
        """On an engine of its own for as long as it computes; who cancels while it queues leaves no trace."""
        exchange = job.exchange
        request = replace(lease_request(exchange, job.entry, mark, job.keep_alive), working=self._working(job, order))
        async with AsyncExitStack() as held:
            with anyio.CancelScope() as queueing:
                watch = asyncio.create_task(self._watch_queue(job, order, queueing))
                try:
                    lease = await held.enter_async_context(self._leases.lease(request))
                finally:
                    watch.cancel()
            if order.cancelled.is_set():
                raise cancelled_error(order.why_cancelled)
            exchange.leased(lease)
            self._show(job, Progress("starting"))
            return await self._drawing.draw(order, job.engine, lease)

    async def _watch_queue(self, job: Job, order: Order, queueing: anyio.CancelScope) -> None:
        """Tell its place in the queue, and that the engine loads; end the waiting when nobody waits any more."""
        while not order.cancelled.is_set():
            position = self._host.position(job.exchange.request_id)
            if self._host.is_loading(job.entry.id):
                self._show(job, Progress("loading"))
            elif position is not None:
                self._show(job, Progress(_QUEUED, position))
            with anyio.move_on_after(_LOOK_SECONDS):
                await order.cancelled.wait()
        queueing.cancel()

    def _working(self, job: Job, order: Order) -> dict[str, int]:
        if job.entry.metadata is None:
            return {}
        return dict(job.engine.working_set(job.entry.metadata, job.entry.launch, order.wish))

    def _note(self, job: Job, note: str) -> None:
        job.asked = replace(job.asked, notes=(*job.asked.notes, note))

    def _show(self, job: Job, progress: Progress) -> None:
        if job.over or progress == job.progress:
            return
        job.progress, job.state = progress, progress.state
        job.tell(progress.document())

    def _end(self, job: Job, state: str, error: SupervisorError | None, drawn: Drawn | None = None) -> None:
        if job.over:
            return
        job.state, job.error, job.result = state, error, drawn
        job.ended = self._clock.monotonic()
        event: dict[str, Any] = {"state": state}
        if error is not None:
            event["error"] = {"code": error.code, "message": error.message}
        job.tell(event)

    def _forget_old(self) -> None:
        now, keep = self._clock.monotonic(), self._limits().keep
        ended = [job for job in self._jobs.values() if job.ended is not None]
        surplus, held = len(self._jobs) - _MOST_KEPT, sum(job.held_bytes for job in ended)
        for number, job in enumerate(sorted(ended, key=lambda job: job.ended or 0.0)):
            if number < surplus or held > _MOST_BYTES or now - (job.ended or 0.0) >= keep:
                held -= job.held_bytes
                del self._jobs[job.id]


def new_job_id() -> str:
    """Unguessable: whoever knows it may see the pictures."""
    return f"img-{secrets.token_hex(12)}"


def _mark(job: Job) -> bytes:
    """What is the same of two requests that would do the same to an engine: all but the seed."""
    wish = job.asked.wish
    pictures = hashlib.sha256(b"".join((*wish.sources, wish.mask or b""))).hexdigest()
    return f"{replace(wish, seed=0)!r} {pictures}".encode()


def _out_of_memory(job: Job, order: Order, room: Room | None, asked: int | None) -> UpstreamError:
    """With the arithmetic, as far as it is known."""
    wish, metadata = order.wish, job.entry.metadata
    words = f"{job.entry.id} has not the memory for {wish.count} x {wish.width}x{wish.height}"
    working: dict[str, int] = {}
    if metadata is not None:
        working = dict(job.engine.working_set(metadata, job.entry.launch, wish))
    for pool, size in working.items():
        idle = None if room is None else room.idle.get(pool)
        budget = None if room is None else room.budget.get(pool)
        held = "its engine" if idle is None else f"{format_size(idle)} of its engine"
        words += f": {held} + {format_size(size)} of the picture, of {format_size(budget)} in {pool}"
    if asked:
        words += f"; the engine could not get {format_size(asked)} more"
    tiles = ", decoded in tiles already" if wish.tiled else ""
    return UpstreamError(
        "image_out_of_memory",
        f"{words}{tiles}. Ask for a smaller picture, or free memory.",
        working=working,
        asked_bytes=asked,
    )
