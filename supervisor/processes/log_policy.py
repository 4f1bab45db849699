"""What a model's log keeps: which lines of a flood, and when a file is full. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

# Below this a file would hold little more than its first line.
MIN_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class LogLimits:
    """How much is kept, and how fast it may come.

    Attributes:
        max_bytes: of both files of one model together.
        rate: bytes per second that are written for long.
        burst: bytes that may come at once before lines are left out.
    """

    max_bytes: int = 8 * 2**20
    rate: float = 2**20
    burst: int = 4 * 2**20

    def __post_init__(self) -> None:
        if self.max_bytes < MIN_BYTES:
            raise ValueError(f"a log needs {MIN_BYTES} bytes at least, not {self.max_bytes}")

    @property
    def file_bytes(self) -> int:
        """Of each of the two files."""
        return self.max_bytes // 2


class FloodGate:
    """Lets ``rate`` bytes a second through, and ``burst`` at once.

    Once shut, it stays shut until a quarter of the burst may pass: what is left out is then one piece with one line
    that says so, not every other line. Times are monotonic seconds and never read here.
    """

    def __init__(self, rate: float, burst: float) -> None:
        self._rate = rate
        self._burst = burst
        self._level = burst
        self._at = float("-inf")
        self._shut = False

    def admits(self, cost: int, now: float) -> bool:
        """Whether a line of ``cost`` bytes may pass; if so, it is counted."""
        if not self.is_open(now):
            return False
        if cost > self._level:
            self._shut = True
            return False
        self._level -= cost
        return True

    def is_open(self, now: float) -> bool:
        """Whether a flood is over, or there was none."""
        if now > self._at:
            self._level = min(self._burst, self._level + (now - self._at) * self._rate)
            self._at = now
        if self._shut and self._level >= self._burst / 4:
            self._shut = False
        return not self._shut


@dataclass(frozen=True, slots=True)
class Chunk:
    """Whole lines of one launch, in order.

    Attributes:
        head: the line that begins a file in which they come first.
        opens: they begin with the launch's own first line, which says what ``head`` does.
    """

    head: bytes
    opens: bool
    data: bytes


@dataclass(frozen=True, slots=True)
class Append:
    """One write: to the file as it is, or (``rotate``) to a new one after the full one was moved aside.

    ``lines`` counts those of the chunk, without its head.
    """

    rotate: bool
    data: bytes
    lines: int


@dataclass(frozen=True, slots=True)
class RotationPlan:
    """Cuts lines into files of at most ``file_bytes`` each; a line is never cut."""

    file_bytes: int

    def appends(self, size: int, chunks: Sequence[Chunk]) -> tuple[Append, ...]:
        """The writes that add ``chunks`` to a file of ``size`` bytes.

        A line that fits into no file is left out.
        """
        plan: list[Append] = []
        rotate = False
        for chunk in chunks:
            start = 0
            while start < len(chunk.data):
                head = chunk.head if size == 0 and not (chunk.opens and start == 0) else b""
                end = _last_line_end(chunk.data, start, self.file_bytes - size - len(head))
                if end > start:
                    data = head + chunk.data[start:end]
                    plan.append(Append(rotate, data, chunk.data.count(b"\n", start, end)))
                    rotate, size, start = False, size + len(data), end
                elif size:
                    rotate, size = True, 0
                else:
                    start = _line_end(chunk.data, start)
        return tuple(plan)


def _last_line_end(data: bytes, start: int, room: int) -> int:
    if len(data) - start <= room:
        return len(data)
    return data.rfind(b"\n", start, start + room) + 1 if room > 0 else start


def _line_end(data: bytes, start: int) -> int:
    return data.find(b"\n", start) + 1 or len(data)
