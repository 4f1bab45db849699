"""What engines say and are told of conversations that their slots hold: pinned, saved to files, restored."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

if TYPE_CHECKING:
    from engines.contract import LaunchPlan


@dataclass(frozen=True, slots=True)
class SlotCall:
    """A POST to the engine: its path with the query, and its body."""

    path: str
    body: bytes


@dataclass(frozen=True, slots=True)
class SlotAnswer:
    """What an engine answered to a ``SlotCall``.

    Attributes:
        done: it says that it did what it was asked.
        tokens: how many the slot holds, or held; None: it did not say.
        size: bytes of the file; None: it did not say.
        never: it can't do this in this launch at all: it need not be asked again.
        why: its own words where it did not.
    """

    done: bool
    tokens: int | None = None
    size: int | None = None
    never: bool = False
    why: str = ""


@dataclass(frozen=True, slots=True)
class PromptRead:
    """A first report of a prompt: its tokens, and how many of them the slot held already."""

    total: int
    cached: int


class Slots(Protocol):
    """An engine's slots as they are told which conversation they hold. Stateless, pure.

    ``finds_itself``: the engine keeps conversations by its own means, in memory and on disk; it is only listened to.
    """

    finds_itself: ClassVar[bool]
    uses_path: ClassVar[str | None]
    """Where ``uses`` are told; None: nowhere."""

    def pinned(self, payload: bytes, slot: int) -> bytes:
        """A generation's body, sent to this very slot."""
        ...

    def may_pin(self, plan: LaunchPlan) -> bool:
        """Whether the launch has the slots that its plan says, so that one can be named."""
        ...

    def keeps_text(self, body: Mapping[str, Any]) -> bool:
        """Whether what the slot computes of this body is that of its text alone, and so may be used again."""
        ...

    def prompt_read(self, data: bytes) -> PromptRead | None:
        """What a progress report says of the prompt; None: it is none."""
        ...

    def uses(self, body: bytes) -> Mapping[int, object]:
        """From an answer of ``uses_path``: for each slot what is another after each use; empty if it can't be read."""
        ...

    def save(self, slot: int, name: str) -> SlotCall:
        """Write what the slot holds to a file in the folder of the launch."""
        ...

    def restore(self, slot: int, name: str) -> SlotCall:
        """Have the slot hold what is in a file of that folder."""
        ...

    def read_answer(self, status: int, body: bytes) -> SlotAnswer:
        """What an answer to either means."""
        ...

    def files_folder(self, plan: LaunchPlan) -> Path | None:
        """Where the launch writes its files; None: it writes none."""
        ...

    def fingerprint(self, plan: LaunchPlan) -> tuple[str, ...] | None:
        """All that a file depends on but the content of ``plan``'s files; None: no file of this launch is of use.

        A word of it that is the path of a file stands for that file.
        """
        ...
