"""What became of each request of the last hour, kept as the events themselves: words are made when somebody asks."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
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
# About 800 bytes each, of those that were served at once: 8 MB when it is full.
REQUESTS = 10_000
# Of one request; a wait is told anew whenever what it waits for changes.
_EVENTS = 40
# Of one model: plans, launches, exits, evictions. The oldest go first, whatever their age.
_HAPPENINGS = 64


class _Request:
    """A request's records; made by hand, since there is one for each request."""

    __slots__ = ("at", "ended", "id", "records")

    def __init__(self, request_id: str, record: Record) -> None:
        self.id = request_id
        self.at = record.at
        self.records = [record]
        self.ended = False


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
        self._order: deque[_Request] = deque()
        self._models: dict[str, deque[Record]] = {}
        self._rules: dict[type[Event], Callable[[Record, Any], None]] = {
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
        now = self._clock.wall()
        self._forget(now)
        request = self._requests.get(request_id)
        if request is None:
            return None
        happenings = [record for model in _models_of(request) for record in self._models.get(model, ())]
        story = Story(request.id, _kept(request.records), _kept(happenings), now)
        document: dict[str, Any] = self._clean(tell(story))
        return document

    def _hear(self, record: Record) -> None:
        rule = self._rules.get(type(record.event))
        if rule is not None:
            rule(record, record.event)

    def _of_request(self, record: Record, event: RequestQueued | RequestWaits | RequestLeased | RequestDenied) -> None:
        if " " not in event.request_id:  # loads by hand have sentences for ids, and are nobody's requests
            self._note(record, event.request_id)

    def _finished(self, record: Record, event: RequestFinished) -> None:
        if event.model is None and event.status < 400 and event.request_id not in self._requests:  # noqa: PLR2004  HTTP
            return
        self._note(record, event.request_id).ended = True

    def _note(self, record: Record, request_id: str) -> _Request:
        request = self._requests.get(request_id)
        if request is None or request.ended:
            # A client may use an id twice: the later request is the one that is asked for.
            request = self._requests[request_id] = _Request(request_id, record)
            self._order.append(request)
            self._forget(record.at)
            return request
        if len(request.records) >= _EVENTS:
            del request.records[1]
        request.records.append(record)
        return request

    def _of_model(self, record: Record, event: PlanMade | LaunchStarted | LaunchReady | LaunchExited) -> None:
        self._models.setdefault(event.model, deque(maxlen=_HAPPENINGS)).append(record)

    def _evicted(self, record: Record, event: Evicted) -> None:
        for model in {event.model, event.beneficiary} - {None}:
            self._models.setdefault(str(model), deque(maxlen=_HAPPENINGS)).append(record)

    def _forget(self, now: float) -> None:
        """The oldest, in the order in which they came."""
        order = self._order
        while order and (len(order) > self._keep or order[0].at < now - HOUR):
            first = order.popleft()
            if self._requests.get(first.id) is first:
                del self._requests[first.id]


def _kept(records: Sequence[Record]) -> list[Kept]:
    return [(record.at, record.event) for record in records]


def _models_of(request: _Request) -> list[str]:
    return list(dict.fromkeys(model for record in request.records if (model := getattr(record.event, "model", None))))
