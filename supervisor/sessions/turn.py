"""One request's turn in a slot: sent there, and told what the slot really had of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic

from engines.slots import PromptRead, Slots

# A slot that should have had most of a prompt, and had less than this share of what was expected, had none of it.
_MISSED = 0.25
# One that was not expected to have anything, and had most of the prompt, found it by itself.
_MOST = 0.5

HIT, RESTORED, PREFIX, COLD = "hit", "restored", "prefix", "cold"


class NoTurn:
    """A request that is not told where to go."""

    __slots__ = ()

    def pinned(self, payload: bytes) -> bytes:
        """As it is."""
        return payload

    def heard(self, progress: bytes | None, *, content: bool) -> None:
        """Nothing to learn."""

    def told(self, total: int, cached: int, seconds: float | None) -> None:
        """Nothing to learn."""

    def end(self, *, answered: bool) -> None:
        """Nothing to keep."""


@dataclass(frozen=True, slots=True)
class TurnEnd:
    """What a turn has shown.

    Attributes:
        read: the first report of the prompt; None: the engine did not come so far.
        seconds: from it to the first content; None: it did not come.
        answered: the engine has said all, and is idle.
        missed: what was expected in the slot was not there.
    """

    read: PromptRead | None
    seconds: float | None
    answered: bool
    missed: bool


class Turn:
    """A request that is sent to one slot.

    Attributes:
        outcome: ``hit``, ``restored``, ``prefix`` or ``cold``: what is expected, and once the engine has told, what is.
    """

    def __init__(
        self,
        slots: Slots,
        slot: int,
        expected: tuple[str, int],
        tell: Callable[[str], None],
        ended: Callable[[Turn, TurnEnd], None],
    ) -> None:
        """``expected``: the outcome, and the tokens that the slot should have of the prompt."""
        self.outcome, self._expected = expected
        self._slots = slots
        self._slot = slot
        self._tell = tell
        self._ended = ended
        self._read: PromptRead | None = None
        self._missed = False
        self._seconds: float | None = None
        self._began = 0.0
        self._content_at: float | None = None
        tell(self.outcome)

    def pinned(self, payload: bytes) -> bytes:
        """The body, sent to the slot."""
        return self._slots.pinned(payload, self._slot)

    def heard(self, progress: bytes | None, *, content: bool) -> None:
        """What came so far: the data of the first progress report, and whether there is content; costs little."""
        if progress is not None and self._read is None:
            self._read = self._slots.prompt_read(progress)
            self._began = monotonic()
            if self._read is not None:
                self._judge(self._read)
        if content and self._content_at is None:
            self._content_at = monotonic()

    def told(self, total: int, cached: int, seconds: float | None) -> None:
        """The same at the end of an answer that came without reports; ``seconds``: for what was not cached."""
        if self._read is None:
            self._read, self._seconds = PromptRead(total, cached), seconds
            self._judge(self._read)

    def end(self, *, answered: bool) -> None:
        """The request is over; ``answered``: the engine has said all."""
        read, content_at = self._read, self._content_at
        seconds = self._seconds
        if read is not None and content_at is not None:
            seconds = content_at - self._began
        self._ended(self, TurnEnd(read, seconds, answered, self._missed))

    def _judge(self, read: PromptRead) -> None:
        outcome = self.outcome
        if outcome != COLD and read.cached < _MISSED * min(self._expected, read.total):
            outcome, self._missed = COLD, True
        elif outcome == COLD and read.cached >= _MOST * read.total:
            outcome = PREFIX  # by the engine's own cache
        if outcome != self.outcome:
            self.outcome = outcome
            self._tell(outcome)
