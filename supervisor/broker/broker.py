"""The broker: owns the queues and the leases, and runs admission after every change.

All state is read and changed in sync methods; nothing awaits between reading and acting.
"""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import anyio
from anyio.abc import TaskGroup, TaskStatus

from supervisor.broker.admission import Denial, InstanceView, QueueLimits, Ticket, decide, refuse_new
from supervisor.broker.keep_alive import FOREVER, IdleInstance, decide_idle, keep_alive_of
from supervisor.broker.lease import Lease, LeaseRequest
from supervisor.broker.ports import BrokeredFleet, BrokeredInstance
from supervisor.broker.settling import wait_until_idle
from supervisor.clock import Clock
from supervisor.errors import AdmissionError, InstanceError, ModelError, SupervisorError
from supervisor.events import EventBus, RequestDenied, RequestLeased, RequestQueued
from supervisor.models.catalog import ModelEntry
from supervisor.units import format_duration

# A changed model's running requests may finish for this long; shorter than `queue.max_wait`, so that who waits for the
# new launch still gets it.
RETIRE_SECONDS = 60.0
_DRAINING = Denial("draining", "the daemon is stopping and takes no new requests", retry_after=5.0)


@dataclass(slots=True, eq=False)
class _Waiter:
    """A ticket and what became of it."""

    ticket: Ticket
    request: LeaseRequest
    lease: Lease | None = None
    error: SupervisorError | None = None
    load_owner: bool = False
    waiting: anyio.Event | None = None  # most never wait

    @property
    def settled(self) -> bool:
        return self.lease is not None or self.error is not None

    def settle(self) -> None:
        if self.waiting is not None:
            self.waiting.set()


@dataclass(frozen=True, slots=True, eq=False)
class _Retirement:
    """One wish to stop an instance once its leases have ended; two with the same words are not the same."""

    why: str


@dataclass(slots=True)
class _Book:
    """Queue and leases of one model.

    Attributes:
        idle_since: since when nobody has used it, in monotonic seconds.
        retiring: why its instance is to stop once its leases have ended; None: it is not.
    """

    instance: BrokeredInstance
    keep_alive: float
    idle_since: float
    retiring: _Retirement | None = None
    queue: list[_Waiter] = field(default_factory=list)
    leases: dict[int, Lease] = field(default_factory=dict)


class Broker:
    """Grants leases; ``run`` must be running while it does."""

    def __init__(self, fleet: BrokeredFleet, limits: QueueLimits, clock: Clock, bus: EventBus) -> None:
        self._fleet = fleet
        self._limits = limits
        self._clock = clock
        self._bus = bus
        self._books: dict[str, _Book] = {}
        self._numbers = itertools.count(1)
        self._tasks: TaskGroup | None = None
        self._draining = False
        self._idle_changed = anyio.Event()
        self._next_look = FOREVER

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Own the tasks that watch abandoned slots and idle instances; ends when cancelled."""
        async with anyio.create_task_group() as tasks:
            self._tasks = tasks
            task_status.started()
            try:
                await self._stop_the_idle()
            finally:
                self._tasks = None

    @asynccontextmanager
    async def lease(self, request: LeaseRequest) -> AsyncIterator[Lease]:
        """Wait for a slot, starting the engine if it must be, and hold it.

        Raises:
            AdmissionError: ``queue_full``, ``queue_timeout``, ``draining``.
            InstanceError: the engine could not be started.
            PlanError: no build, or no plan that fits.
        """
        waiter = self._enqueue(request)
        try:
            if not waiter.settled:
                waiter.waiting = anyio.Event()
                with anyio.move_on_after(self._limits.max_wait):
                    await waiter.waiting.wait()
            lease = self._outcome(waiter)
            yield lease
        finally:
            self._leave(waiter)

    def instance_changed(self, instance: BrokeredInstance) -> None:
        """Observer of every instance: leases of an ended launch break, then admission runs again."""
        book = self._books.get(instance.model_id)
        if book is None:
            return
        if not instance.is_ready:
            for lease in book.leases.values():
                lease.break_off()
            book.leases.clear()
        if instance.has_failed:
            self._deny_all(book, _why_failed(instance), instance.failure)
        self._touch(book)
        self._pump(instance.model_id)

    def adopt(self, entry: ModelEntry, relaunch: str | None) -> None:
        """Serve the model by this entry from now on.

        Args:
            entry: the changed entry.
            relaunch: why its running engine must be launched anew, once idle or after ``RETIRE_SECONDS``; None: it
                goes on.
        """
        book = self._books.get(entry.id)
        if book is None:
            return
        book.instance.use(entry)
        book.keep_alive = keep_alive_of(None, entry.keep_alive, pinned=entry.pinned)
        if relaunch is not None:
            self._retire(book, relaunch)
        self._touch(book)

    def drop(self, model_id: str) -> None:
        """The model is gone: refuse who waits for it, and stop its engine once idle or after ``RETIRE_SECONDS``."""
        book = self._books.get(model_id)
        if book is None:
            return
        gone = ModelError("model_not_found", f"model {model_id!r} was taken out of the config", model=model_id)
        self._deny_all(book, Denial(gone.code, gone.message, 1.0), gone)
        self._retire(book, "taken out of the config")

    def stop_admitting(self) -> None:
        """Refuse whoever waits and whoever comes; leases go on."""
        self._draining = True
        for book in self._books.values():
            self._deny_all(book, _DRAINING)

    @property
    def lease_count(self) -> int:
        """Leases held now, abandoned ones that the engine still works on among them."""
        return sum(len(book.leases) for book in self._books.values())

    def leases_of(self, model_id: str) -> int:
        """Leases held on one model's instance."""
        book = self._books.get(model_id)
        return len(book.leases) if book else 0

    def leases_on(self, model_id: str) -> tuple[Lease, ...]:
        """The leases held on one model's instance."""
        book = self._books.get(model_id)
        return tuple(book.leases.values()) if book else ()

    def queue_view(self) -> list[dict[str, Any]]:
        """Waiting tickets as ``/admin/v1/status`` shows them."""
        now = self._clock.monotonic()
        return [
            {
                "request_id": waiter.ticket.request_id,
                "caller": waiter.ticket.caller,
                "model": waiter.ticket.model_id,
                "lane": waiter.ticket.lane,
                "waited_seconds": round(now - waiter.ticket.since, 3),
                "position": position,
            }
            for book in self._books.values()
            for position, waiter in enumerate(book.queue, start=1)
        ]

    def _enqueue(self, request: LeaseRequest) -> _Waiter:
        now = self._clock.monotonic()
        model_id = request.model.id
        ticket = Ticket(next(self._numbers), request.request_id, request.caller, model_id, request.lane, now)
        waiter = _Waiter(ticket, request)
        waiting = (other.ticket for book in self._books.values() for other in book.queue)
        denial = _DRAINING if self._draining else refuse_new(waiting, ticket, self._limits)
        if denial is not None:
            self._deny(waiter, denial)
            return waiter
        book = self._book(request.model)
        book.keep_alive = keep_alive_of(request.keep_alive, request.model.keep_alive, pinned=request.model.pinned)
        book.queue.append(waiter)
        self._pump(model_id)
        if not waiter.settled:
            position = book.queue.index(waiter) + 1
            self._bus.publish(RequestQueued(request.request_id, model_id, request.caller, position))
        return waiter

    def use(self, limits: QueueLimits) -> None:
        """Queue by other limits from now on."""
        self._limits = limits

    def watch(self, entry: ModelEntry) -> None:
        """Count the model's idle time from now on, also when no request has come yet: it is loaded by hand."""
        self._book(entry)

    def _book(self, entry: ModelEntry) -> _Book:
        known = self._books.get(entry.id)
        if known is None:
            keep_alive = keep_alive_of(None, entry.keep_alive, pinned=entry.pinned)
            instance = self._fleet.instance(entry)
            instance.use(entry)
            known = _Book(instance, keep_alive, self._clock.monotonic())
            self._books[entry.id] = known
        return known

    def _pump(self, model_id: str) -> None:
        """Admission for one model's queue, and its effects."""
        book = self._books[model_id]
        if not book.queue:
            return
        instance = book.instance
        waiters = {waiter.ticket: waiter for waiter in book.queue}
        decision = decide(tuple(waiters), self._view(instance, book))
        for ticket, denial in decision.denials:
            book.queue.remove(waiters[ticket])
            self._deny(waiters[ticket], denial, instance.failure)
        for ticket, slot in decision.grants:
            book.queue.remove(waiters[ticket])
            self._grant(waiters[ticket], instance, slot)
        if decision.want_instance:
            started_now = instance.want()
            book.queue[0].load_owner |= started_now

    def _view(self, instance: BrokeredInstance, book: _Book) -> InstanceView:
        free: tuple[int, ...] = ()
        if instance.accepting:
            free = tuple(islice((slot for slot in range(instance.slots) if slot not in book.leases), len(book.queue)))
        denial = None if instance.failure is None else _why_failed(instance)
        return InstanceView(instance.accepting, instance.can_start, free, denial)

    def _grant(self, waiter: _Waiter, instance: BrokeredInstance, slot: int) -> None:
        launch = instance.current_launch()
        waited = self._clock.monotonic() - waiter.ticket.since
        load = instance.load_overlap(waiter.ticket.since)
        times = (max(0.0, waited - load), load)
        lease = Lease(waiter.request, launch, slot, waited=times, load_owner=waiter.load_owner)
        self._books[waiter.ticket.model_id].leases[slot] = lease
        waiter.lease = lease
        waiter.settle()
        ticket = waiter.ticket
        self._bus.publish(RequestLeased(ticket.request_id, ticket.model_id, instance.id, slot, *times))

    def _deny(self, waiter: _Waiter, denial: Denial, cause: SupervisorError | None = None) -> None:
        waited = self._clock.monotonic() - waiter.ticket.since
        facts = {"retry_after": denial.retry_after, "waited_seconds": round(waited, 3)}
        waiter.error = _same_branch(cause, denial, facts)
        waiter.settle()
        ticket = waiter.ticket
        self._bus.publish(
            RequestDenied(ticket.request_id, ticket.model_id, ticket.caller, denial.code, denial.why, waited)
        )

    def _deny_all(self, book: _Book, denial: Denial, cause: SupervisorError | None = None) -> None:
        """Nobody waits for what has just been given up; who comes later may try again."""
        waiting, book.queue = book.queue, []
        for waiter in waiting:
            self._deny(waiter, denial, cause)

    def _outcome(self, waiter: _Waiter) -> Lease:
        if waiter.error is None and waiter.lease is None:
            what = f"waited {self._limits.max_wait:g} s for {waiter.ticket.model_id}; queue.max_wait allows no more"
            self._deny(waiter, Denial("queue_timeout", what, retry_after=30.0))
        if waiter.error is not None:
            raise waiter.error
        if waiter.lease is None:
            raise AssertionError("a settled waiter has a lease or an error")
        return waiter.lease

    def _leave(self, waiter: _Waiter) -> None:
        """The request is over, in whatever phase: nothing of it stays behind."""
        book = self._books.get(waiter.ticket.model_id)
        if book is None:
            return
        if waiter in book.queue:
            book.queue.remove(waiter)
            self._touch(book)
        lease = waiter.lease
        if lease is None or lease.broken:
            return
        if lease.abandoned and self._tasks is not None:
            self._tasks.start_soon(self._settle, lease, book)
        else:
            self._free(lease, book)

    def _free(self, lease: Lease, book: _Book) -> None:
        if book.leases.get(lease.slot) is lease:
            del book.leases[lease.slot]
            self._touch(book)
            self._pump(lease.request.model.id)

    def _touch(self, book: _Book) -> None:
        """Its use has just changed: its idle time starts anew."""
        book.idle_since = self._clock.monotonic()
        # A later deadline is seen when the planned look finds nobody due; only an earlier one needs a look now.
        if book.idle_since + book.keep_alive < self._next_look:
            self._idle_changed.set()
        if book.retiring is not None and not book.leases:
            self._end_retiring(book)

    def _retire(self, book: _Book, why: str) -> None:
        book.instance.forgive()
        book.instance.drain()
        book.retiring = retirement = _Retirement(why)
        if not book.leases or self._tasks is None:
            self._end_retiring(book)
        else:
            self._tasks.start_soon(self._cut_retiring, book, retirement)

    async def _cut_retiring(self, book: _Book, retirement: _Retirement) -> None:
        await anyio.sleep(RETIRE_SECONDS)
        if book.retiring is retirement:
            self._end_retiring(book)

    def _end_retiring(self, book: _Book) -> None:
        """Stop it now; whoever waits wants it again, and gets a new launch."""
        retirement, book.retiring = book.retiring, None
        book.instance.request_stop(retirement.why if retirement else "")
        self._pump(book.instance.model_id)

    async def _stop_the_idle(self) -> None:
        """Stop instances that have been idle for their keep-alive; decided anew at each change and each deadline."""
        while True:
            self._idle_changed = anyio.Event()
            idle = [
                IdleInstance(model_id, book.idle_since, book.keep_alive)
                for model_id, book in self._books.items()
                if book.instance.accepting and not book.queue and not book.leases
            ]
            now = self._clock.monotonic()
            decision = decide_idle(idle, now)
            self._next_look = FOREVER if decision.next_look is None else decision.next_look
            for due in decision.stop:
                stayed = format_duration(now - due.since)
                self._books[due.model_id].instance.request_stop(f"idle for {stayed}, keep_alive is over")
            with anyio.move_on_after(None if decision.next_look is None else decision.next_look - now):
                await self._idle_changed.wait()

    async def _settle(self, lease: Lease, book: _Book) -> None:
        """Free an abandoned lease once the engine's slot is seen idle, or its launch is gone."""

        def others_running() -> int:
            return sum(1 for other in book.leases.values() if not other.abandoned and not other.engine_done)

        adapter = self._fleet.adapter(lease.request.model)
        await wait_until_idle(lease, adapter, others_running, self._bus)
        self._free(lease, book)


def _why_failed(instance: BrokeredInstance) -> Denial:
    failure = instance.failure
    if failure is None:
        return Denial("instance_failed", f"{instance.id} can't be started", instance.retry_after())
    return Denial(failure.code, failure.message, instance.retry_after())


def _same_branch(cause: SupervisorError | None, denial: Denial, facts: dict[str, Any]) -> SupervisorError:
    """An error of the branch that the cause belongs to, so that the gateway's table finds it by code."""
    if cause is not None:
        return type(cause)(cause.code, cause.message, **{**cause.facts, **facts})
    branch = InstanceError if denial.code.startswith(("start_", "instance_")) else AdmissionError
    return branch(denial.code, denial.why, **facts)
