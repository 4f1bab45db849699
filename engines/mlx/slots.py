"""The MLX server finds conversations itself, in memory and in the folder that it is given: it is only listened to."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from engines.mlx.generation import is_progress
from engines.slots import PromptRead, SlotAnswer, SlotCall

if TYPE_CHECKING:
    from engines.contract import LaunchPlan

_OK = 200


class MlxSlots:
    """Implements ``Slots`` for the MLX server."""

    finds_itself: ClassVar[bool] = True
    uses_path: ClassVar[str | None] = None

    def pinned(self, payload: bytes, _slot: int) -> bytes:
        """As it is: any answer can go on from any prefix."""
        return payload

    def may_pin(self, _plan: LaunchPlan) -> bool:
        """There is nothing to be pinned to."""
        return False

    def keeps_text(self, _body: Mapping[str, Any]) -> bool:
        """The server knows itself what it can use again."""
        return True

    def prompt_read(self, data: bytes) -> PromptRead | None:
        """As llama-server reports progress."""
        if not is_progress(data):
            return None
        try:
            progress = json.loads(data)["prompt_progress"]
            return PromptRead(int(progress["total"]), int(progress["cache"]))
        except (ValueError, KeyError, TypeError):
            return None

    def uses(self, _body: bytes) -> Mapping[int, object]:
        """None: any answer can go on from any prefix."""
        return {}

    def save(self, slot: int, name: str) -> SlotCall:
        """All that it keeps, by its own names: ``POST /admin/cache``."""
        del slot, name
        return SlotCall("/admin/cache", b'{"action":"flush"}')

    def restore(self, slot: int, name: str) -> SlotCall:
        """It has no such call: it looks in its files whenever a prompt comes.

        Raises:
            NotImplementedError: always; nobody asks, as there is no folder.
        """
        raise NotImplementedError

    def read_answer(self, status: int, body: bytes) -> SlotAnswer:
        """``{"saved": N, ...}``: prompts that were written now, and were not on the disk yet."""
        try:
            document = json.loads(body)
        except ValueError:
            document = None
        saved = document.get("saved") if isinstance(document, dict) else None
        if status != _OK or not isinstance(saved, int):
            return SlotAnswer(done=False, why=f"status {status}")
        return SlotAnswer(done=saved > 0, why="" if saved > 0 else "there was nothing new")

    def files_folder(self, _plan: LaunchPlan) -> Path | None:
        """None that others may write to or read."""
        return None

    def fingerprint(self, _plan: LaunchPlan) -> tuple[str, ...] | None:
        """Its files are its own."""
        return None
