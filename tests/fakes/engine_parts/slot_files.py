"""``POST /slots/N?action=save|restore|erase`` of the fake: the words of a slot's prompt, in a file."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from tests.fakes.engine_parts import answers
from tests.fakes.engine_parts.answers import JsonObject, RequestError
from tests.fakes.engine_parts.faults import Faults

_HEAD = b"FAKE-KV "
# So that files have a size that matters.
_BYTES_PER_TOKEN = 1000


class HeldSlot(Protocol):
    """A slot of the fake."""

    id: int
    busy: bool
    prompt: list[str]


class SlotFiles:
    """Saves and restores, and misbehaves as told. What is saved is what is there when the work is done, not before."""

    def __init__(self, folder: str | None, faults: Faults, end: Callable[[], None]) -> None:
        self._folder = folder
        self._faults = faults
        self._end = end

    async def act(self, slot: HeldSlot, action: str, body: JsonObject) -> JsonObject:
        """The answer.

        Raises:
            RequestError: as llama-server says it.
        """
        if self._folder is None:
            raise answers.not_supported("slots action", "--slot-save-path")
        if self._faults.slot_files == "refuse":
            raise RequestError(501, "This feature is not supported by multimodal", "not_supported_error")
        while slot.busy:  # noqa: ASYNC110  the real one defers the task likewise
            await asyncio.sleep(0.005)
        if action == "save":
            return await self._save(slot, str(body.get("filename")))
        if action == "restore":
            return self._restore(slot, str(body.get("filename")))
        if action == "erase":
            erased, slot.prompt = len(slot.prompt), []
            return {"id_slot": slot.id, "n_erased": erased}
        raise RequestError(400, "Invalid action", "invalid_request_error")

    async def _save(self, slot: HeldSlot, name: str) -> JsonObject:
        path = Path(self._folder or "") / name
        half = _HEAD + b"half of it"
        if self._faults.slot_files in {"die", "full"}:
            path.write_bytes(half)
        if self._faults.slot_files == "die":
            self._end()
        await asyncio.sleep(self._faults.save_delay)
        if self._faults.slot_files == "full":
            raise RequestError(500, "Unable to save slot", "server_error")
        words = list(slot.prompt)
        data = _HEAD + json.dumps(words).encode()
        data += b"\0" * max(0, _BYTES_PER_TOKEN * len(words) - len(data))
        path.write_bytes(half if self._faults.slot_files == "short" else data)
        said = {"n_saved": len(words), "n_written": len(data), "timings": {"save_ms": 1.0}}
        return {"id_slot": slot.id, "filename": name, **said}

    def _restore(self, slot: HeldSlot, name: str) -> JsonObject:
        path = Path(self._folder or "") / name
        try:
            data = path.read_bytes()
            words = json.loads(data.removeprefix(_HEAD).rstrip(b"\0"))
        except (OSError, ValueError):
            slot.prompt = []
            why = "Unable to restore slot: No available space in KV cache or invalid slot save file"
            raise RequestError(400, why, "invalid_request_error") from None
        if self._faults.slot_files != "no_restore":
            slot.prompt = [str(word) for word in words]
        said = {"n_restored": len(words), "n_read": path.stat().st_size}
        return {"id_slot": slot.id, "filename": name, **said, "timings": {"restore_ms": 1.0}}
