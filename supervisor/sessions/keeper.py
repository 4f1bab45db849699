"""Keeps conversations: gives each its slot, saves what a slot holds before it is lost, and restores what comes back."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
from anyio.abc import TaskGroup, TaskStatus

from engines.contract import EngineAdapter, EngineKind
from supervisor.clock import Clock
from supervisor.events import EventBus
from supervisor.instances.launch import Launch
from supervisor.instances.probes import ask_busy_slots
from supervisor.models.catalog import ModelEntry
from supervisor.sessions.choosing import LEAST_SECONDS, LEAST_TOKENS, Holding, choose_slot
from supervisor.sessions.conversation import Conversation, ConversationReader, Talk, Touch
from supervisor.sessions.events import SessionServed
from supervisor.sessions.filing import Filing, Locks, give_up, is_worth_restoring, lost_by, refuse, restore, save
from supervisor.sessions.idle import IdleSaving, IdleTools
from supervisor.sessions.kept import Kept, best_kept
from supervisor.sessions.launch_slots import LaunchSlots
from supervisor.sessions.model_key import model_key
from supervisor.sessions.ports import HeldSlot, ServingInstance
from supervisor.sessions.recognising import Recognising
from supervisor.sessions.scrambling import look_again, scramble
from supervisor.sessions.speeds import Speeds, first_speeds
from supervisor.sessions.store import Store, StoreLimits
from supervisor.sessions.turn import COLD, HIT, PREFIX, RESTORED, NoTurn, Turn, TurnEnd

# All that a request waits for files at its beginning, in seconds: after it, it is computed anew.
BEGIN_SECONDS = 5.0
# Seconds that a request may wait for the save of the conversation whose slot it takes: so long for any, by what is
# known; longer, up to a bound, only for one that would take ten times as long to compute again.
HANDOVER_SECONDS = 0.05
_LONGEST_HANDOVER = 0.5
_WORTH = 10
# Between two looks at the age of files.
_TRIM_SECONDS = 3600.0
_ASK_SECONDS = 1.0
_NO_TURN = NoTurn()
# Of a body: it asks for text, and not for what a text is worth.
_MAKING_TEXT = frozenset({"messages", "prompt"})


@dataclass(frozen=True, slots=True)
class KeepLimits:
    """From the config.

    Attributes:
        enabled: files are written and read at all.
        files: what they may take.
    """

    enabled: bool
    files: StoreLimits


@dataclass(slots=True)
class _Plan:
    """What is done before a request is sent to its slot."""

    outcome: str
    expected: int
    save: bool = False
    restore: Kept | None = None
    touched: bool = False  # the slot holds no longer what it did


@dataclass(frozen=True, slots=True)
class _Begun:
    """What a turn began with; ``held`` is what the slot held before."""

    page: LaunchSlots
    slot: int
    talk: Conversation
    held: Holding | None
    plan: _Plan
    request_id: str
    scrambles: int


class Keeper:
    """Owns what is known of slots; ``run`` must be running for idle ones to be written."""

    def __init__(
        self,
        store: Store,
        adapter_for: Callable[[EngineKind], EngineAdapter],
        limits: Callable[[], KeepLimits],
        clock: Clock,
        bus: EventBus,
    ) -> None:
        self.store = store
        self._adapter_for = adapter_for
        self._limits = limits
        self._clock = clock
        self._bus = bus
        self._pages: dict[str, LaunchSlots] = {}  # by instance
        self._locks = Locks(self._pages.get)
        self._speeds: dict[str, Speeds] = {}  # by model
        self._started: dict[str, float] = {}  # wall seconds, by instance
        self._own = Recognising(bus)
        self._idle = IdleSaving(IdleTools(self._kept_pages, self._settle, self._filing, self._locks), clock, bus)
        self._tasks: TaskGroup | None = None
        self._wake = anyio.Event()
        self._reader = ConversationReader(store.secret)

    async def load(self) -> None:
        """Read the folder; before it nothing is restored."""
        if self._limits().enabled:
            await self.store.load()
            await self._own.read(self.store.folder)
        self._reader = ConversationReader(self.store.secret)

    def folder(self) -> Path | None:
        """Where launches write their files; None: nothing is kept."""
        limits = self._limits()
        return self.store.folder if limits.enabled and limits.files.budget > 0 and self.store.usable else None

    def about(self, entry: ModelEntry, owner: str, name: str | None, body: Mapping[str, Any]) -> Talk:
        """What a request's body is to slots; it may be of any size. ``name``: as the client calls the conversation."""
        slots = self._adapter_for(entry.engine).slots
        if slots is None:
            return Touch.NOTHING
        unknown = Touch.SEVERAL if body.keys() & _MAKING_TEXT else Touch.ANY
        if not slots.keeps_text(body):
            return unknown
        return self._reader.read(entry.id, owner, name, body) or unknown

    def prefers(self, talk: Talk, launch: Launch, free: Sequence[int]) -> int:
        """One of the free slots of a launch, for a request that is granted one now."""
        page = self._page(launch)
        if page is None or not isinstance(talk, Conversation):
            return self._least(page, free)
        best = self._in_file(page, talk)
        return choose_slot(page.holdings, free, talk, best[1] if best else 0, self._clock.monotonic())

    async def begin(self, lease: HeldSlot, talk: Talk, request_id: str, tell: Callable[[str], None]) -> Turn | NoTurn:
        """Make the slot of a lease ready for a request: save what is lost, restore what helps; within a bound.

        Args:
            lease: held while the turn lasts.
            talk: from ``about``.
            request_id: for the event.
            tell: told the outcome, and again if the engine shows another.
        """
        page = self._page(lease.launch)
        if page is None or talk is Touch.NOTHING:
            return _NO_TURN
        if page.slots.finds_itself:
            return self._own.begin(page, lease.slot, talk, request_id, tell) if talk is not Touch.ANY else _NO_TURN
        if not page.keyed.is_set():
            with anyio.move_on_after(BEGIN_SECONDS):
                await page.keyed.wait()
        if page.is_unsure:
            await look_again(page)
        if not isinstance(talk, Conversation) or page.scrambling or not page.may_pin:
            return await scramble(page, talk, tell, self._tasks.start_soon if self._tasks is not None else None)
        slot, scrambles = lease.slot, page.scrambles
        held = page.take(slot)
        plan = self._plan(page, slot, talk)
        try:
            # A save that is under way is waited for: the engine is at it, and what it writes is still right.
            if plan.save or plan.restore is not None or page.saving == slot:
                await self._prepare(page, slot, plan)
        except BaseException:
            page.leave(slot, None if plan.touched else held, settled=not plan.touched)
            raise
        held = page.holdings.get(slot)
        page.touch(slot)
        expected = (plan.outcome, plan.expected)
        ended = partial(self._ended, _Begun(page, slot, talk, held, plan, request_id, scrambles))
        return Turn(page.slots, slot, expected, tell, ended)

    def unsure(self, launch: Launch) -> None:
        """Somebody has told the engine something that nobody here understands: nothing of this launch is kept."""
        page = self._page(launch)
        if page is not None:
            page.scramble()
            refuse(page, "its engine was told something by hand", self._bus)

    def instance_changed(self, instance: ServingInstance) -> None:
        """Observer of every instance: a launch that is ready gets a page, one that has ended loses it."""
        launch = instance.launch
        page = self._pages.get(instance.id)
        if instance.is_starting:
            self._started[instance.id] = self._clock.wall()
        if page is not None and page.launch is not launch:
            del self._pages[instance.id]
        slots = self._adapter_for(instance.entry.engine).slots
        if launch is None or slots is None or (page is not None and page.launch is launch):
            return
        page = self._pages[instance.id] = LaunchSlots(launch, slots, self.folder())
        launch.costs = partial(self._costs, page)
        if self._tasks is None:
            page.keyed.set()
        else:
            self._tasks.start_soon(self._learn_key, page, instance.entry.files)

    async def flush(self, launch: Launch) -> None:
        """The launch is about to be stopped: save what it holds, the most valuable first."""
        page, folder = self._page(launch), self.folder()
        if page is not None and page.slots.finds_itself and folder is not None:
            await self._own.write(folder)
            await self._own.flush(page)
        if page is None or not self._keeps(page):
            return
        await look_again(page)
        await self._settle(page)
        for slot in page.worth_saving(LEAST_SECONDS):
            async with self._locks.alone(page) as current:
                if current and slot not in page.active:
                    await save(page, slot, self._filing(page), "stop")

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Write slots that are idle, and let old files go, until cancelled."""
        async with anyio.create_task_group() as tasks:
            self._tasks = tasks
            task_status.started()
            try:
                trim_at = self._clock.monotonic() + _TRIM_SECONDS
                while True:
                    self._wake = anyio.Event()
                    due = await self._idle.look()
                    now = self._clock.monotonic()
                    if now >= trim_at:
                        await self.store.trim(self._limits().files)
                        trim_at = now + _TRIM_SECONDS
                    with anyio.move_on_after(max(0.05, min(due, trim_at) - now)):
                        await self._wake.wait()
            finally:
                self._tasks = None

    def rows(self) -> list[dict[str, Any]]:
        """The files, the one used last first."""
        return [kept.row() for kept in sorted(self.store.files.values(), key=lambda kept: -kept.used_at)]

    async def clear(self, model: str | None) -> tuple[int, int]:
        """Remove the files of a model, or all, engines' own too; how many of ours there were, and their bytes.

        What slots hold now is not written again before its conversation goes on.
        """
        gone = [kept for kept in self.store.files.values() if model in (None, kept.talk.model)]
        for page in self._pages.values():
            for slot, holding in list(page.holdings.items()):
                if model in (None, holding.talk.model):
                    page.forbid_saving(slot)
        if model is None:
            await self.store.clear_others()
            await self._own.forget(self.store.folder)
        return await self.store.drop(gone, "cleared by hand")

    def _page(self, launch: Launch) -> LaunchSlots | None:
        page = self._pages.get(launch.instance_id)
        if page is None or page.launch is not launch:
            return None
        page.recheck(self.store.files)
        return page

    def _least(self, page: LaunchSlots | None, free: Sequence[int]) -> int:
        """Of slots that are only counted, one that holds nothing."""
        if page is None:
            return free[0]
        return min(free, key=lambda slot: (slot in page.holdings, slot))

    def _speed(self, page: LaunchSlots) -> Speeds:
        plan = page.launch.plan
        found = self._speeds.get(plan.model_id)
        if found is None:
            found = self._speeds[plan.model_id] = first_speeds(plan)
        return found

    def _filing(self, page: LaunchSlots) -> Filing:
        if self._tasks is None:
            raise AssertionError("the keeper is not running")
        return Filing(self.store, self._limits().files, self._speed(page), self._bus, self._tasks.start_soon)

    def _in_file(self, page: LaunchSlots, talk: Conversation) -> tuple[Kept, int] | None:
        if page.refused is not None or page.key is None:
            return None
        return best_kept(self.store.files.values(), page.key, talk)

    def _plan(self, page: LaunchSlots, slot: int, talk: Conversation) -> _Plan:
        held = page.holdings.get(slot)
        speeds = self._speed(page)
        common = 0 if held is None else held.common_tokens(talk)
        own = held is not None and held.talk.is_continued_by(talk)
        plan = _Plan(HIT if own else PREFIX if common >= LEAST_TOKENS else COLD, common)
        if not self._keeps(page):
            return plan
        best = self._in_file(page, talk)
        if best is not None and is_worth_restoring(best[0], best[1], common, speeds):
            plan.restore, plan.expected = best
            plan.outcome = RESTORED if best[0].talk.is_continued_by(talk) else PREFIX
        if held is not None:
            lost = held.unsaved if plan.restore is not None else lost_by(held, talk)
            takes = speeds.transfer(held.tokens)
            allowed = min(_LONGEST_HANDOVER, max(HANDOVER_SECONDS, lost / _WORTH))
            plan.save = lost >= LEAST_SECONDS and takes <= allowed and page.may_save(slot)
        return plan

    async def _prepare(self, page: LaunchSlots, slot: int, plan: _Plan) -> None:
        """Save and restore as planned, within a bound; the plan then says what came of it."""
        done = False
        with anyio.move_on_after(BEGIN_SECONDS):
            async with self._locks.alone(page) as current:
                if not current:
                    return
                held = page.holdings.get(slot)
                if plan.save and held is not None and held.unsaved >= LEAST_SECONDS:
                    await save(page, slot, self._filing(page), "handover")
                if plan.restore is not None:
                    plan.touched = True
                    page.touch(slot)
                    done = await restore(page, slot, plan.restore, self._filing(page))
        if plan.restore is not None and not done:
            plan.outcome, plan.expected, plan.restore = COLD, 0, None

    def _ended(self, begun: _Begun, turn: Turn, end: TurnEnd) -> None:
        page, slot, held, plan = begun.page, begun.slot, begun.held, begun.plan
        read, speeds = end.read, self._speed(page)
        if read is None:
            page.leave(slot, None, settled=end.answered)
            return
        if end.seconds is not None:
            speeds.prompt_was_read(read.total - read.cached, end.seconds)
        kept, file, had = (0, None, None) if held is None else (held.kept, held.file, (held.tokens, held.seconds))
        if plan.restore is not None:
            kept, file, had = plan.restore.tokens, plan.restore.id, (plan.restore.tokens, plan.restore.seconds)
            page.useless = page.useless if end.missed else 0
        known = (0, None) if end.missed else (min(kept, read.cached), file)
        seconds = speeds.whole(read.total, read.cached, end.seconds, None if end.missed else had)
        now = self._clock.monotonic()
        page.leave(slot, Holding(begun.talk, read.total, now, seconds, *known), settled=end.answered)
        page.recheck(self.store.files)
        undisturbed = begun.scrambles == page.scrambles
        if end.missed and undisturbed and plan.restore is not None and self._tasks is not None:
            why = f"of {plan.expected} tokens that it should have had of a prompt, the slot had {read.cached}"
            self._tasks.start_soon(give_up, page, slot, plan.restore, why, self._filing(page))
        launch = page.launch
        served = (begun.request_id, launch.plan.model_id, launch.instance_id, slot, turn.outcome)
        self._bus.publish(SessionServed(*served, read.cached, read.total))
        # Else there is nothing that ``run`` would write or ask.
        if page.unsettled or (self._keeps(page) and page.worth_saving(LEAST_SECONDS)):
            self._wake.set()

    def _costs(self, page: LaunchSlots) -> tuple[float, float]:
        """What the end of the launch costs those who hold conversations there, and those who wait for its memory."""
        speeds = self._speed(page)
        rebuild = sum(self._loss(page, each) for each in page.holdings.values())
        unsaved = (page.holdings[slot] for slot in page.worth_saving(LEAST_SECONDS))
        return rebuild, sum(speeds.transfer(each.tokens) for each in unsaved) if self._keeps(page) else 0.0

    def _loss(self, page: LaunchSlots, holding: Holding) -> float:
        """Seconds that the launch's end costs this one: a file is written and read, or all is computed anew."""
        moved = 2 * self._speed(page).transfer(holding.tokens)
        return min(holding.seconds, moved) if self._keeps(page) else holding.seconds

    def _kept_pages(self) -> list[LaunchSlots]:
        pages = [page for page in self._pages.values() if self._keeps(page)]
        for page in pages:
            page.recheck(self.store.files)
        return pages

    def _keeps(self, page: LaunchSlots) -> bool:
        return page.keeps and self._tasks is not None and self.folder() is not None

    async def _settle(self, page: LaunchSlots) -> None:
        """Where requests were given up: see whether the engine has noticed."""
        if page.unsettled:
            adapter = self._adapter_for(page.launch.plan.engine)
            epochs = dict(page.epochs)
            if await ask_busy_slots(page.launch, adapter, _ASK_SECONDS) == 0 and page.epochs == epochs:
                page.settle()

    async def _learn_key(self, page: LaunchSlots, files: Sequence[Path]) -> None:
        launch = page.launch
        try:
            words = page.slots.fingerprint(launch.plan)
            started = self._started.get(launch.instance_id, 0.0)
            if words is not None:
                page.key = await anyio.to_thread.run_sync(model_key, words, files, started)
                if page.key is None:
                    refuse(page, "its files can't be read, or changed while it was started", self._bus)
        finally:
            page.keyed.set()
