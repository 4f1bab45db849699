"""One model's log as its launches see it: takes lines at once, within bounds, for ``LogFolder``'s task to write."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from supervisor.clock import Clock
from supervisor.events import StateFileUnusable
from supervisor.processes.log_disk import Written
from supervisor.processes.log_lines import (
    LaunchEnd,
    LaunchStart,
    LineWriter,
    Mark,
    continued_text,
    end_text,
    left_out_text,
    start_text,
)
from supervisor.processes.log_policy import Chunk, FloodGate, LogLimits

# More than this is written at once, so that a flood does not fill the memory first.
_HURRY_BYTES = 256 * 1024
# Beyond the burst, while the disk does not answer: for lines, and as much again for first and last lines of launches.
_SPARE_BYTES = 256 * 1024
# Stamp, mark and line end.
_LINE_EXTRA_BYTES = 28


class Bell(Protocol):
    """Calls the task that writes."""

    def ring(self) -> None:
        """There is something to write, soon."""
        ...

    def hurry(self) -> None:
        """At once."""
        ...


class LogFile:
    """Nothing here waits, touches the disk or raises; made by ``LogFolder.of``.

    Attributes:
        path: the newer of its two files.
    """

    def __init__(
        self,
        model_id: str,
        path: Path,
        limits: LogLimits,
        clock: Clock,
        clean: Callable[[str], str],
        bell: Bell,
    ) -> None:
        self.path = path
        self._model_id = model_id
        self._limits = limits
        self._clock = clock
        self._clean = clean
        self._bell = bell
        self._lines = LineWriter()
        self._gate = FloodGate(limits.rate, limits.burst)
        self._pending: list[tuple[bytes, bool, bytearray]] = []  # as in Chunk
        self._pending_bytes = 0
        self._head = self._render(Mark.CONTINUED, continued_text(model_id, None))
        self._skipped: Callable[[], int] = _none_skipped
        self._skipped_seen = 0
        self._skipped_before = 0
        self._left_out = 0
        self._lost = 0
        self._resumes = b""
        self._failed = False

    def started(self, start: LaunchStart, skipped: Callable[[], int] | None = None) -> None:
        """A launch begins: its lines follow.

        Args:
            start: what the first line says; ``pid`` None where no process came to be.
            skipped: counts lines that never came here, such as ``LogTail.skipped_lines``.
        """
        self._settle()
        self._skipped = skipped or _none_skipped
        self._skipped_seen = self._skipped_before = self._skipped()
        self._head = self._render(Mark.CONTINUED, continued_text(self._model_id, start.launch))
        self._add(Mark.STARTED, start_text(self._model_id, start), opens=True)

    def write_line(self, line: str) -> None:
        """Take one line of the engine's; in a flood it is only counted."""
        if self._pending_bytes >= self._limits.burst + _SPARE_BYTES or not self._gate.admits(
            len(line) + _LINE_EXTRA_BYTES, self._clock.monotonic()
        ):
            self._left_out += 1
            self._bell.ring()
            return
        self._settle()
        if not self._add(Mark.ENGINE, line):
            self._left_out += 1

    def write_lines(self, lines: Sequence[str]) -> None:
        """Take several lines of the engine's that came together."""
        if len(lines) > 1 and self._write_together(lines):
            return
        for line in lines:
            self.write_line(line)

    def _write_together(self, lines: Sequence[str]) -> bool:
        """The cheap way for plain lines; False: not taken, each is to be looked at by itself."""
        if self._missing() or self._pending_bytes >= self._limits.burst:
            return False
        text = "\n".join(lines)
        cleaned = self._clean(text)
        data = self._lines.render_plain(self._clock.wall(), lines) if cleaned == text else None
        if data is None or not self._gate.admits(len(data), self._clock.monotonic()):
            return False
        self._put(data)
        return True

    def ended(self, end: LaunchEnd) -> None:
        """A launch has ended; if a flood swallowed its last words, they are taken from ``end.log``."""
        missing = self._missing()
        self._settle()
        if missing:
            for line in end.log[-missing:]:
                self._add(Mark.ENGINE, line)
        self._add(Mark.ENDED, end_text(end))
        self._skipped = _none_skipped
        self._skipped_seen = self._skipped_before = 0
        self._head = self._render(Mark.CONTINUED, continued_text(self._model_id, None))
        self._bell.hurry()

    @property
    def unsettled(self) -> bool:
        """Whether there is something to write, or to say once a flood is over."""
        return bool(self._pending) or self._missing() > 0

    def take(self) -> list[Chunk]:
        """What is to be written now; a flood that is over is said in it."""
        skipped = self._skipped()
        if skipped == self._skipped_before and self._gate.is_open(self._clock.monotonic()):
            self._settle()
        self._skipped_before = skipped
        chunks = [Chunk(head, opens, bytes(data)) for head, opens, data in self._pending]
        self._pending = []
        self._pending_bytes = 0
        if chunks and self._lost:
            self._resumes = chunks[0].head + self._render(
                Mark.NOTE, left_out_text(self._lost, "the log could not be written")
            )
            chunks.insert(0, Chunk(b"", opens=True, data=self._resumes))
        return chunks

    def written(self, chunks: Sequence[Chunk], outcome: Written) -> StateFileUnusable | None:
        """Take note of what came of writing ``chunks``; an event when it is the first failure in a row."""
        if outcome.error is None:
            self._lost = 0
            self._failed = False
            return None
        lines = sum(chunk.data.count(b"\n") for chunk in chunks)
        resumes = self._resumes.count(b"\n") if self._lost else 0
        if outcome.lines >= resumes > 0:
            self._lost = 0
            resumes = 0
        self._lost += lines - max(outcome.lines, resumes)
        if self._failed:
            return None
        self._failed = True
        reason = outcome.error.strerror or str(outcome.error)
        return StateFileUnusable(str(self.path), f"log lines are dropped until it can be written again: {reason}")

    def _missing(self) -> int:
        """Lines that came after the last one that was taken, and are not there."""
        return self._left_out + self._skipped() - self._skipped_seen

    def _settle(self) -> None:
        missing = self._missing()
        if missing and self._add(Mark.NOTE, left_out_text(missing, "flood")):
            self._left_out = 0
            self._skipped_seen = self._skipped()

    def _add(self, mark: Mark, text: str, *, opens: bool = False) -> bool:
        # Cleaned now and not when written: a launch's key is known only while the launch lives.
        line = self._render(mark, self._clean(text))
        if self._pending_bytes + len(line) > self._limits.burst + 2 * _SPARE_BYTES:
            return False
        self._put(line, opens=opens)
        return True

    def _put(self, data: bytes, *, opens: bool = False) -> None:
        if opens or not self._pending:
            self._pending.append((self._head, opens, bytearray()))
        self._pending[-1][2].extend(data)
        self._pending_bytes += len(data)
        if self._pending_bytes > _HURRY_BYTES:
            self._bell.hurry()
        else:
            self._bell.ring()

    def _render(self, mark: Mark, text: str) -> bytes:
        return self._lines.render(self._clock.wall(), mark, text)


def _none_skipped() -> int:
    return 0
