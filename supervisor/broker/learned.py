"""What launches have shown of their memory, kept in the state folder; the pure part is ``planning.corrections``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import anyio
import anyio.to_thread

from engines.contract import MemoryEstimate
from supervisor.events import EventBus, StateFileUnusable
from supervisor.planning.corrections import Learned, learn
from supervisor.storage import JsonFile

SCHEMA = 1
# The oldest kinds go first: a machine with a hundred models in a few forms each stays below.
_MOST_KINDS = 1000
# Growth below this is not worth a write: it comes with every request.
_STEP_BYTES = 2**20


class LearnedMemory:
    """Owns the file; without one, it learns for as long as it lives."""

    def __init__(self, file: JsonFile | None, bus: EventBus) -> None:
        self._file = file
        self._bus = bus
        self._kinds: dict[str, Learned] | None = None
        self._writing = anyio.Lock()

    async def known(self) -> Mapping[str, Learned]:
        """By kind; the file is read at the first question, and one that can't be used counts as empty."""
        if self._kinds is None:
            document, problem = (None, None)
            if self._file is not None:
                document, problem = await anyio.to_thread.run_sync(self._file.read)
                if problem is not None:
                    await anyio.to_thread.run_sync(self._file.set_aside)
                    self._bus.publish(StateFileUnusable(str(self._file.path), problem))
            if self._kinds is None:  # another may have read it meanwhile, and learned since
                self._kinds = _from_document(document or {})
        return self._kinds

    async def note(
        self,
        kind: str,
        declared: Mapping[str, MemoryEstimate],
        held: Mapping[str, int],
        *,
        just_ready: bool = False,
    ) -> None:
        """Learn from one look at a launch; written only when it is news."""
        kinds = dict(await self.known())
        before = kinds.pop(kind, None)
        after = learn(before, declared, held, just_ready=just_ready)
        kinds[kind] = after  # last: it is the youngest now
        self._kinds = dict(list(kinds.items())[-_MOST_KINDS:])
        if before is None or _is_news(before, after):
            await self._write()

    async def _write(self) -> None:
        if self._file is None or self._kinds is None:
            return
        async with self._writing:
            document = _to_document(self._kinds)
            try:
                await anyio.to_thread.run_sync(self._file.write, document)
            except OSError as error:
                self._bus.publish(StateFileUnusable(str(self._file.path), f"not written: {error}"))


def _is_news(before: Learned, after: Learned) -> bool:
    grown = any(size - before.held.get(place, 0) >= _STEP_BYTES for place, size in after.held.items())
    return grown or before.declared != after.declared or before.ready != after.ready


def _to_document(kinds: Mapping[str, Learned]) -> dict[str, Any]:
    return {
        "kinds": {
            kind: {
                "declared": {place: asdict(estimate) for place, estimate in learned.declared.items()},
                "held": dict(learned.held),
                "ready": dict(learned.ready),
            }
            for kind, learned in kinds.items()
        }
    }


def _from_document(document: Mapping[str, Any]) -> dict[str, Learned]:
    """What of the document can be understood."""
    kinds: dict[str, Learned] = {}
    rows = document.get("kinds")
    for kind, row in rows.items() if isinstance(rows, dict) else ():
        try:
            declared = {place: _estimate(parts) for place, parts in row["declared"].items()}
            held = {str(place): int(size) for place, size in row["held"].items()}
            ready = {str(place): int(size) for place, size in row.get("ready", {}).items()}
        except (AttributeError, KeyError, TypeError, ValueError):
            continue
        kinds[kind] = Learned(declared, held, ready)
    return kinds


def _estimate(parts: Mapping[str, Any]) -> MemoryEstimate:
    return MemoryEstimate(**{name: None if size is None else int(size) for name, size in parts.items()})
