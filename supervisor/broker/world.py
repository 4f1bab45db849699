"""What admission decides on, and what it decides: frozen values, read by whoever plans, applies or tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from supervisor.broker.eviction import Resident
from supervisor.broker.fair_queue import FairState
from supervisor.broker.ledger import Claim, Ledger
from supervisor.broker.tickets import Denial, Ticket
from supervisor.config.schema import EvictionConfig

# Nobody knows how long a request of a new model takes; the account is corrected when it ends.
DEFAULT_SERVICE = 1.0


class Phase(StrEnum):
    """What admission may do with an instance."""

    RESTING = "resting"
    STARTING = "starting"
    READY = "ready"
    LEAVING = "leaving"


@dataclass(frozen=True, slots=True)
class Prospect:
    """What a start of the model would take.

    Attributes:
        claims: of the best plan, made for pools that hold nothing of ours; by pool.
        conceded: of the best plan that fitted beside the others when it was made; None: there is none.
        denial: why there is no plan; then the rest says nothing.
        serial_pools: pools in which only one engine may load at a time.
        least: bytes by pool that it needs whatever is mapped already, made of the claims once: most models are only
            glanced at in a decision.
    """

    claims: Mapping[str, Claim] = field(default_factory=dict)
    conceded: Mapping[str, Claim] | None = None
    denial: Denial | None = None
    serial_pools: frozenset[str] = frozenset()
    least: tuple[tuple[str, int], ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        least = tuple((pool, claim.anonymous or 0) for pool, claim in self.claims.items())
        object.__setattr__(self, "least", least)


@dataclass(frozen=True, slots=True)
class ModelView:
    """One model's instance, as admission sees it.

    Attributes:
        phase: READY only while it accepts.
        free_slots: indices not leased, lowest first.
        can_start: starting it makes sense now.
        backing_off: it has failed and makes a pause before the next start; nothing is reserved for it meanwhile.
        failure: why it can't be started, when it can't.
        resident: as eviction sees it; None: it holds no memory.
        prospect: None: not thought about yet.
        stale: the prospect is old: good enough to keep its place by, not to start or refuse by.
        service: seconds of a whole instance that its requests are expected to take.
    """

    model: str
    instance: str
    phase: Phase
    free_slots: tuple[int, ...] = ()
    can_start: bool = True
    backing_off: bool = False
    failure: Denial | None = None
    resident: Resident | None = None
    prospect: Prospect | None = None
    stale: bool = False
    service: float = DEFAULT_SERVICE


@dataclass(frozen=True, slots=True)
class Policy:
    """Seconds and preferences of ``broker.eviction``.

    Attributes:
        min_idle: an engine used less long ago than this is not evicted.
        swap_after: a request that needs the memory of engines in use waits this long; then they are drained.
        concede: a smaller plan that fits now is preferred to waiting for engines in use.
    """

    min_idle: float = 5.0
    swap_after: float = 10.0
    concede: bool = False

    @classmethod
    def of(cls, config: EvictionConfig) -> Policy:
        """The policy that a config sets."""
        return cls(config.min_idle, config.swap_after, config.concede)


@dataclass(frozen=True, slots=True)
class World:
    """Everything that is decided on; queues by model, each in the order of arrival."""

    now: float
    queues: Mapping[str, Sequence[Ticket]]
    models: Mapping[str, ModelView]
    ledger: Ledger = field(default_factory=Ledger)
    fair: FairState = field(default_factory=FairState)
    policy: Policy = field(default_factory=Policy)


@dataclass(frozen=True, slots=True)
class Grant:
    """A lease: the ticket gets the slot, and its caller's account is charged ``estimate``; None: no slot is needed."""

    ticket: Ticket
    slot: int | None
    estimate: float


@dataclass(frozen=True, slots=True)
class Start:
    """A launch to begin, with the claims to reserve in the same step; ``conceded``: with the smaller plan."""

    model: str
    claims: Mapping[str, Claim]
    conceded: bool = False


@dataclass(frozen=True, slots=True)
class Evict:
    """An engine to stop, idle or (``drain``) once its leases have ended; ``beneficiary``: for which model."""

    model: str
    why: str
    drain: bool = False
    beneficiary: str | None = None


@dataclass(frozen=True, slots=True)
class Wait:
    """Why the model's first request is not served yet."""

    ticket: Ticket
    why: str


@dataclass(frozen=True, slots=True)
class Decision:
    """What to do now; ``next_look`` in monotonic seconds: when time alone may change it."""

    grants: tuple[Grant, ...] = ()
    starts: tuple[Start, ...] = ()
    evictions: tuple[Evict, ...] = ()
    denials: tuple[tuple[Ticket, Denial], ...] = ()
    think: tuple[str, ...] = ()
    waits: tuple[Wait, ...] = ()
    next_look: float | None = None
