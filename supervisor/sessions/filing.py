"""Saves slots to files and restores them: under one lock for each instance, and only for the launch that was meant."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from time import monotonic

import anyio

from engines.slots import SlotAnswer
from supervisor.events import EventBus
from supervisor.sessions.calls import ask_slot
from supervisor.sessions.choosing import Holding
from supervisor.sessions.conversation import Conversation
from supervisor.sessions.events import (
    SessionNotRestored,
    SessionNotSaved,
    SessionRestored,
    SessionSaved,
    SessionSaveDropped,
    SessionsNotKept,
)
from supervisor.sessions.kept import Kept
from supervisor.sessions.launch_slots import LaunchSlots
from supervisor.sessions.speeds import Speeds
from supervisor.sessions.store import NoRoomError, Store, StoreLimits

# Why a slot is written that nobody has to wait for.
IDLE, BUSY = "idle", "busy"
# A save that holds less than this share of what was in the slot is of something else: the engine cleared it meanwhile.
_ENOUGH = 0.5
# Restores without effect after which a launch is not asked again: its memory can't be kept, as with sliding windows.
_USELESS = 2
# Of files that are no older than this, in seconds: an older one may be of no use because its prompt had another date.
_FRESH_SECONDS = 3600.0


@dataclass(frozen=True, slots=True)
class Filing:
    """What a save or a restore is done with; ``speeds`` learn from it; ``later`` starts what nobody waits for."""

    store: Store
    limits: StoreLimits
    speeds: Speeds
    bus: EventBus
    later: Callable[..., object]


class Locks:
    """One lock for each instance; who waits for it looks again afterwards whether its launch is still the one."""

    def __init__(self, current: Callable[[str], LaunchSlots | None]) -> None:
        """``current``: the page of an instance's launch now."""
        self._current = current
        self._locks: dict[str, anyio.Lock] = {}

    @asynccontextmanager
    async def alone(self, page: LaunchSlots) -> AsyncIterator[bool]:
        """The block is alone with the instance; whether the launch is the one that it was before the wait."""
        instance, generation = page.launch.instance_id, page.launch.generation
        async with self._locks.setdefault(instance, anyio.Lock()):
            now = self._current(instance)
            yield now is page and now.launch.generation == generation


async def save(page: LaunchSlots, slot: int, filing: Filing, why: str) -> bool:
    """Write what an idle slot holds; to be called under the instance's lock. Whether there is a file of it now."""
    holding, epoch = page.holdings.get(slot), page.epochs.get(slot)
    await page.keyed.wait()
    if holding is None or page.key is None or page.refused is not None or page.epochs.get(slot) != epoch:
        return False
    launch, store = page.launch, filing.store
    try:
        name = await store.begin(filing.speeds.room(holding.tokens, filing.limits.budget), filing.limits)
    except NoRoomError as error:
        _tell_not_saved(page, slot, holding, str(error), filing)
        return False
    committed = False
    reason: str | None
    try:
        if (why == IDLE and not page.is_idle()) or (why == BUSY and slot in page.active):
            return False  # somebody came meanwhile, and is not to wait for this
        page.saving = slot
        began = monotonic()
        answer = await ask_slot(launch, page.slots, page.slots.save(slot, name))
        seconds = monotonic() - began
        if page.epochs.get(slot) != epoch or page.is_unsure:
            reason = "the slot was used again meanwhile, or may have been"
            filing.bus.publish(SessionSaveDropped(launch.plan.model_id, launch.instance_id, slot, reason))
            return False
        reason = _why_not(page, slot, holding, answer, filing.bus)
        if reason is None:
            await _commit(page, slot, (name, answer, holding, seconds, why), filing)
            committed = True
            return True
    except NoRoomError as error:
        reason = str(error)
    finally:
        page.saving = None
        if not committed:
            with anyio.CancelScope(shield=True):
                await store.discard(name)
    _tell_not_saved(page, slot, holding, reason or "", filing)
    return False


def _why_not(page: LaunchSlots, slot: int, holding: Holding, answer: SlotAnswer, bus: EventBus) -> str | None:
    """Why what the engine wrote is not kept; None: it is."""
    if not answer.done:
        if answer.never:
            refuse(page, f"the engine does not save slots: {answer.why}", bus)
        return answer.why
    if (answer.tokens or 0) < _ENOUGH * holding.tokens:
        page.put(slot, None)
        return f"the engine has only {answer.tokens} tokens of it"
    return None


async def _commit(
    page: LaunchSlots, slot: int, made: tuple[str, SlotAnswer, Holding, float, str], filing: Filing
) -> None:
    name, answer, holding, seconds, why = made
    launch, epoch = page.launch, page.epochs.get(slot)
    tokens = answer.tokens or holding.tokens
    wanted = Kept("", page.key or "", holding.talk, tokens, answer.size or 0, holding.seconds, 0.0, 0.0)
    kept = await filing.store.commit(name, wanted)
    filing.speeds.file_was_moved(tokens, kept.size, seconds)
    if page.epochs.get(slot) == epoch:
        page.saved(slot, tokens, kept.id)
    facts = (launch.plan.model_id, launch.instance_id, slot, tokens, kept.size, seconds, holding.seconds, why)
    filing.later(_secure, filing, kept, SessionSaved(*facts))


async def _secure(filing: Filing, kept: Kept, saved: SessionSaved) -> None:
    """It is saved, and said to be, once it is on the disk."""
    if await filing.store.secure(kept, filing.limits):
        filing.bus.publish(saved)


async def restore(page: LaunchSlots, slot: int, kept: Kept, filing: Filing) -> bool:
    """Have a slot hold what a file holds; to be called under the instance's lock. Whether the engine says it does."""
    launch, store = page.launch, filing.store
    if not await store.is_whole(kept):
        await store.drop([kept], "not there, or not as it was written")
        return False
    began = monotonic()
    answer = await ask_slot(launch, page.slots, page.slots.restore(slot, f"{kept.id}.kv"))
    seconds = monotonic() - began
    if answer.done and answer.tokens == kept.tokens:
        filing.speeds.file_was_moved(kept.tokens, kept.size, seconds)
        facts = (launch.plan.model_id, launch.instance_id, slot, answer.tokens, kept.size, seconds)
        filing.bus.publish(SessionRestored(*facts))
        await store.used(kept)
        return True
    if answer.never:
        refuse(page, f"the engine does not restore slots: {answer.why}", filing.bus)
        return False
    if kept.id not in store.files:  # cleared while the engine was asked: nobody's fault
        return False
    why = answer.why or f"the engine says that it has {answer.tokens or 0} tokens of it, and {kept.tokens} were saved"
    await give_up(page, slot, kept, why, filing)
    return False


async def give_up(page: LaunchSlots, slot: int, kept: Kept, why: str, filing: Filing) -> None:
    """A file was of no use: it goes; after some of them the launch is not asked again."""
    launch = page.launch
    filing.bus.publish(SessionNotRestored(launch.plan.model_id, launch.instance_id, slot, kept.tokens, why))
    age = filing.store.age(kept)
    await filing.store.drop([kept], "of no use")
    page.useless += int(age <= _FRESH_SECONDS)
    if page.useless >= _USELESS:
        refuse(page, f"restoring had no effect {page.useless} times; the last time: {why}", filing.bus)


def refuse(page: LaunchSlots, reason: str, bus: EventBus) -> None:
    """Save and restore nothing of this launch from now on; told once."""
    if page.refused is None:
        page.refused = reason
        bus.publish(SessionsNotKept(page.launch.plan.model_id, page.launch.instance_id, reason))


def is_worth_restoring(kept: Kept, common: int, in_slot: int, speeds: Speeds) -> bool:
    """Whether reading the file takes less time than computing what the slot has not."""
    saved = kept.seconds * (common - in_slot) / max(1, kept.tokens)
    return saved > 2 * kept.size / max(1.0, speeds.bytes_per_second)


def lost_by(holding: Holding, talk: Conversation) -> float:
    """Seconds of prefill that no file holds and that go when ``talk`` takes the slot."""
    common = holding.common_tokens(talk)
    return min(holding.unsaved, holding.seconds * (holding.tokens - common) / max(1, holding.tokens))


def _tell_not_saved(page: LaunchSlots, slot: int, holding: Holding, reason: str, filing: Filing) -> None:
    launch = page.launch
    filing.bus.publish(SessionNotSaved(launch.plan.model_id, launch.instance_id, slot, holding.tokens, reason))
