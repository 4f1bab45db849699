"""Whose turn it is: start-time fair queueing over callers, by weight, with two lanes. Pure.

The unit of service is a lease's seconds times its share of the instance's slots. A caller is charged an estimate when
it is granted a lease, which is corrected when the lease ends. Who was away banks nothing: its virtual start is never
before the present. (Goyal, Vin and Cheng, "Start-time Fair Queuing", SIGCOMM 1996.)
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol, TypeVar

INTERACTIVE, BACKGROUND = "interactive", "background"
# A background request that has waited for this long stands in the interactive lane: nobody starves.
LANE_PATIENCE = 30.0
# Callers whose account lies in the past are as good as new ones: the table is swept when it has grown to this.
_MANY_CALLERS = 1024


class Waiting(Protocol):
    """A ticket, as far as the order needs it; ``since`` in monotonic seconds, ``weight`` above 0."""

    @property
    def number(self) -> int: ...  # noqa: D102  said in the class

    @property
    def caller(self) -> str: ...  # noqa: D102  said in the class

    @property
    def lane(self) -> str: ...  # noqa: D102  said in the class

    @property
    def weight(self) -> float: ...  # noqa: D102  said in the class

    @property
    def since(self) -> float: ...  # noqa: D102  said in the class


T = TypeVar("T", bound=Waiting)


@dataclass(frozen=True, slots=True)
class FairState:
    """Virtual time, and where each caller's account stands; in units of service by weight."""

    now: float = 0.0
    finish: Mapping[str, float] = field(default_factory=dict)

    def start_of(self, caller: str) -> float:
        """The caller's virtual start if it were granted something now."""
        return max(self.now, self.finish.get(caller, 0.0))

    def charge(self, caller: str, weight: float, estimate: float) -> FairState:
        """After a grant to ``caller``; ``estimate`` in seconds of a whole instance."""
        start = self.start_of(caller)
        finish = {**self.finish, caller: start + estimate / weight}
        if len(finish) > _MANY_CALLERS:
            finish = {name: at for name, at in finish.items() if at > start}
        return FairState(max(self.now, start), finish)

    def correct(self, caller: str, weight: float, estimate: float, actual: float) -> FairState:
        """After the lease's end: what it really took instead of the estimate."""
        at = self.finish.get(caller)
        if at is None:
            return self
        return replace(self, finish={**self.finish, caller: max(0.0, at + (actual - estimate) / weight)})


def lane_of(ticket: Waiting, now: float) -> int:
    """0 for who goes first, 1 for who waits behind."""
    return 0 if ticket.lane == INTERACTIVE or now - ticket.since >= LANE_PATIENCE else 1


def in_turn(state: FairState, tickets: Iterable[T], now: float, estimate: float) -> Iterator[T]:
    """The tickets in the order in which they would be granted, computed as far as it is read.

    Args:
        state: accounts as they stand.
        tickets: of any callers, each caller's in the order of arrival.
        now: monotonic seconds.
        estimate: service that each is charged, in seconds of a whole instance.
    """
    queues: dict[tuple[int, str], list[T]] = {}
    for ticket in tickets:
        queues.setdefault((lane_of(ticket, now), ticket.caller), []).append(ticket)
    heap = [(lane, state.start_of(caller), queue[0].number, caller) for (lane, caller), queue in queues.items()]
    heapq.heapify(heap)
    places = dict.fromkeys(queues, 0)
    clock, charged = state.now, dict(state.finish)
    while heap:
        lane, key, number, caller = heapq.heappop(heap)
        start = max(clock, charged.get(caller, 0.0))
        if start > max(key, clock):  # charged since, in its other lane
            heapq.heappush(heap, (lane, start, number, caller))
            continue
        queue, place = queues[lane, caller], places[lane, caller]
        ticket = queue[place]
        clock, charged[caller] = start, start + estimate / ticket.weight
        yield ticket
        places[lane, caller] = place + 1
        if place + 1 < len(queue):
            heapq.heappush(heap, (lane, charged[caller], queue[place + 1].number, caller))


def first_in_turn(state: FairState, tickets: Iterable[T], now: float) -> T:
    """The first one of ``in_turn``, without ordering the rest.

    Args:
        state: accounts as they stand.
        tickets: at least one, in the order of arrival.
        now: monotonic seconds.
    """
    clock, finish = state.now, state.finish
    best: tuple[tuple[int, float, int], T] | None = None
    for ticket in tickets:
        lane, start = lane_of(ticket, now), finish.get(ticket.caller, 0.0)
        if lane == 0 and start <= clock:
            if best is None or best[0][:2] > (0, clock):
                return ticket  # nobody starts before the present, and those behind it came later
            break
        key = (lane, max(clock, start), ticket.number)
        if best is None or key < best[0]:
            best = key, ticket
    if best is None:
        raise ValueError("nobody waits")
    return best[1]


def jain(served: Iterable[float]) -> float:
    """Jain's index of fairness of the shares: 1 when all are equal, 1/n when one has all; 1 of nobody."""
    shares = tuple(served)
    squares = sum(share * share for share in shares)
    return 1.0 if not squares else sum(shares) ** 2 / (len(shares) * squares)
