"""Working out what a start would take, off the decisions' path; the decisions read what was last worked out."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from functools import partial

import anyio
from anyio.abc import TaskGroup

from engines.contract import LaunchPlan
from supervisor.broker.admission import Prospect
from supervisor.broker.books import Book, Thought
from supervisor.broker.explaining import holders_text, room_text
from supervisor.broker.memory_book import MemoryBook, claims_of
from supervisor.broker.ports import Options, Planner
from supervisor.broker.tickets import Denial
from supervisor.clock import Clock
from supervisor.errors import AdmissionError, InstanceError, SupervisorError
from supervisor.events import EventBus, InternalError
from supervisor.host.pools import HOST_POOL, PoolRoom
from supervisor.models.catalog import ModelEntry
from supervisor.planning.explained import does_not_fit

_RETRY_AFTER = 60.0
# Drivers give memory back within milliseconds to a few seconds after a process has ended.
_BACK_SECONDS = 5.0
_BACK_PAUSE = 0.1
# Others take and give meanwhile: one part in so many of what was held may be missing.
_NEARLY = 10


def thought_of(options: Options, entry: ModelEntry, now: float) -> Thought:
    """What admission needs of the plans; a best plan that does not fit becomes a denial. Pure."""
    best, beside = options.best, options.beside
    if not best.fits:
        error = does_not_fit(best)
        return Thought(Prospect(denial=Denial(error.code, error.message, _RETRY_AFTER)), now, cause=error)
    smaller = beside if beside is not None and beside.fits and beside.memory != best.memory else None
    prospect = Prospect(
        claims=claims_of(best, entry.files, paging=entry.allow_paging),
        conceded=None if smaller is None else claims_of(smaller, entry.files, paging=entry.allow_paging),
        serial_pools=options.serial_pools,
    )
    return Thought(prospect, now, best, smaller)


class Starting:
    """Asks the planner, and keeps the answer on the model's page."""

    def __init__(self, planner: Planner, memory: MemoryBook, clock: Clock, bus: EventBus) -> None:
        self._planner = planner
        self._memory = memory
        self._clock = clock
        self._bus = bus

    def begin(self, book: Book, tasks: TaskGroup | None, done: Callable[[], None]) -> None:
        """Work out what a start takes, unless that is under way; ``done`` is called when the page says it."""
        if not book.thinking and tasks is not None:
            book.thinking = True
            tasks.start_soon(self._think, book, done)

    async def _think(self, book: Book, done: Callable[[], None]) -> None:
        """By the entry that the launch will have: who waits may have come before a change of the config."""
        entry = book.instance.entry
        try:
            options = await self._planner.options(entry, self._memory.ledger)
            book.thought = thought_of(options, entry, self._clock.monotonic())
            self._memory.use(options.rooms)
        except SupervisorError as error:
            book.thought = self._refusal(error)
        except Exception as error:  # noqa: BLE001  a fault of our own refuses these requests, and ends nothing else
            self._bus.publish(InternalError(f"planning {entry.id}", repr(error), traceback.format_exc()))
            said = f"{entry.id}: an internal error ended the planning: {error!r}"
            book.thought = self._refusal(InstanceError("start_failed", said))
        finally:
            book.thinking = False
        if book.instance.entry is not entry:
            book.thought = None  # the config has changed meanwhile: whoever waits has it thought about anew
        done()

    def announced(self, entry: ModelEntry, plan: LaunchPlan) -> LaunchPlan:
        """The plan, told of."""
        self._planner.announce(entry, plan)
        return plan

    async def again(self, book: Book, entry: ModelEntry) -> LaunchPlan:
        """A plan for a launch that tries anew, reserved in the first one's place.

        Raises:
            SupervisorError: there is none, or none that fits beside the others now.
        """
        options = await self._planner.options(entry, self._memory.ledger.release(book.instance.id))
        self._memory.use(options.rooms)
        thought = thought_of(options, entry, self._clock.monotonic())
        if thought.cause is not None:
            raise thought.cause
        instance, ledger = book.instance.id, self._memory.ledger.release(book.instance.id)
        for plan, claims in ((thought.best, thought.prospect.claims), (thought.conceded, thought.prospect.conceded)):
            if plan is not None and claims is not None and not ledger.shortfalls(claims):
                self._memory.release(instance)
                self._memory.reserve(instance, entry.id, claims, thought.prospect.serial_pools)
                return plan
        why = room_text(entry.id, ledger.shortfalls(thought.prospect.claims), partial(holders_text, ledger))
        # Whoever waits is not refused by this: the instance rests, and its start is admitted like any other.
        raise AdmissionError("no_room", why, retry_after=_RETRY_AFTER, admit_anew=True)

    async def seen_back(self, book: Book, model: ModelEntry) -> tuple[PoolRoom, ...]:
        """Return when the bytes of an ended launch are free again by the devices' own word, or after a bound.

        Returns:
            The rooms as they were last read; empty: they could not be.
        """
        ledger = self._memory.ledger
        seen: tuple[PoolRoom, ...] = ()
        entry = ledger.entries.get(book.instance.id)
        claims = {} if entry is None else {pool: c for pool, c in entry.claims.items() if pool != HOST_POOL}
        # Until the bytes are back they look like somebody else's, and the budget is smaller by so much.
        enough = {
            pool: budget - (claim.anonymous or 0) // _NEARLY
            for pool, claim in claims.items()
            if pool in ledger.pools and (budget := ledger.pools[pool].budget) is not None
        }
        with anyio.move_on_after(_BACK_SECONDS):
            while True:
                seen = await self._rooms(model)
                rooms = {room.pool: room for room in seen}
                if all(_is_back(rooms.get(pool), size) for pool, size in enough.items()):
                    return seen
                await anyio.sleep(_BACK_PAUSE)
        return seen

    async def _rooms(self, model: ModelEntry) -> tuple[PoolRoom, ...]:
        """The pools; none where they can't be read, as when the build or the device is what has just failed."""
        try:
            return await self._planner.rooms(model)
        except SupervisorError:
            return ()
        except Exception as error:  # noqa: BLE001  a fault of our own must not end the broker
            self._bus.publish(InternalError(f"memory of {model.id}", repr(error), traceback.format_exc()))
            return ()

    def _refusal(self, error: SupervisorError) -> Thought:
        denial = Denial(error.code, error.message, _RETRY_AFTER)
        return Thought(Prospect(denial=denial), self._clock.monotonic(), cause=error)


def _is_back(room: PoolRoom | None, size: int) -> bool:
    """Whether a pool has as much as it had before; what can't be read is taken as given back."""
    return room is None or room.budget is None or room.budget >= size
