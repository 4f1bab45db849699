"""From a request's events to what can be said of it: a document, and its story in sentences. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, TypeVar

from supervisor.event_bus import Event
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
from supervisor.units import format_duration

Kept = tuple[float, Event]
"""Wall time and event."""
E = TypeVar("E", bound=Event)


@dataclass(frozen=True, slots=True)
class Story:
    """What is known of one request.

    Attributes:
        events: its own, oldest first; at least one.
        happenings: of its model: plans, launches, exits, evictions, oldest first.
        now: wall time.
    """

    request_id: str
    events: Sequence[Kept]
    happenings: Sequence[Kept]
    now: float

    @property
    def came(self) -> float:
        """When the request came, in wall time."""
        at, event = self.events[0]
        for when, later in self.events:
            if isinstance(later, RequestFinished):
                return min(at, when - later.seconds)
        if isinstance(event, RequestLeased):
            return at - event.queue_seconds - event.load_seconds
        return at - event.waited_seconds if isinstance(event, RequestDenied) else at

    @property
    def ended(self) -> float:
        """When it ended, or now."""
        return next((at for at, event in self.events if isinstance(event, RequestFinished)), self.now)

    def own(self, kind: type[E]) -> list[tuple[float, E]]:
        """Its events of a kind."""
        return [(at, event) for at, event in self.events if isinstance(event, kind)]

    def around(self, kind: type[E]) -> list[tuple[float, E]]:
        """Its model's events of a kind."""
        return [(at, event) for at, event in self.happenings if isinstance(event, kind)]


def tell(story: Story) -> dict[str, Any]:
    """The document of ``GET /admin/v1/requests/{id}``; all ``after_seconds`` are counted from when it came."""
    leases, denials, ends = story.own(RequestLeased), story.own(RequestDenied), story.own(RequestFinished)
    facts = {
        "request_id": story.request_id,
        "model": _first(story, "model"),
        "caller": _first(story, "caller"),
        "came_at": datetime.fromtimestamp(story.came, UTC).isoformat(timespec="milliseconds"),
        "state": "finished" if ends else "denied" if denials else "leased" if leases else "waiting",
        "queued": [_row(story, at, position=event.position) for at, event in story.own(RequestQueued)],
        "waited_for": [_row(story, at, why=event.why) for at, event in story.own(RequestWaits)],
        "evicted": [
            _row(story, at, model=event.model, instance=event.instance, drained=event.drained, why=event.why)
            for at, event in _evicted_for(story)
        ],
        "load": _load(story),
        "leases": [
            _row(
                story,
                at,
                instance=event.instance,
                slot=event.slot,
                queue_seconds=round(event.queue_seconds, 3),
                load_seconds=round(event.load_seconds, 3),
            )
            for at, event in leases
        ],
        "replayed": len(leases) > 1,
        "degraded": _degraded(story),
        "engine_exits": [
            _row(story, at, launch=event.launch, kind=event.kind, blames=event.blames, why=event.why)
            for at, event in story.around(LaunchExited)
            if leases and leases[0][0] <= at <= story.ended and not event.planned
        ],
        "denied": next((_row(story, at, code=event.code, why=event.why) for at, event in denials), None),
        "ended": next((_end(story, at, event) for at, event in ends), None),
    }
    return {**facts, "story": sorted(_sentences(facts), key=lambda line: line["after_seconds"])}


def _row(story: Story, at: float, **facts: Any) -> dict[str, Any]:
    return {"after_seconds": round(at - story.came, 3), **facts}


def _first(story: Story, name: str) -> str | None:
    found = (getattr(event, name, None) for _, event in story.events)
    return next((str(value) for value in found if value), None)


def _evicted_for(story: Story) -> list[tuple[float, Evicted]]:
    """Who went for its model while it waited."""
    leases = story.own(RequestLeased)
    until = leases[0][0] if leases else story.ended
    model = _first(story, "model")
    return [(at, e) for at, e in story.around(Evicted) if story.came <= at <= until and e.beneficiary == model]


def _load(story: Story) -> dict[str, Any] | None:
    """The load that it waited for; None: the model was ready, or none has begun."""
    leases = story.own(RequestLeased)
    until = leases[-1][0] if leases else story.ended
    if leases and all(event.load_seconds <= 0 for _, event in leases):
        return None
    starts = [(at, event) for at, event in story.around(LaunchStarted) if at <= until]
    waited = bool(leases) or bool(story.own(RequestQueued))
    if not starts or not waited:
        return None
    at, start = starts[-1]
    ready = next((event for _, event in story.around(LaunchReady) if event.launch == start.launch), None)
    exit_ = next((event for _, event in story.around(LaunchExited) if event.launch == start.launch), None)
    if at < story.came and ready is None and exit_ is not None:
        return None  # ended before it came
    plan = _plan(story, at)
    return _row(
        story,
        at,
        launch=start.launch,
        instance=start.instance,
        build=plan.build if plan else None,
        begun_before=at < story.came,
        seconds=round(ready.seconds, 3) if ready else None,
        failed=exit_.why if exit_ is not None and ready is None else None,
        reasons=[{"choice": c, "value": value, "reason": why} for c, value, why in plan.choices] if plan else [],
    )


def _plan(story: Story, at: float) -> PlanMade | None:
    """The last plan that was made for its model up to a moment."""
    return next((plan for made, plan in reversed(story.around(PlanMade)) if made <= at), None)


def _degraded(story: Story) -> list[str] | None:
    """What the plan that served it gave up; None: not known, since nothing served it or its plan is forgotten."""
    leases = story.own(RequestLeased)
    plan = _plan(story, leases[-1][0]) if leases else None
    return None if plan is None else list(plan.degraded)


def _end(story: Story, at: float, event: RequestFinished) -> dict[str, Any]:
    first = event.first_byte_seconds
    return _row(
        story,
        at,
        status=event.status,
        outcome=event.outcome,
        seconds=round(event.seconds, 3),
        first_byte_seconds=None if first is None else round(first, 3),
        method=event.method,
        path=event.path,
    )


def _sentences(facts: dict[str, Any]) -> list[dict[str, Any]]:
    """The story for people, each line with its moment."""
    lines = [(row, f"queued at position {row['position']}") for row in facts["queued"]]
    lines += [(row, f"waits: {row['why']}") for row in facts["waited_for"]]
    for row in facts["evicted"]:
        how = "is drained for it, then stopped" if row["drained"] else "was idle, and is stopped for it"
        lines.append((row, f"{row['model']} {how}: {row['why']}"))
    if facts["load"]:
        lines.append((facts["load"], _load_sentence(facts["load"])))
    for number, row in enumerate(facts["leases"]):
        again = "replayed: " if number else ""
        waits = f"{format_duration(row['queue_seconds'])} in the queue, {format_duration(row['load_seconds'])} loading"
        lines.append((row, f"{again}gets slot {row['slot']} of {row['instance']} after {waits}"))
    for row in facts["engine_exits"]:
        lines.append((row, f"the engine died ({row['kind']}, {row['blames']}): {row['why']}"))
    if facts["denied"]:
        lines.append((facts["denied"], f"refused, {facts['denied']['code']}: {facts['denied']['why']}"))
    if facts["degraded"]:
        lines.append((facts["leases"][-1], f"served by a smaller plan than wished: {', '.join(facts['degraded'])}"))
    if facts["ended"]:
        end = facts["ended"]
        lines.append((end, f"ended with {end['status']} ({end['outcome']}) after {format_duration(end['seconds'])}"))
    return [{"after_seconds": row["after_seconds"], "what": what} for row, what in lines]


def _load_sentence(load: dict[str, Any]) -> str:
    begun = "waits for a load that had begun" if load["begun_before"] else "the model is loaded"
    said = f"{begun}: launch {load['launch']} with build {load['build'] or 'unknown'}"
    if load["failed"]:
        return f"{said}, which failed: {load['failed']}"
    if load["seconds"] is not None:
        said += f", ready after {format_duration(load['seconds'])}"
    short = [f"{row['choice']} {row['value']}" for row in load["reasons"] if row["value"] is not None]
    return said + (f" ({', '.join(short)})" if short else "")
