"""A request's right to one slot of one ready instance."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import anyio

from supervisor.broker.tickets import Ticket
from supervisor.instances.launch import Launch
from supervisor.models.catalog import ModelEntry

# Of a launch and its free slots: one of them.
Prefers = Callable[[Launch, Sequence[int]], int]


@dataclass(frozen=True, slots=True)
class LeaseRequest:
    """What a request asks of the broker.

    Attributes:
        caller: whose turn it is; the queue shares by it.
        weight: the caller's share against others.
        keep_alive: seconds that the instance stays idle afterwards; None: as the model's config says.
        body: what the engine will be sent, so that a body that crashes engines is known again.
        working: bytes by pool that the request adds to the engine while it runs, such as those of a picture.
        prefers: which of the free slots of a launch it takes; None: the first.
    """

    request_id: str
    caller: str
    model: ModelEntry
    lane: Literal["interactive", "background"] = "interactive"
    weight: float = 1.0
    keep_alive: float | None = None
    body: bytes = field(default=b"", repr=False, compare=False)
    working: Mapping[str, int] = field(default_factory=dict, compare=False, hash=False)
    prefers: Prefers | None = field(default=None, repr=False, compare=False)

    def ticket(self, number: int, now: float, *, slotless: bool) -> Ticket:
        """Its place in the queue, from this monotonic second on."""
        names = (self.request_id, self.caller, self.model.id, self.lane)
        return Ticket(number, *names, now, self.weight, slotless, self.working)

    def slot_of(self, launch: Launch, free: Sequence[int]) -> int:
        """The slot that it takes: always one of those that are free."""
        chosen = free[0] if self.prefers is None or len(free) == 1 else self.prefers(launch, free)
        return chosen if chosen in free else free[0]


class Lease:
    """Held while a request runs; given by ``Broker.lease``.

    Attributes:
        launch: the engine process to talk to.
        slot: index of the slot.
        queue_seconds: waited for a slot.
        load_seconds: waited for the engine to start.
        load_owner: this request made the engine start.
        broken: the instance left READY while the lease was held.
        progress_at: monotonic second at which this request last heard of its engine; None: not yet.
    """

    def __init__(
        self, request: LeaseRequest, launch: Launch, slot: int, *, waited: tuple[float, float], load_owner: bool
    ) -> None:
        self.request = request
        self.launch = launch
        self.slot = slot
        self.queue_seconds, self.load_seconds = waited
        self.load_owner = load_owner
        self.progress_at: float | None = None
        self.abandoned = False
        self.engine_done = False
        self.broken = False
        self._noticed: anyio.Event | None = None  # only for who waits: few ever do

    def break_off(self) -> None:
        """The instance has left READY."""
        self.broken = True
        if self._noticed is not None:
            self._noticed.set()

    async def broke(self, seconds: float) -> bool:
        """Whether it is broken, or becomes so within ``seconds``: a dead engine is noticed a moment after it died."""
        if not self.broken:
            self._noticed = self._noticed or anyio.Event()
            with anyio.move_on_after(seconds):
                await self._noticed.wait()
        return self.broken

    def progress(self, at: float) -> None:
        """The engine was heard of in this request, at this monotonic second."""
        self.progress_at = at
        self.launch.progress_at = at

    def overdue(self, seconds: float) -> None:
        """The engine was not heard of for ``seconds``, all that this request may wait: have it looked at."""
        self.launch.overdue(seconds)

    def done(self) -> None:
        """The engine has said all; the lease goes on while the client reads."""
        self.engine_done = True

    def abandon(self) -> None:
        """Leave before the engine was done: the slot counts as taken until the engine says that it is idle."""
        self.abandoned = True
