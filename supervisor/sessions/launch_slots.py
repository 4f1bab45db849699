"""What the slots of one launch hold, as far as requests through here have put it there."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import anyio

from engines.slots import Slots
from supervisor.instances.launch import Launch
from supervisor.sessions.choosing import Holding


class LaunchSlots:
    """One launch's page; changed in sync steps only.

    Attributes:
        launch: the process.
        slots: its engine's part.
        may_pin: whether requests can be sent to a slot.
        holdings: what idle slots hold; not there: nothing that anybody would come back for.
        epochs: a number for each slot that changes with every use of it: what was begun before is not what is there.
        active: slots that a request has now.
        saving: the slot that is being saved.
        unsettled: slots whose request was given up: the engine may still be at work in them.
        scrambling: requests under way whose slots the engine chooses itself.
        scrambles: how many there were.
        before: uses of slots before the first of them; None: what they did is known.
        looking: held by who asks the engine for these.
        refused: why nothing is saved or restored any more; None: it is.
        useless: restores in a row that had no effect.
        keyed: set once ``key`` is known: what its files are good for; None: they can't be told apart.
    """

    def __init__(self, launch: Launch, slots: Slots, folder: Path | None) -> None:
        self.launch = launch
        self.slots = slots
        self.may_pin = slots.may_pin(launch.plan)
        self.holdings: dict[int, Holding] = {}
        self.epochs: dict[int, int] = {}
        self.active: set[int] = set()
        self.saving: int | None = None
        self.unsettled: set[int] = set()
        self.scrambling = self.scrambles = 0
        self.before: Mapping[int, object] | None = None
        self.looking = anyio.Lock()
        self.useless = 0
        self._given_up: dict[int, int] = {}
        self.keyed = anyio.Event()
        self.key: str | None = None
        self.refused: str | None = None
        own = slots.files_folder(launch.plan)
        if folder is None or own != folder:
            self.refused = "it was started without a place for its files"

    @property
    def keeps(self) -> bool:
        """Whether its slots are saved and restored; as long as ``key`` is not known, as far as is known."""
        return self.refused is None and not (self.keyed.is_set() and self.key is None)

    def is_idle(self) -> bool:
        """Nobody uses it."""
        return not self.active and not self.is_unsure

    @property
    def is_unsure(self) -> bool:
        """The engine may have put something else anywhere, and has not told yet."""
        return self.scrambling > 0 or self.before is not None

    def take(self, slot: int) -> Holding | None:
        """A request has the slot from now on, which holds what it did until ``touch``."""
        self.active.add(slot)
        return self.holdings.get(slot)

    def touch(self, slot: int) -> None:
        """From now on the engine may put something else there."""
        self.unsettled.discard(slot)
        self.epochs[slot] = self.epochs.get(slot, 0) + 1

    def leave(self, slot: int, holding: Holding | None, *, settled: bool) -> None:
        """The request has ended; None: nobody knows what the slot holds."""
        self.active.discard(slot)
        self.put(slot, holding)
        if not settled:
            self.unsettled.add(slot)

    def put(self, slot: int, holding: Holding | None) -> None:
        """A slot holds something else now."""
        self.epochs[slot] = self.epochs.get(slot, 0) + 1
        if holding is None:
            self.holdings.pop(slot, None)
        else:
            self.holdings[slot] = holding

    def saved(self, slot: int, tokens: int, file: str) -> None:
        """A file holds so many tokens of what is there."""
        holding = self.holdings.get(slot)
        if holding is not None:
            self.holdings[slot] = replace(holding, kept=max(tokens, holding.tokens), file=file)

    def recheck(self, files: Container[str]) -> None:
        """Only these files are there: what another one held is not saved."""
        for slot, holding in self.holdings.items():
            if holding.file is not None and holding.file not in files:
                self.holdings[slot] = replace(holding, kept=0, file=None)

    def give_up_saving(self, slot: int) -> None:
        """What is there now is not saved, nor tried to be, while nothing changes."""
        self._given_up[slot] = self.epochs.get(slot, 0)

    def may_save(self, slot: int) -> bool:
        """Nobody has given it up."""
        return self._given_up.get(slot) != self.epochs.get(slot, 0)

    def forbid_saving(self, slot: int) -> None:
        """What is there now is not to be on the disk, also if it is being written just now."""
        self.put(slot, self.holdings.get(slot))
        self.give_up_saving(slot)

    def settle(self) -> None:
        """The engine was seen idle: what was given up is over."""
        self.unsettled.clear()

    def scramble(self) -> None:
        """The engine has taken slots by its own choice, or may yet: whatever was idle may be gone."""
        self.before = {} if self.scrambling else None
        self.scrambles += 1
        for slot in [slot for slot in self.holdings if slot not in self.active]:
            self.put(slot, None)

    def worth_saving(self, least: float) -> Sequence[int]:
        """Idle slots with more than ``least`` seconds of prefill that no file holds, the most valuable first."""
        found = [
            slot
            for slot, holding in self.holdings.items()
            if slot not in self.active
            and slot not in self.unsettled
            and holding.unsaved >= least
            and self.may_save(slot)
        ]
        return sorted(found, key=lambda slot: -self.holdings[slot].unsaved)
