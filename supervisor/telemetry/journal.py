"""What became of each request of the last hour, kept as the events themselves: words are made when somebody asks."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from supervisor.clock import Clock
from supervisor.event_bus import Event, EventBus, Record
from supervisor.events import (
    LaunchExited,
    LaunchReady,
    LaunchStarted,
    PlanMade,
    RequestDenied,
    RequestFinished,
    RequestLeased,
    RequestQueued,
)
from supervisor.memory_events import Evicted, RequestWaits
from supervisor.telemetry.story import Kept, Story, tell

HOUR = 3600.0
# About 600 bytes each: 6 MB when it is full.
REQUESTS = 10_000
# Of one request; a wait is told anew whenever what it waits for changes.
_EVENTS = 40
# Of one model: plans, launches, exits, evictions. The oldest go first, whatever their age.
_HAPPENINGS = 64


@dataclass(slots=True)
class _Request:
    id: str
    at: float
    events: list[Kept] = field(default_factory=list)
    ended: bool = False


class Journal:
    """Listens to the bus; one dictionary look-up and one append for each event that concerns a request.

    Requests that asked for no model are kept only when they were refused: health checks are none of its business.
    """

    def __init__(
        self, bus: EventBus, clock: Clock, clean: Callable[[Any], Any] = lambda value: value, keep: int = REQUESTS
    ) -> None:
        self._clock = clock
        self._clean = clean
        self._keep = keep
        self._requests: dict[str, _Request] = {}
        self._models: dict[str, deque[Kept]] = {}
        self._rules: dict[type[Event], Callable[[float, Any], None]] = {
            RequestQueued: self._of_request,
            RequestWaits: self._of_request,
            RequestLeased: self._of_request,
            RequestDenied: self._of_request,
            RequestFinished: self._finished,
            PlanMade: self._of_model,
            LaunchStarted: self._of_model,
            LaunchReady: self._of_model,
            LaunchExited: self._of_model,
            Evicted: self._evicted,
        }
        bus.listen(self._hear)

    def __len__(self) -> int:
        return len(self._requests)

    def explain(self, request_id: str) -> dict[str, Any] | None:
        """All that is known of a request, as ``GET /admin/v1/requests/{id}`` says it; None: nothing is."""
        self._forget(self._clock.wall())
        request = self._requests.get(request_id)
        if request is None:
            return None
        happenings = [kept for model in _models_of(request) for kept in self._models.get(model, ())]
        document: dict[str, Any] = self._clean(tell(Story(request.id, request.events, happenings, self._clock.wall())))
        return document

    def _hear(self, record: Record) -> None:
        rule = self._rules.get(type(record.event))
        if rule is not None:
            rule(record.at, record.event)

    def _of_request(self, at: float, event: RequestQueued | RequestWaits | RequestLeased | RequestDenied) -> None:
        if " " not in event.request_id:  # loads by hand have sentences for ids, and are nobody's requests
            self._note(at, event.request_id, event)

    def _finished(self, at: float, event: RequestFinished) -> None:
        if event.model is None and event.status < 400 and event.request_id not in self._requests:  # noqa: PLR2004  HTTP
            return
        self._note(at, event.request_id, event).ended = True

    def _note(self, at: float, request_id: str, event: Event) -> _Request:
        request = self._requests.get(request_id)
        if request is None or request.ended:
            # A client may use an id twice: the later request is the one that is asked for.
            self._requests.pop(request_id, None)
            self._forget(at)
            request = self._requests[request_id] = _Request(request_id, at)
        if len(request.events) >= _EVENTS:
            del request.events[1]
        request.events.append((at, event))
        return request

    def _of_model(self, at: float, event: PlanMade | LaunchStarted | LaunchReady | LaunchExited) -> None:
        self._models.setdefault(event.model, deque(maxlen=_HAPPENINGS)).append((at, event))

    def _evicted(self, at: float, event: Evicted) -> None:
        for model in {event.model, event.beneficiary} - {None}:
            self._models.setdefault(str(model), deque(maxlen=_HAPPENINGS)).append((at, event))

    def _forget(self, now: float) -> None:
        """The oldest, in the order in which they came."""
        while self._requests:
            first = next(iter(self._requests.values()))
            if len(self._requests) < self._keep and first.at >= now - HOUR:
                return
            del self._requests[first.id]


def _models_of(request: _Request) -> list[str]:
    return list(dict.fromkeys(model for _, event in request.events if (model := getattr(event, "model", None))))
