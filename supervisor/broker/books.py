"""What the broker keeps of each model: who waits, who holds a slot, how often it is asked for, and its plans."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import anyio

from engines.contract import LaunchPlan
from supervisor.broker.admission import DEFAULT_SERVICE, ModelView, Phase, Prospect
from supervisor.broker.eviction import Resident
from supervisor.broker.lease import Lease, LeaseRequest
from supervisor.broker.ledger import Ledger, Stage
from supervisor.broker.ports import BrokeredInstance
from supervisor.broker.tickets import Denial, Ticket
from supervisor.errors import SupervisorError

# Demand is remembered for about so many seconds: a working session, not a day.
DEMAND_SECONDS = 600.0
# Share of the newest lease in what the next one is expected to take.
_NEWEST = 0.2
# A plan is made anew for a start that comes this many seconds later: the machine has changed meanwhile.
PLAN_SECONDS = 15.0


@dataclass(slots=True, eq=False)
class Waiter:
    """A ticket and what became of it.

    Attributes:
        loaded: it only wanted the model to be ready, and it is.
        why: what it was last said to wait for.
        charged: service that its caller was charged for the lease, and ``granted_at``, in monotonic seconds.
    """

    ticket: Ticket
    request: LeaseRequest
    loaded: bool = False
    lease: Lease | None = None
    error: SupervisorError | None = None
    waiting: anyio.Event | None = None  # most never wait
    load_owner: bool = False
    why: str = ""
    charged: float = 0.0
    granted_at: float = 0.0

    @property
    def settled(self) -> bool:
        """Whether it waits no more."""
        return self.loaded or self.lease is not None or self.error is not None

    def settle(self) -> None:
        """It has just been settled: whoever waits for that goes on."""
        if self.waiting is not None:
            self.waiting.set()

    def row(self, position: int, now: float) -> dict[str, Any]:
        """As ``/admin/v1/status`` shows it."""
        return {
            "request_id": self.ticket.request_id,
            "caller": self.ticket.caller,
            "model": self.ticket.model_id,
            "lane": self.ticket.lane,
            "waited_seconds": round(now - self.ticket.since, 3),
            "position": position,
            "why": self.why or None,
        }


@dataclass(frozen=True, slots=True, eq=False)
class Retirement:
    """One wish to stop an instance once its leases have ended; two with the same words are not the same."""

    why: str


@dataclass(slots=True)
class Demand:
    """Requests a second, the older ones fading."""

    rate: float = 0.0
    at: float = 0.0

    def count(self, now: float) -> None:
        """One more request."""
        self.rate = self.at_time(now) + 1 / DEMAND_SECONDS
        self.at = now

    def at_time(self, now: float) -> float:
        """The rate as it has faded until ``now``."""
        return self.rate * math.exp(-max(0.0, now - self.at) / DEMAND_SECONDS)


@dataclass(slots=True)
class Thought:
    """What was worked out for a start; ``cause`` is the error that became its denial."""

    prospect: Prospect
    at: float
    best: LaunchPlan | None = None
    conceded: LaunchPlan | None = None
    cause: SupervisorError | None = None


@dataclass(slots=True)
class Book:
    """One model's page.

    Attributes:
        idle_since: since when nobody has used it, in monotonic seconds.
        retiring: why its instance is to stop once its leases have ended; None: it is not.
        service: seconds of a whole instance that a request is expected to take.
        thought: what its next start would take; None: not worked out.
        thinking: it is being worked out.
        plan: reserved in the ledger, and taken by the launch that begins.
        loaded_by_hand: its load goes on when nobody waits for it.
    """

    instance: BrokeredInstance
    keep_alive: float
    idle_since: float
    pinned: bool = False
    retiring: Retirement | None = None
    queue: list[Waiter] = field(default_factory=list)
    leases: dict[int, Lease] = field(default_factory=dict)
    demand: Demand = field(default_factory=Demand)
    service: float = DEFAULT_SERVICE
    thought: Thought | None = None
    thinking: bool = False
    plan: LaunchPlan | None = None
    loaded_by_hand: bool = False

    @property
    def idle(self) -> bool:
        """Nobody uses it and nobody waits for it."""
        return not self.queue and not self.leases

    @property
    def is_full(self) -> bool:
        """It serves, and has no slot free."""
        return self.instance.accepting and self.retiring is None and len(self.leases) >= self.instance.slots

    def holds(self, ledger: Ledger) -> bool:
        """Whether it has a process, or memory, or what is left of either."""
        return not self.instance.at_rest or self.instance.id in ledger.entries

    def waiter_of(self, ticket: Ticket) -> Waiter:
        """Whose ticket it is; most decisions are about the first."""
        return next(waiter for waiter in self.queue if waiter.ticket.number == ticket.number)

    def stop_if_nobody_waits(self) -> None:
        """The last one who waited for a load has left: the memory is for others, unless it is loaded by hand."""
        if not self.queue and self.starting and not self.loaded_by_hand:
            self.instance.request_stop("nobody waits for it any more")

    @property
    def starting(self) -> bool:
        """A launch has begun, or will when the delay after the last one's end is over; it is not ready yet."""
        return self.instance.is_starting or (self.instance.at_rest and self.instance.is_wanted)

    @property
    def leaving(self) -> bool:
        """Its engine is to end, or is at it."""
        instance = self.instance
        ends = not (instance.accepting or instance.at_rest or instance.is_starting)
        return ends or self.retiring is not None

    def learn_service(self, seconds: float) -> None:
        """A lease took ``seconds`` of a whole instance."""
        self.service += _NEWEST * (seconds - self.service)

    def free_slots(self, wanted: int) -> tuple[int, ...]:
        """Up to ``wanted`` indices that are not leased, lowest first."""
        return tuple(islice((slot for slot in range(self.instance.slots) if slot not in self.leases), wanted))

    def view(self, ledger: Ledger, now: float) -> ModelView:
        """As admission sees it."""
        instance = self.instance
        phase = self._phase(ledger)
        thought = self.thought
        return ModelView(
            model=instance.model_id,
            instance=instance.id,
            phase=phase,
            free_slots=self.free_slots(len(self.queue)) if phase is Phase.READY else (),
            can_start=instance.can_start,
            backing_off=instance.backing_off,
            failure=None if instance.failure is None else why_failed(instance),
            resident=self._resident(ledger, now),
            prospect=None if thought is None else thought.prospect,
            stale=thought is not None and now - thought.at >= PLAN_SECONDS,
            service=self.service,
        )

    def _phase(self, ledger: Ledger) -> Phase:
        instance = self.instance
        if instance.accepting:
            return Phase.READY
        entry = ledger.entries.get(instance.id)
        if instance.at_rest:
            if entry is None:
                return Phase.RESTING
            # A start that is reserved has begun, though its instance has not moved yet; and what has ended is not gone
            # before its memory is back.
            return Phase.LEAVING if entry.stage is Stage.RELEASING else Phase.STARTING
        return Phase.STARTING if instance.is_starting and self.retiring is None else Phase.LEAVING

    def _resident(self, ledger: Ledger, now: float) -> Resident | None:
        instance = self.instance
        if instance.id not in ledger.entries:
            return None
        launch = instance.current_launch() if self.idle and instance.is_ready else None
        return Resident(
            instance=instance.id,
            model=instance.model_id,
            idle_since=self.idle_since if self.idle else None,
            pinned=self.pinned,
            demand=self.demand.at_time(now),
            reload=max(0.1, instance.load_seconds),
            rebuild=launch.rebuild if launch is not None else 0.0,
            saving=instance.saving,
        )


def why_failed(instance: BrokeredInstance) -> Denial:
    """The refusal of who waits for an instance that can't be started."""
    failure = instance.failure
    if failure is None:
        return Denial("instance_failed", f"{instance.id} can't be started", instance.retry_after())
    return Denial(failure.code, failure.message, instance.retry_after())
