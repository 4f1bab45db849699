"""Folders of LoRAs as they were last read, for listings that must not wait for a disk."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import anyio.to_thread

from supervisor.models.loras import LoraShelf, read_loras


class LoraShelves:
    """Reads folders when told to, and remembers them."""

    def __init__(self) -> None:
        self._shelves: dict[Path, LoraShelf] = {}

    def last(self, folder: Path | None) -> LoraShelf:
        """As it was last read; nothing where it was not."""
        return LoraShelf() if folder is None else self._shelves.get(folder, LoraShelf())

    async def refresh(self, folders: Iterable[Path]) -> None:
        """Read these anew; a folder that was not named is forgotten."""
        wanted = frozenset(folders)
        if wanted:
            found = await anyio.to_thread.run_sync(
                lambda: {folder: read_loras(folder) for folder in wanted}, abandon_on_cancel=True
            )
            self._shelves = found
        else:
            self._shelves = {}
