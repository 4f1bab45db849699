"""What would become of a request that came now: admission is asked, and nothing is done. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from supervisor.broker.admission import Decision, ModelView, Phase, Prospect, World, admit
from supervisor.broker.ledger import Entry, Ledger
from supervisor.broker.tickets import Ticket


class Verdict(StrEnum):
    """What it would meet."""

    READY = "ready"
    """A free slot."""
    SLOT = "slot"
    """The engine runs, and a slot must become free."""
    STARTS = "starts"
    EVICTS = "evicts"
    """Idle engines go for it."""
    WAITS = "waits"
    """For a load, or for engines in use."""
    CONCEDES = "concedes"
    """It starts with a smaller plan than wished."""
    NEVER = "never"
    """It would be refused."""


@dataclass(frozen=True, slots=True)
class Times:
    """Seconds, None where not known.

    Attributes:
        load: what the model's last load took.
        slot: until a place at the end of its queue is likely to be served.
    """

    load: float | None = None
    slot: float | None = None


@dataclass(frozen=True, slots=True)
class Forecast:
    """The answer, with its numbers in bytes by pool.

    Attributes:
        needed: None: not known before it has declared.
        free: beside the others; None: no budget is known.
        would_evict: models of idle engines that would go at once.
        would_drain: models of engines that would be asked to end for it, if the wait lasts.
        expected_wait: seconds.
    """

    verdict: Verdict
    why: str | None
    needed: Mapping[str, int | None]
    free: Mapping[str, int | None]
    would_evict: tuple[str, ...] = ()
    would_drain: tuple[str, ...] = ()
    expected_wait: float | None = None

    def document(self) -> dict[str, Any]:
        """As ``/admin/v1/plan`` shows it."""
        wait = self.expected_wait
        return {
            "verdict": self.verdict.value,
            "why": self.why,
            "needed": dict(self.needed),
            "free": dict(self.free),
            "would_evict": list(self.would_evict),
            "would_drain": list(self.would_drain),
            "expected_wait_seconds": None if wait is None else round(wait, 1),
        }


def forecast(world: World, model: str, prospect: Prospect, times: Times) -> Forecast:
    """What a request for the model would meet.

    Args:
        world: as it is now, with budgets that were just read.
        model: its id.
        prospect: what a start of it takes, worked out now.
        times: what is known of its waits.
    """
    known = world.models.get(model, ModelView(model, model, Phase.RESTING))
    view = replace(known, prospect=prospect, stale=False)
    if view.phase is Phase.READY and not view.free_slots and not world.queues.get(model):
        # ``free_slots`` is only as long as the queue that it is made for.
        view = replace(view, free_slots=(0,) if times.slot == 0.0 else ())
    numbers = [ticket.number for queue in world.queues.values() for ticket in queue]
    ticket = Ticket(max(numbers, default=0) + 1, "what if", "", model, "interactive", world.now)
    decision = _ask(world, view, ticket)
    evict = tuple(e.model for e in decision.evictions if e.beneficiary == model and not e.drain)
    drain: tuple[str, ...] = ()
    verdict, why = _verdict(decision, view, ticket, evict)
    if verdict is Verdict.WAITS and view.phase is Phase.RESTING:
        patient = _ask(world, view, replace(ticket, since=-math.inf))
        drain = tuple(e.model for e in patient.evictions if e.beneficiary == model)
    beside = world.ledger.release(view.instance)
    return Forecast(
        verdict,
        why,
        _needed(beside, view, prospect),
        {pool: beside.free(pool) for pool in prospect.claims},
        evict,
        drain,
        _wait(verdict, times, (world.policy.swap_after if drain else 0.0) + _saving(world, (*evict, *drain))),
    )


def _ask(world: World, view: ModelView, ticket: Ticket) -> Decision:
    queues = {**world.queues, view.model: [*world.queues.get(view.model, ()), ticket]}
    return admit(replace(world, queues=queues, models={**world.models, view.model: view}))


def _verdict(decision: Decision, view: ModelView, ticket: Ticket, evict: tuple[str, ...]) -> tuple[Verdict, str | None]:
    denied = next((denial.why for refused, denial in decision.denials if refused == ticket), None)
    why = next((wait.why for wait in decision.waits if wait.ticket.model_id == view.model), None)
    start = next((start for start in decision.starts if start.model == view.model), None)
    if denied is not None:
        return Verdict.NEVER, denied
    if any(grant.ticket == ticket for grant in decision.grants):
        return Verdict.READY, None
    if view.phase is Phase.READY:
        return Verdict.SLOT, why
    if start is not None:
        return (Verdict.CONCEDES if start.conceded else Verdict.STARTS), why
    return (Verdict.EVICTS if evict else Verdict.WAITS), why


def _needed(beside: Ledger, view: ModelView, prospect: Prospect) -> dict[str, int | None]:
    """Beside what the others hold: files that they map already cost nothing."""
    entry = Entry(f"{view.instance} (what if)", view.model, prospect.claims)
    added = replace(beside, entries={**beside.entries, entry.instance: entry})
    return {
        pool: None if claim.anonymous is None else added.reserved(pool) - beside.reserved(pool)
        for pool, claim in prospect.claims.items()
    }


def _saving(world: World, models: Iterable[str]) -> float:
    """Seconds until the conversations of those who go are saved; they stop side by side."""
    residents = (world.models[model].resident for model in models)
    return max((resident.saving for resident in residents if resident is not None), default=0.0)


def _wait(verdict: Verdict, times: Times, swap: float) -> float | None:
    if verdict is Verdict.NEVER:
        return None
    if verdict is Verdict.READY:
        return 0.0
    if verdict is Verdict.SLOT:
        return times.slot
    return None if times.load is None else times.load + swap
