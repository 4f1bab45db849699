"""Who is leased, what is started, who must go for it, who waits and why, and who is refused.

Pure: one frozen picture of the world in, one decision out. A request is leased on a ready instance with a free slot;
else it waits for a slot; else its model is started with the best plan that fits; else idle engines go for it, cheapest
first; else a smaller plan is taken where the owner prefers that to waiting; else it waits, at most until engines in use
are drained for it; and what can never fit is refused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from supervisor.broker.eviction import Resident, choose_victims, evictable, for_pool
from supervisor.broker.explaining import behind_text, busy_text, never_text, pinned_text, room_text
from supervisor.broker.fair_queue import first_in_turn, in_turn
from supervisor.broker.ledger import LOADS_ALONE, Claim
from supervisor.broker.room import Room
from supervisor.broker.tickets import Denial, Ticket
from supervisor.broker.working import find_room, with_working
from supervisor.broker.world import (
    DEFAULT_SERVICE,
    Decision,
    Evict,
    Grant,
    ModelView,
    Phase,
    Policy,
    Prospect,
    Start,
    Wait,
    World,
)
from supervisor.units import format_size

# One import for whoever asks for a decision and applies it.
__all__ = [
    "DEFAULT_SERVICE",
    "Decision",
    "Evict",
    "Grant",
    "ModelView",
    "Phase",
    "Policy",
    "Prospect",
    "Start",
    "Wait",
    "World",
    "admit",
]

# An excess below this part of the budget stops nobody: what others hold goes up and down by as much all the time, and a
# plan may fill the budget to the last step. The reserve stands for it, and newcomers are measured exactly.
SHED_BEYOND = 100
# So many models that need room are thought through at once; those behind them start only if they fit as it is.
_ROOMS_AT_ONCE = 2


def admit(world: World) -> Decision:
    """Decide everything that can be decided on this picture of the world."""
    return _Pass(world).run()


class _Pass:
    """One pass over the picture; keeps what it has decided, so that nothing is promised twice within it."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._fair = world.fair
        gone = {
            view.instance for view in world.models.values() if view.phase is Phase.LEAVING and view.resident is not None
        }
        self._room = Room(world.ledger, gone)
        entries = world.ledger.entries
        self._loading = {
            pool
            for view in world.models.values()
            if view.phase is Phase.STARTING and (entry := entries.get(view.instance)) is not None
            for pool in entry.serial
        }
        self._rooms = 0
        self._alone = False  # a load waits only for the work of others, which gets no more until it is done
        self._grants: list[Grant] = []
        self._starts: list[Start] = []
        self._evictions: list[Evict] = []
        self._denials: list[tuple[Ticket, Denial]] = []
        self._think: list[str] = []
        self._waits: list[Wait] = []
        self._looks: list[float] = []

    def run(self) -> Decision:
        shared: list[tuple[ModelView, Sequence[Ticket]]] = []
        for model, queue in self._world.queues.items():
            view = self._world.models[model]
            if queue and view.phase is Phase.READY:
                if self._loads_alone(view):
                    shared.append((view, queue))
                else:
                    self._lease(view, queue)
        self._serve_heads()
        for view, queue in shared:
            self._lease_shared(view, queue)
        self._shed()
        return Decision(
            tuple(self._grants),
            tuple(self._starts),
            tuple(self._evictions),
            tuple(self._denials),
            tuple(self._think),
            tuple(self._waits),
            min(self._looks, default=None),
        )

    def _lease(self, view: ModelView, queue: Sequence[Ticket]) -> None:
        """Free slots to whose turn it is."""
        taken = Wait(first_in_turn(self._fair, queue, self._world.now), f"all slots of {view.instance} are taken")
        if not view.free_slots and not any(ticket.slotless for ticket in queue):
            self._waits.append(taken)
            return
        slots = iter(view.free_slots)
        for ticket in in_turn(self._fair, queue, self._world.now, view.service):
            if ticket.slotless:
                self._grants.append(Grant(ticket, None, 0.0))
                continue
            slot = next(slots, None)
            if slot is None:
                self._waits.append(replace(taken, ticket=ticket))
                return
            if ticket.working and not self._may_work(view, ticket, slot):
                return
            self._grants.append(Grant(ticket, slot, view.service))
            self._fair = self._fair.charge(ticket.caller, ticket.weight, view.service)

    def _loads_alone(self, view: ModelView) -> bool:
        entry = self._world.ledger.entries.get(view.instance)
        return entry is not None and LOADS_ALONE in entry.serial

    def _lease_shared(self, view: ModelView, queue: Sequence[Ticket]) -> None:
        """As ``_lease``, unless a load goes on or waits that nothing of this kind may overlap with: it goes first."""
        if LOADS_ALONE in self._loading or self._alone:
            why = f"a load that must be alone {'goes on' if LOADS_ALONE in self._loading else 'comes first'}"
            self._waits.append(Wait(first_in_turn(self._fair, queue, self._world.now), why))
        else:
            self._lease(view, queue)

    def _others_at_work(self, view: ModelView) -> list[str]:
        """Those whose requests a load of this model must not overlap with."""
        return [
            other.instance
            for other in self._world.models.values()
            if other.model != view.model
            and other.resident is not None
            and other.resident.idle_since is None
            and self._loads_alone(other)
        ]

    def _may_work(self, view: ModelView, ticket: Ticket, slot: int) -> bool:
        """Whether its working set fits; if not, idle engines go for it, or it waits, or is refused."""
        residents = self._residents()
        found = find_room(
            self._room, (view.instance, slot, ticket.working), residents, self._world.now, self._world.policy.min_idle
        )
        if found.never:
            self._denials.append((ticket, Denial("does_not_fit", found.why, retry_after=60.0)))
        elif not found.fits:
            models = {r.instance: r.model for r in residents}
            for name in found.gone:
                self._goes(name, Evict(models[name], found.why, beneficiary=view.model))
            self._waits.append(Wait(ticket, found.why))
            self._looks.extend(() if found.look_at is None else (found.look_at,))
        return found.fits

    def _serve_heads(self) -> None:
        """The first of each model that is not ready, in the order of their turns."""
        world, models, firsts = self._world, self._world.models, []
        for model, queue in world.queues.items():
            if queue and models[model].phase is not Phase.READY:
                firsts.append(first_in_turn(self._fair, queue, world.now))
        firsts.sort(key=lambda ticket: ticket.number)
        served = set()
        for ticket in in_turn(self._fair, firsts, world.now, DEFAULT_SERVICE):
            if self._rooms >= _ROOMS_AT_ONCE:
                break
            served.add(ticket.number)
            self._serve_head(models[ticket.model_id], ticket)
        rest = [ticket for ticket in firsts if ticket.number not in served and not self._is_behind(ticket)]
        for ticket in in_turn(self._fair, rest, world.now, DEFAULT_SERVICE):
            self._serve_head(models[ticket.model_id], ticket)

    def _is_behind(self, ticket: Ticket) -> bool:
        """Whether those before it leave it no room: that is said, and whose turn it is among such need not be known.

        What is free only gets less within a pass, so that one glance is enough.
        """
        view = self._world.models[ticket.model_id]
        prospect = view.prospect
        if prospect is None or prospect.denial is not None or view.stale or view.phase is not Phase.RESTING:
            return False
        full = self._room.full_for(prospect.least)
        if (
            full is None
            or view.backing_off
            or not view.can_start
            or not self._loading.isdisjoint(prospect.serial_pools)
        ):
            return False
        self._waits.append(Wait(ticket, behind_text(view.model, full)))
        return True

    def _serve_head(self, view: ModelView, ticket: Ticket) -> None:
        if view.phase is Phase.STARTING:
            self._waits.append(Wait(ticket, f"{view.instance} is loading"))
        elif view.phase is Phase.LEAVING:
            self._waits.append(Wait(ticket, f"{view.instance} is stopping and is started anew"))
        elif view.failure is not None and not view.can_start:
            self._deny(view, view.failure)
        elif view.backing_off:
            self._waits.append(Wait(ticket, f"{view.instance} has failed and is started anew after a pause"))
        elif view.prospect is None or (view.stale and view.prospect.denial is not None):
            self._think.append(view.model)
        elif view.prospect.denial is not None:
            self._deny(view, view.prospect.denial)
        else:
            self._make_room(view, view.prospect, ticket)

    def _make_room(self, view: ModelView, prospect: Prospect, ticket: Ticket) -> None:
        """Start it, or say what it waits for; what is on its way back is kept for it, and room to work."""
        if ticket.working:
            prospect = replace(prospect, claims=with_working(prospect.claims, ticket.working))
        if view.stale:
            self._think.append(view.model)
        if self._loading and (busy := prospect.serial_pools & self._loading):
            self._waits.append(Wait(ticket, f"another engine loads in {', '.join(sorted(busy))}: one at a time"))
            return
        if self._rooms >= _ROOMS_AT_ONCE and (full := self._room.full_for(prospect.least)):
            self._waits.append(Wait(ticket, behind_text(view.model, full)))
            return
        short = self._room.ledger.shortfalls(prospect.claims)
        if not short:
            if LOADS_ALONE in prospect.serial_pools and (at_work := self._others_at_work(view)):
                self._alone = True
                self._waits.append(Wait(ticket, f"its load must be alone, and {', '.join(at_work)} is at work"))
                return
            self._start(view, prospect.claims, prospect, conceded=False)
            return
        if any(lack.never for lack in short):
            self._never(view, prospect)
            return
        self._rooms += 1
        text = room_text(view.model, short, self._room.held_by)
        if not self._room.ledger.shortfalls(prospect.claims, self._room.gone):
            self._keep(view, prospect.claims)
            self._waits.append(Wait(ticket, f"{text}; memory of stopping engines is on its way back"))
        elif not self._evict_idle(view, prospect, ticket, text):
            self._without_idle(view, prospect, ticket, text)

    def _evict_idle(self, view: ModelView, prospect: Prospect, ticket: Ticket, text: str) -> bool:
        now, policy = self._world.now, self._world.policy
        candidates = [r for r in self._residents() if evictable(r, now, policy.min_idle)]
        victims = choose_victims(self._room.staying(), prospect.claims, candidates)
        if victims is None:
            return False
        models = {r.instance: r.model for r in candidates}
        for name in victims.instances:
            self._goes(name, Evict(models[name], text, beneficiary=view.model))
        self._keep(view, prospect.claims)
        leaving = ", ".join(models[name] for name in victims.instances)
        self._waits.append(Wait(ticket, f"{text}; {leaving} goes for it" if leaving else text))
        return True

    def _without_idle(self, view: ModelView, prospect: Prospect, ticket: Ticket, text: str) -> None:
        """Idle engines are not enough: concede, wait, drain, or refuse."""
        now, policy = self._world.now, self._world.policy
        movable = [r for r in self._residents() if not r.pinned]
        victims = choose_victims(self._room.staying(), prospect.claims, movable)
        smaller = prospect.conceded
        fits = smaller is not None and not self._room.ledger.shortfalls(smaller)
        hopeless = victims is None and self._room.never(prospect.claims, self._pinned())
        if smaller is not None and fits and (hopeless or policy.concede):
            self._start(view, smaller, prospect, conceded=True)
            return
        if hopeless:
            self._refuse(view, Denial("no_room", pinned_text(view.model, text, self._residents()), retry_after=60.0))
            return
        if victims is None:
            self._waits.append(Wait(ticket, f"{text}; what loads, or is to be loaded before it, takes the room"))
            return
        models = {r.instance: r for r in movable}
        named = [models[name] for name in victims.instances]
        idle_at = [r.idle_since + policy.min_idle for r in named if r.idle_since is not None]
        drain_at = ticket.since + policy.swap_after
        if now >= drain_at:
            for resident in named:
                self._goes(resident.instance, Evict(resident.model, text, drain=True, beneficiary=view.model))
            self._keep(view, prospect.claims)
        else:
            self._looks.append(min([drain_at, *(at for at in idle_at if at > now)]))
        self._waits.append(Wait(ticket, busy_text(text, named, drained=now >= drain_at)))

    def _never(self, view: ModelView, prospect: Prospect) -> None:
        """The plan was made for a larger budget: a smaller one, or thought anew, is for the next look."""
        smaller = prospect.conceded
        if smaller is not None and not self._room.ledger.shortfalls(smaller):
            self._start(view, smaller, prospect, conceded=True)
        else:
            short = self._room.ledger.shortfalls(prospect.claims)
            self._refuse(view, Denial("does_not_fit", never_text(view.model, short), retry_after=60.0))

    def _start(self, view: ModelView, claims: Mapping[str, Claim], prospect: Prospect, *, conceded: bool) -> None:
        if not view.stale:
            own = view.prospect.claims if view.prospect is not None and not conceded else claims
            self._starts.append(Start(view.model, own, conceded))
            self._loading |= prospect.serial_pools
        self._keep(view, claims)

    def _keep(self, view: ModelView, claims: Mapping[str, Claim]) -> None:
        self._room.keep(view.instance, view.model, claims)

    def _goes(self, instance: str, eviction: Evict) -> None:
        self._evictions.append(eviction)
        self._room.goes(instance)

    def _pinned(self) -> list[str]:
        return [v.instance for v in self._world.models.values() if v.resident is not None and v.resident.pinned]

    def _refuse(self, view: ModelView, denial: Denial) -> None:
        """Nobody is refused by an old prospect: it is being thought about anew."""
        if not view.stale:
            self._deny(view, denial)

    def _deny(self, view: ModelView, denial: Denial) -> None:
        self._denials.extend((ticket, denial) for ticket in self._world.queues[view.model])

    def _residents(self) -> list[Resident]:
        return [
            view.resident
            for view in self._world.models.values()
            if view.resident is not None and view.phase is Phase.READY and view.instance not in self._room.gone
        ]

    def _shed(self) -> None:
        """A pool that has promised more than it may: idle engines go until it holds again."""
        now, policy = self._world.now, self._world.policy
        for over in self._world.ledger.over_commits():
            ledger = self._world.ledger.less(self._room.gone)
            if (ledger.free(over.pool) or 0) >= -over.budget // SHED_BEYOND:
                continue
            residents = [r for r in self._residents() if not r.pinned and r.idle_since is not None]
            victims = for_pool(ledger, over.pool, [r for r in residents if evictable(r, now, policy.min_idle)])
            later = [r.idle_since + policy.min_idle for r in residents if r.idle_since is not None]
            self._looks.extend(at for at in later if at > now)
            models = {r.instance: r.model for r in residents}
            for name in victims.instances if victims else ():
                self._goes(name, Evict(models[name], f"{over.pool} is over-committed by {format_size(over.by)}"))
