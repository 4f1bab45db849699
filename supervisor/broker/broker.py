"""The broker: owns the queues, the leases and the memory book, and runs admission after every change.

All state is read and changed in sync methods; nothing awaits between reading and acting. Effects run as tasks and come
back as changes.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

import anyio
from anyio.abc import TaskGroup, TaskStatus

from engines.contract import LaunchPlan
from supervisor.broker.accounts import Accounts
from supervisor.broker.admission import Decision, Evict, Grant, Policy, Start, World, admit
from supervisor.broker.books import Book, Waiter, why_failed
from supervisor.broker.keep_alive import keep_alive_of
from supervisor.broker.lease import Lease, LeaseRequest
from supervisor.broker.leasing import Leasing
from supervisor.broker.lookout import Lookout
from supervisor.broker.memory_book import MemoryBook
from supervisor.broker.ports import BrokeredFleet, BrokeredInstance, Planner
from supervisor.broker.pump import Pump, contained
from supervisor.broker.queue_rows import queue_rows
from supervisor.broker.refusals import DRAINING, Refusing
from supervisor.broker.retiring import RETIRE_SECONDS, Retiring
from supervisor.broker.settling import wait_until_idle
from supervisor.broker.starting import Starting
from supervisor.broker.tickets import Denial, QueueLimits, refuse_new
from supervisor.clock import Clock
from supervisor.errors import ModelError
from supervisor.events import EventBus, RequestLeased, RequestQueued
from supervisor.memory_events import Evicted, RequestWaits
from supervisor.models.catalog import ModelEntry


class Broker:
    """Grants leases; ``run`` must be running while it does. ``memory`` and ``books`` are for others to read."""

    def __init__(
        self, fleet: BrokeredFleet, planner: Planner, limits: QueueLimits, policy: Policy, clock: Clock, bus: EventBus
    ) -> None:
        self.memory = MemoryBook(bus)
        self._fleet = fleet
        self._limits = limits
        self._policy = policy
        self._clock = clock
        self._bus = bus
        self._starting = Starting(planner, self.memory, clock, bus)
        self._books: dict[str, Book] = {}
        self.books: Mapping[str, Book] = self._books
        self._numbers = itertools.count(1)
        self._accounts = Accounts(clock)
        self._refusing = Refusing(clock, bus)
        self._tasks: TaskGroup | None = None
        self._draining = False
        # For who has changed something that is decided on.
        self.pump = Pump(self._decide, self._decide_in, bus)
        self._lookout = Lookout(self._books, clock, self.pump)
        self._retiring = Retiring(self.pump)

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Own the tasks that watch abandoned slots and idle instances; ends when cancelled."""
        async with anyio.create_task_group() as tasks:
            self._tasks = self._retiring.tasks = tasks
            task_status.started()
            try:
                await self._lookout.run()
            finally:
                self._tasks = self._retiring.tasks = None

    def lease(self, request: LeaseRequest) -> Leasing:
        """Wait for a slot, starting the engine if it must be, and hold it for a block.

        Entering raises:
            AdmissionError: ``queue_full``, ``queue_timeout``, ``draining``, ``no_room``.
            InstanceError: the engine could not be started.
            PlanError: no build, or no plan that fits.
        """
        return Leasing(request, self._enqueue, self._settled, self._leave)

    async def load(self, entry: ModelEntry) -> None:
        """Make the model ready by hand: past failures are forgotten, and its idle time is counted from then on.

        Raises:
            SupervisorError: as ``lease``.
        """
        book = self._book(entry)
        book.loaded_by_hand = True
        book.thought = None
        book.instance.forgive()
        waiter = self._enqueue(LeaseRequest(f"load {entry.id}", "operator", entry), slotless=True)
        try:
            await self._settled(waiter)
        finally:
            self._leave(waiter)

    def unload(self, instance: BrokeredInstance) -> None:
        """Stop it by hand, cutting what runs; whoever loads it by hand hears so, requests have it started anew."""
        self._refusing.loaders_of(self._books.get(instance.model_id))
        instance.request_stop("unloaded by hand")

    async def plan_for(self, entry: ModelEntry) -> LaunchPlan:
        """The plan that a beginning launch was admitted with; one that tries anew is admitted anew.

        Raises:
            SupervisorError: there is none, or none that fits now.
        """
        book = self._book(entry)
        plan, book.plan = book.plan, None
        return self._starting.announced(entry, plan if plan is not None else await self._starting.again(book, entry))

    def instance_changed(self, instance: BrokeredInstance) -> None:
        """Observer of every instance: leases of an ended launch break, its memory goes back, then admission runs."""
        book = self._books.get(instance.model_id)
        if book is None:
            return
        if not instance.is_ready:
            for lease in book.leases.values():
                lease.break_off()
            book.leases.clear()
        if instance.at_rest:
            book.plan = book.thought = None
            book.loaded_by_hand = False
            if self.memory.ended(instance.id) and self._tasks is not None:
                self._tasks.start_soon(contained, self._bus, f"memory of {book.instance.id}", self._see_back(book))
        if instance.has_failed:
            self._refusing.all_of(book, why_failed(instance), instance.failure)
        self._touch(book)
        self.pump()

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
        book.pinned, book.thought = entry.pinned, None
        if relaunch is not None:
            book.instance.forgive()
            self._retiring.begin(book, relaunch, RETIRE_SECONDS)
        self._touch(book)

    def drop(self, model_id: str) -> None:
        """The model is gone: refuse who waits for it, and stop its engine once idle or after ``RETIRE_SECONDS``."""
        book = self._books.get(model_id)
        if book is None:
            return
        gone = ModelError("model_not_found", f"model {model_id!r} was taken out of the config", model=model_id)
        self._refusing.all_of(book, Denial(gone.code, gone.message, 1.0), gone)
        book.instance.forgive()
        self._retiring.begin(book, "taken out of the config", RETIRE_SECONDS)

    def pin(self, entry: ModelEntry, *, pinned: bool) -> None:
        """Never evict the model from now on, or again; until the daemon ends or its config changes."""
        book = self._book(entry)
        book.pinned = pinned
        book.keep_alive = keep_alive_of(None, entry.keep_alive, pinned=pinned)
        self._touch(book)
        self.pump()

    def memory_seen(self, instance_id: str, declared: Mapping[str, int], observed: Mapping[str, int]) -> None:
        """What an engine says that it allocated itself, and what it was seen to hold, in bytes by pool."""
        self.memory.seen(instance_id, declared, observed)
        self.pump()

    def stop_admitting(self) -> None:
        """Refuse whoever waits and whoever comes; leases go on."""
        self._draining = True
        for book in self._books.values():
            self._refusing.all_of(book, DRAINING)

    def use(self, limits: QueueLimits, policy: Policy) -> None:
        """Queue and evict by other settings from now on."""
        self._limits, self._policy = limits, policy
        self.rethink()

    def rethink(self) -> None:
        """What starts would take, or why there can be none, is worked out anew: builds or settings have changed."""
        for book in self._books.values():
            book.thought = None
        self.pump()

    @property
    def lease_count(self) -> int:
        """Leases held now, abandoned ones that the engine still works on among them."""
        return sum(len(book.leases) for book in self._books.values())

    def leases_on(self, model_id: str) -> tuple[Lease, ...]:
        """The leases held on one model's instance."""
        book = self._books.get(model_id)
        return tuple(book.leases.values()) if book else ()

    def queue_view(self) -> list[dict[str, Any]]:
        """Waiting tickets as ``/admin/v1/status`` shows them."""
        return queue_rows(self._books.values(), self._clock.monotonic())

    async def _settled(self, waiter: Waiter) -> None:
        if not waiter.settled:
            waiter.waiting = anyio.Event()
            # A load by hand takes as long as it takes: what stands still is ended by its own limit.
            with anyio.move_on_after(None if waiter.ticket.slotless else self._limits.max_wait):
                await waiter.waiting.wait()
        if not waiter.settled:
            what = f"waited {self._limits.max_wait:g} s for {waiter.ticket.model_id}; queue.max_wait allows no more"
            held_up = f". {waiter.why}" if waiter.why else ""
            self._refusing.refuse(waiter, Denial("queue_timeout", what + held_up, retry_after=30.0))
        if waiter.error is not None:
            raise waiter.error

    def _enqueue(self, request: LeaseRequest, *, slotless: bool = False) -> Waiter:
        now = self._clock.monotonic()
        ticket = request.ticket(next(self._numbers), now, slotless=slotless)
        waiter = Waiter(ticket, request)
        waiting = (other.ticket for book in self._books.values() for other in book.queue)
        denial = DRAINING if self._draining else refuse_new(waiting, ticket, self._limits)
        if denial is not None:
            self._refusing.refuse(waiter, denial)
            return waiter
        book = self._book(request.model)
        book.keep_alive = keep_alive_of(request.keep_alive, request.model.keep_alive, pinned=book.pinned)
        book.demand.count(now)
        free: tuple[int | None, ...] = ()
        if book.instance.accepting and not book.queue and not request.working:
            free = (None,) if slotless else book.free_slots(1)
        if free:
            # Nothing that others wait for changes by this grant.
            self._grant(Grant(ticket, free[0], book.service), waiter, book)
            return waiter
        book.queue.append(waiter)
        if len(book.queue) == 1 or not book.is_full:  # else it waits for a slot, as those before it do
            self.pump()
        if not waiter.settled:
            position = book.queue.index(waiter) + 1
            self._bus.publish(RequestQueued(request.request_id, ticket.model_id, request.caller, position))
        return waiter

    def _book(self, entry: ModelEntry) -> Book:
        known = self._books.get(entry.id)
        if known is None:
            keep_alive = keep_alive_of(None, entry.keep_alive, pinned=entry.pinned)
            instance = self._fleet.instance(entry)
            instance.use(entry)
            known = Book(instance, keep_alive, self._clock.monotonic(), entry.pinned)
            self._books[entry.id] = known
        return known

    def _decide(self) -> None:
        """Admission over everything, and its effects."""
        if any(book.queue for book in self._books.values()) or self.memory.over_commits():
            self._apply(admit(self.world()))
        else:
            self._lookout.pump_at(None)

    def _decide_in(self, seconds: float) -> None:
        self._lookout.pump_at(self._clock.monotonic() + seconds)

    def world(self) -> World:
        """What is decided on, as it is now."""
        now, ledger = self._clock.monotonic(), self.memory.ledger
        # A model that nobody waits for and that holds nothing has no part in any decision.
        concerned = {name: book for name, book in self._books.items() if book.queue or book.holds(ledger)}
        return World(
            now=now,
            queues={name: [waiter.ticket for waiter in book.queue] for name, book in concerned.items()},
            models={name: book.view(ledger, now) for name, book in concerned.items()},
            ledger=ledger,
            fair=self._accounts.state,
            policy=self._policy,
        )

    def _apply(self, decision: Decision) -> None:
        for ticket, denial in decision.denials:
            book = self._books[ticket.model_id]
            waiter = book.waiter_of(ticket)
            book.queue.remove(waiter)
            cause = book.thought.cause if book.thought is not None and book.instance.can_start else None
            self._refusing.refuse(waiter, denial, cause or book.instance.failure)
        for grant in decision.grants:
            book = self._books[grant.ticket.model_id]
            waiter = book.waiter_of(grant.ticket)
            book.queue.remove(waiter)
            self._grant(grant, waiter, book)
        for eviction in decision.evictions:
            self.evict(eviction)
        for start in decision.starts:
            self._start(start)
        for model in decision.think:
            self._starting.begin(self._books[model], self._tasks, self.pump)
        for wait in decision.waits:
            waiter = self._books[wait.ticket.model_id].waiter_of(wait.ticket)
            if waiter.why != wait.why:
                waiter.why = wait.why
                self._bus.publish(RequestWaits(wait.ticket.request_id, wait.ticket.model_id, wait.why))
        self._lookout.pump_at(decision.next_look)

    def _start(self, start: Start) -> None:
        """Reserve, and want it, in one step."""
        book = self._books[start.model]
        thought = book.thought
        if thought is None:
            raise AssertionError("a start was thought about")
        self.memory.reserve(book.instance.id, start.model, start.claims, thought.prospect.serial_pools)
        book.plan = thought.conceded if start.conceded else thought.best
        if book.queue:
            book.queue[0].load_owner = True
        if not book.instance.want() and not book.instance.is_wanted:
            book.plan = None
            self.memory.release(book.instance.id)

    def evict(self, eviction: Evict) -> None:
        """Stop an engine for its memory, and tell."""
        book = self._books[eviction.model]
        self._bus.publish(
            Evicted(book.instance.id, eviction.model, eviction.beneficiary, eviction.why, drained=eviction.drain)
        )
        why = f"evicted: {eviction.why}"
        if eviction.drain:
            self._retiring.begin(book, why, None)
        else:
            book.instance.request_stop(why)

    def _grant(self, grant: Grant, waiter: Waiter, book: Book) -> None:
        instance, ticket = book.instance, waiter.ticket
        if grant.slot is None:
            waiter.loaded = True
            waiter.settle()
            self._touch(book)
            return
        waited = self._clock.monotonic() - ticket.since
        load = instance.load_overlap(ticket.since)
        times = (max(0.0, waited - load), load)
        launch = instance.current_launch()
        slot = waiter.request.slot_of(launch, book.free_slots(instance.slots))
        lease = Lease(waiter.request, launch, slot, waited=times, load_owner=waiter.load_owner)
        self._accounts.charge(waiter, grant.estimate)
        book.leases[slot] = waiter.lease = lease
        self.memory.work(instance.id, slot, waiter.request.working)
        waiter.settle()
        self._bus.publish(RequestLeased(ticket.request_id, ticket.model_id, instance.id, slot, *times))

    def _leave(self, waiter: Waiter) -> None:
        """The request is over, in whatever phase: nothing of it stays behind."""
        book = self._books.get(waiter.ticket.model_id)
        if book is None:
            return
        if waiter in book.queue:
            book.queue.remove(waiter)
            book.stop_if_nobody_waits()
            self._touch(book)
            self.pump()
        lease = waiter.lease
        if lease is None:
            return
        self._accounts.settle(waiter, book)
        if lease.broken:
            return
        if lease.abandoned and self._tasks is not None:
            self._tasks.start_soon(contained, self._bus, f"slot of {book.instance.id}", self._settle(lease, book))
        else:
            self._free(lease, book)

    def _free(self, lease: Lease, book: Book) -> None:
        if book.leases.get(lease.slot) is lease:
            del book.leases[lease.slot]
            self.memory.work(book.instance.id, lease.slot, {})
            self._touch(book)
            self.pump()

    def _touch(self, book: Book) -> None:
        """Its use has just changed: its idle time starts anew."""
        self._lookout.touch(book)
        if book.retiring is not None and not book.leases:
            self._retiring.end(book)

    async def _settle(self, lease: Lease, book: Book) -> None:
        """Free an abandoned lease once the engine's slot is seen idle, or its launch is gone."""

        def others_running() -> int:
            return sum(1 for other in book.leases.values() if not other.abandoned and not other.engine_done)

        adapter = self._fleet.adapter(lease.request.model)
        await wait_until_idle(lease, adapter, others_running, self._bus)
        self._free(lease, book)

    async def _see_back(self, book: Book) -> None:
        """Promise an ended launch's memory again once it is seen back, or after a bound."""
        self.memory.is_back(book.instance.id, await self._starting.seen_back(book, book.instance.entry))
        self.pump()
