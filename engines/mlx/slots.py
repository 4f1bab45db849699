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
        """It has no such call.

        Raises:
            NotImplementedError: always; nobody asks, as there is no folder.
        """
        raise NotImplementedError

    def restore(self, slot: int, name: str) -> SlotCall:
        """As ``save``.

        Raises:
            NotImplementedError: always.
        """
        raise NotImplementedError

    def read_answer(self, status: int, _body: bytes) -> SlotAnswer:
        """None is expected."""
        return SlotAnswer(done=False, never=True, why=f"status {status}")

    def files_folder(self, _plan: LaunchPlan) -> Path | None:
        """None that others may write to or read."""
        return None

    def fingerprint(self, _plan: LaunchPlan) -> tuple[str, ...] | None:
        """Its files are its own."""
        return None
