"""What must hold after every step of a simulated broker; a break of it ends the simulation."""

from __future__ import annotations

from collections.abc import Iterable

from bench.simulation.engines import EngineWorld, SimulatedFleet, SimulatedInstance
from bench.simulation.planner import SimulatedPlanner
from supervisor.broker.admission import SHED_BEYOND
from supervisor.broker.broker import Broker
from supervisor.broker.ledger import Stage
from supervisor.events import EventBus, InternalError, Record, RequestLeased
from supervisor.instances.lifecycle import InstanceState
from supervisor.memory_events import Evicted, MemoryReserved

# Timers of one moment fire one after the other.
_MOMENT = 0.01


class BrokenInvariantError(AssertionError):
    """One does not hold."""


def must(holds: bool, what: str) -> None:
    """It must, or the simulation ends here.

    Raises:
        BrokenInvariantError: it does not.
    """
    if not holds:
        raise BrokenInvariantError(what)


class Invariants:
    """Listens to a broker and looks at it once for every turn of the loop in which something happened.

    Attributes:
        events: how many there were.
        checks: how many looks.
        alive: request ids of those who are waiting or served, kept by the callers.
        broken: the first break.
        over: the simulation has ended: what happens from now on is its taking apart.
        touched: when each model was last used, or later; ``max_wait`` and ``min_idle`` are the broker's.
    """

    def __init__(
        self, broker: Broker, fleet: SimulatedFleet, planner: SimulatedPlanner, world: EngineWorld, bus: EventBus
    ) -> None:
        self.events = self.checks = self.swaps = 0
        self.alive: set[str] = set()
        self.broken: BaseException | None = None
        self.over = False
        self.max_wait = 0.0
        self.min_idle = 0.0
        self.touched: dict[str, float] = {}
        self._waited_for: set[str] = set()
        self._broker = broker
        self._fleet = fleet
        self._planner = planner
        self._world = world
        self._seen = 0
        world.asked_to_stop, world.changed, world.launched = self._stops, self._changed, self._launched
        bus.listen(self._heard)

    def each_turn(self) -> None:
        """Look, if there is something new."""
        if self.events == self._seen or self.broken is not None or self.over:
            return
        self._seen = self.events
        self.checks += 1
        try:
            self._look()
        except BrokenInvariantError as error:
            self.broken = BrokenInvariantError(f"{error}, at {self._world.now():.3f} s")

    def note(self, holds: bool, what: str) -> None:
        """Like ``must``, for those whose exceptions would be taken for something else."""
        if not holds and self.broken is None and not self.over:
            self.broken = BrokenInvariantError(f"{what}, at {self._world.now():.3f} s")

    def _heard(self, record: Record) -> None:
        self.events += not self.over
        event = record.event
        if isinstance(event, InternalError):
            self.note(False, f"a fault was contained: {event.where}: {event.error}")  # noqa: FBT003  it never holds
        elif isinstance(event, MemoryReserved):
            ledger = self._broker.memory.ledger
            budget = ledger.pools[event.pool].budget
            reserved = ledger.reserved(event.pool)
            self.note(budget is None or reserved <= budget, f"1: {event.model} admitted: {reserved} of {budget}")
        elif isinstance(event, RequestLeased):
            instance = self._fleet.instances[event.model]
            self.note(instance.accepting, f"2: leased on {event.model}, which is {instance.state}")
            self.note(event.slot < instance.slots, f"2: slot {event.slot} of {event.model} does not exist")
            self.note(instance.busy < instance.slots, f"3: leased on {event.model}, whose slots all work")
            self.note(event.request_id in self.alive, f"3: {event.request_id} has left and is leased")
        elif isinstance(event, Evicted):
            self.swaps += 1
            instance = self._fleet.instances[event.model]
            self.note(not instance.spec.pinned, f"{event.model} is pinned and evicted")
            if not event.drained:
                self._unused(instance, "2: evicted")

    def _unused(self, instance: SimulatedInstance, what: str) -> None:
        leases = [lease.request.request_id for lease in self._broker.leases_on(instance.model_id)]
        self.note(not leases, f"{what} {instance.model_id} while it serves {leases}")
        self.note(instance.busy == 0, f"{what} {instance.model_id} while it generates")

    def _stops(self, instance: SimulatedInstance, reason: str) -> None:
        self.events += not self.over
        if reason.startswith(("evicted", "idle", "nobody waits")):
            self._unused(instance, f"2: stopped ({reason})")

    def _changed(self, instance: SimulatedInstance) -> None:
        self.events += not self.over
        self.touched[instance.model_id] = self._world.now()
        if not instance.is_ready:
            leases = self._broker.leases_on(instance.model_id)
            self.note(not leases, f"2: {instance.model_id} is {instance.state} with {len(leases)} leases")

    def _launched(self, instance: SimulatedInstance) -> None:
        """A process begins to take memory: with what others have promised it must be there."""
        ledger, pool = self._broker.memory.ledger, self._world.pool
        self.note(instance.id in ledger.entries, f"{instance.model_id} is launched without a reservation")
        lagging = sum(one.lagging for one in self._fleet.instances.values())
        predicted = [e.claims[pool].predicted or 0 for e in ledger.entries.values() if e.stage is not Stage.RELEASING]
        whole = self._planner.whole
        self.note(
            sum(predicted) + lagging <= whole,
            f"{instance.model_id} is launched while {lagging} are not back: {predicted} of {whole}",
        )

    def _look(self) -> None:
        now, ledger = self._world.now(), self._broker.memory.ledger
        waiting = set()
        longest = now - self.max_wait - _MOMENT
        for book in self._broker.books.values():
            for waiter in book.queue:
                ticket = waiter.ticket
                waiting.add(ticket.model_id)
                if ticket.request_id not in self.alive:
                    raise BrokenInvariantError(f"3: {ticket.request_id} has left and is queued")
                # A load by hand has no bound.
                if ticket.since < longest and not ticket.slotless:
                    raise BrokenInvariantError(f"5: {ticket.request_id} waits for too long")
        for instance in self._fleet.instances.values():
            self._look_at(instance, instance.model_id in waiting, ledger.entries.get(instance.id))
        self._waited_for = waiting
        self._over_commits(now)

    def _look_at(self, instance: SimulatedInstance, wanted: bool, entry: object) -> None:
        name, state = instance.model_id, instance.state
        leases = self._broker.leases_on(name)
        must(not leases or instance.is_ready, f"2: leases on {name}, which is {state}")
        if leases or wanted:
            self.touched[name] = max(self._world.now(), self.touched.get(name, 0.0))
        must(
            len(leases) <= instance.slots or not leases, f"2: {len(leases)} leases on {instance.slots} slots of {name}"
        )
        for lease in leases:
            id_ = lease.request.request_id
            must(lease.abandoned or id_ in self.alive, f"3: {id_} has left and holds a lease of {name}")
        idle_slots = instance.accepting and len(leases) < instance.slots
        must(not (wanted and idle_slots), f"5: somebody waits for {name}, which has a free slot")
        stage = getattr(entry, "stage", None)
        if entry is None:
            must(instance.at_rest, f"1: {name} is {state} and nothing is reserved for it")
        elif stage is not Stage.RELEASING and state in {InstanceState.STOPPED, InstanceState.FAILED}:
            must(instance.is_wanted, f"3: {name} is {state}, unwanted, and holds memory")

    def _over_commits(self, now: float) -> None:
        ledger = self._broker.memory.ledger
        going = [i.id for i in self._fleet.instances.values() if not i.accepting and not i.is_starting]
        for over in self._broker.memory.over_commits():
            if (ledger.free(over.pool, going) or 0) >= -over.budget // SHED_BEYOND:
                continue
            for row in self._idle():
                long = now - row[1] > self.min_idle + _MOMENT
                must(not long, f"1: {over.pool} is over-committed by {over.by} and {row[0]} idles since {row[1]:.1f}")

    def _idle(self) -> Iterable[tuple[str, float]]:
        """Engines that could go, and since when."""
        for name, instance in self._fleet.instances.items():
            free = instance.accepting and not instance.spec.pinned and not self._broker.leases_on(name)
            if free and name not in self._waited_for:
                yield name, self.touched.get(name, 0.0)
