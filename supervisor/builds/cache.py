"""A document of the state folder that may be lost: what builds said, what their files hash to."""

from __future__ import annotations

from typing import Any

import anyio
import anyio.to_thread

from supervisor.events import EventBus, StateFileUnusable
from supervisor.storage import JsonFile


class Cache:
    """Entries by key, the oldest first; kept in memory, and in a file if there is one.

    A file that can't be read is set aside; one that can't be written costs time at the next start, and nothing else.
    """

    def __init__(self, file: JsonFile | None, bus: EventBus, keep: int) -> None:
        self._file = file
        self._bus = bus
        self._keep = keep
        self._entries: dict[str, Any] = {}
        self._loaded = file is None
        self._lock = anyio.Lock()

    async def load(self) -> None:
        """Read the file, once."""
        async with self._lock:
            if self._loaded or self._file is None:
                return
            document, reason = await anyio.to_thread.run_sync(self._file.read)
            entries = document.get("entries") if document is not None else None
            if document is not None and not isinstance(entries, dict):
                reason = "holds no entries"
            if reason is not None:
                self._file.set_aside()
                self._bus.publish(StateFileUnusable(str(self._file.path), reason))
            if isinstance(entries, dict):
                self._entries = {**entries, **self._entries}
            self._loaded = True

    def get(self, key: str) -> Any:
        """The entry, as it came from the file: to be checked before use; None if there is none."""
        return self._entries.get(key)

    async def put(self, entries: dict[str, Any]) -> None:
        """Add entries, drop the oldest beyond the limit, and write the file."""
        for key, entry in entries.items():
            self._entries.pop(key, None)
            self._entries[key] = entry
        for key in list(self._entries)[: -self._keep]:
            del self._entries[key]
        if self._file is None:
            return
        async with self._lock:
            try:
                await anyio.to_thread.run_sync(self._file.write, {"entries": dict(self._entries)})
            except OSError as error:
                self._bus.publish(StateFileUnusable(str(self._file.path), f"can't be written: {error}"))
