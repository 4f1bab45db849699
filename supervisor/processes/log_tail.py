"""The end of a process's output: lines for those who listen, the last bytes for those who come later."""

from __future__ import annotations

import codecs
import re
import time
from collections.abc import Callable

# A flood costs counting only: past this much in one window, lines are neither decoded nor returned.
WINDOW_SECONDS = 0.1
WINDOW_BYTES = 2**20
WINDOW_LINES = 2000

_ANSI = re.compile(
    r"\x1b(?:"
    r"\[[0-?]*[ -/]*[@-~]"  # CSI: colours, cursor
    r"|\][^\x07\x1b]*(?:\x07|\x1b\\)"  # OSC: titles, links
    r"|[ -/]+[0-~]"  # character sets
    r"|[0-Z\\-~]"  # two-character sequences
    r")"
)
# What is left of control characters would move a reader's cursor or end a line of the log; a tab is harmless.
_CONTROL = re.compile("[\x00-\x08\x0a-\x1f\x7f-\x9f\u2028\u2029]")


class LogTail:
    r"""Cuts a byte stream into lines and keeps its last bytes; pure but for the reading of ``now``.

    A line ends at ``\n``, ``\r`` (progress bars) or ``\r\n``, however the bytes were chunked. Bytes that are not UTF-8
    are replaced, terminal codes are taken out, and a line over ``max_line`` bytes is cut and says so.

    Attributes:
        line_count: lines completed so far.
        byte_count: bytes fed so far.
        skipped_lines: lines that were counted in a flood and returned by no ``feed``; ``lines`` may still have them.
    """

    def __init__(
        self, max_bytes: int = 65536, max_line: int = 4096, *, now: Callable[[], float] = time.monotonic
    ) -> None:
        self.line_count = 0
        self.byte_count = 0
        self.skipped_lines = 0
        self._max_bytes = max_bytes
        self._max_line = max_line
        self._now = now
        self._tail = bytearray()
        self._tail_starts_inside = False
        self._head = bytearray()  # the unfinished line, its first max_line bytes
        self._length = 0  # and how long it really is
        self._after_cr = False
        self._window_start = float("-inf")
        self._window_bytes = 0
        self._window_lines = 0

    def feed(self, data: bytes) -> list[str]:
        """Take the next bytes; the lines that they complete, or none in a flood."""
        if not data:
            return []
        self.byte_count += len(data)
        self._keep(data)
        if self._after_cr and data.startswith(b"\n"):
            data = data[1:]
            self._after_cr = False
            if not data:
                return []
        self._after_cr = data.endswith(b"\r")
        ends = data.count(b"\n")
        if returns := data.count(b"\r"):
            ends += returns - data.count(b"\r\n")
        self.line_count += ends
        if self._is_flood(len(data), ends):
            self._skip(data, ends)
            return []
        return self._split(data)

    @property
    def unfinished(self) -> str:
        """The line that is being written, as far as it has come; a progress bar's is ended only by the next."""
        return _render(bytes(self._head), self._length)

    def close(self) -> list[str]:
        """The unfinished last line, when the stream has ended."""
        if not self._length:
            return []
        self.line_count += 1
        return [self._take()]

    def lines(self, count: int) -> tuple[str, ...]:
        """The last ``count`` lines that the kept bytes hold, an unfinished one included, oldest first."""
        parts = bytes(self._tail).splitlines()
        if self._tail_starts_inside and len(parts) > 1:
            del parts[0]  # its beginning is gone
        return tuple(_render(part[: self._max_line], len(part)) for part in parts[-count:]) if count > 0 else ()

    def _keep(self, data: bytes) -> None:
        self._tail += data[-self._max_bytes :]
        excess = len(self._tail) - self._max_bytes
        if excess > 0 or len(data) > self._max_bytes:
            # Whether the cut falls on a line's border is not looked up: at worst one whole line is dropped.
            self._tail_starts_inside = True
            del self._tail[: max(0, excess)]

    def _is_flood(self, size: int, ends: int) -> bool:
        now = self._now()
        if now - self._window_start >= WINDOW_SECONDS:
            self._window_start, self._window_bytes, self._window_lines = now, 0, 0
        self._window_bytes += size
        self._window_lines += ends
        return self._window_bytes > WINDOW_BYTES or self._window_lines > WINDOW_LINES

    def _skip(self, data: bytes, ends: int) -> None:
        self.skipped_lines += ends
        rest = data[max(data.rfind(b"\n"), data.rfind(b"\r")) + 1 :]
        if ends:
            self._head.clear()
            self._length = 0
        self._append(rest)

    def _split(self, data: bytes) -> list[str]:
        if not self._length and (plain := _plain_lines(data, self._max_line)) is not None:
            return plain
        lines = []
        for part in data.splitlines(keepends=True):
            body = part.rstrip(b"\r\n")
            self._append(body)
            if len(body) < len(part):
                lines.append(self._take())
        return lines

    def _append(self, body: bytes) -> None:
        room = self._max_line - len(self._head)
        if room > 0:
            self._head += body[:room]
        self._length += len(body)

    def _take(self) -> str:
        line = _render(bytes(self._head), self._length)
        self._head.clear()
        self._length = 0
        return line


def _plain_lines(data: bytes, max_line: int) -> list[str] | None:
    """The lines of data that is as engines mostly write it: whole lines of plain characters; None: it is not."""
    if not data.endswith(b"\n") or not data.isascii():
        return None
    lines = data[:-1].decode("ascii").split("\n")
    if not "".join(lines).replace("\t", "").isprintable() or max(map(len, lines)) > max_line:
        return None
    return lines


def _render(head: bytes, length: int) -> str:
    """Text of a line that begins with ``head`` and has ``length`` bytes in all."""
    cut = length - len(head)
    # A decoder that is not told "final" keeps back a character whose other bytes were cut off.
    text = codecs.utf_8_decode(head, "replace", not cut)[0]
    if not text.isprintable():
        text = _CONTROL.sub("", _ANSI.sub("", text))
    return f"{text} … [{cut} bytes cut]" if cut else text
