"""Walks the values of a GGUF header, in bounded memory and time, whatever the bytes say.

The file is read through a small window with ``pread``, not mapped: a file that shrinks or a disk that fails while a
map is read kills the process with SIGBUS, and a bad model file must never do that.
"""

from __future__ import annotations

import os
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from engines.contract import ModelFileError

Scalar = str | int | float | bool

_WINDOW_BYTES = 2**20
_LONGEST_KEY = 1024  # ggml itself ends tensor names at 64 bytes
_KEPT_STRING_BYTES = 1024
_KEPT_ELEMENTS = 2**16  # of all small number arrays together
_KEPT_PER_ARRAY = 1024  # engines know at most 512 layers
_STEPS = 2**23  # strings and nested arrays walked in one header: the largest vocabularies have under 2**20
_DEEPEST = 4
_NESTED_STEPS = 8  # a nested array takes about as long as this many strings
_LONGEST_HEADER = 2**28  # real ones are under 2**24; also bounds what is read of a hostile file

_STRING = 8
_ARRAY = 9
_BOOL = 7
_BEYOND = (struct.error, IndexError, OverflowError)  # of reading behind a window, or at a place beyond all files
_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")
_ARRAY_HEAD = struct.Struct("<IQ")
# Value type to its struct; a bool is one byte.
_NUMBERS = {
    number: struct.Struct("<" + code)
    for number, code in zip((0, 1, 2, 3, 4, 5, 6, 7, 10, 11, 12), "BbHhIifBQqd", strict=True)
}


@dataclass(frozen=True, slots=True)
class HeaderArray:
    """An array of a header: how many elements, and the elements where they are few numbers."""

    count: int
    values: tuple[int | float | bool, ...] | None


class HeaderCursor:
    """A place in the header of an open file.

    Attributes:
        name: file name for messages.
        size: bytes of the file.
    """

    def __init__(self, fd: int, size: int, path: Path) -> None:
        self.name = path.name
        self.size = size
        self._fd = fd
        self._base = 0  # where the window lies in the file
        self._window = b""
        self._place = 0  # in the window; may lie behind its end after a skip
        self._steps = _STEPS
        self._kept_elements = _KEPT_ELEMENTS

    @property
    def position(self) -> int:
        """Byte of the file that is read next."""
        return self._base + self._place

    def fail(self, reason: str) -> NoReturn:
        """Say what is wrong with the file.

        Raises:
            ModelFileError: always.
        """
        raise ModelFileError(f"{self.name} {reason}")

    def take(self, count: int) -> bytes:
        """The next ``count`` bytes, a few KiB at most."""
        if self._place + count > len(self._window):
            self._move_window(count)
        start = self._place
        self._place += count
        return self._window[start : self._place]

    def skip(self, count: int) -> None:
        """Pass over ``count`` bytes without reading them."""
        self.expect(count)
        self._place += count

    def expect(self, count: int) -> None:
        """Fail unless ``count`` more bytes are in the file."""
        end = self.position + count
        if end > _LONGEST_HEADER:
            self.fail(f"is damaged: its header claims to be {end} bytes long or more. Fetch it again.")
        if end > self.size:
            self.fail(f"is cut short: it is {self.size} bytes, its header alone needs at least {end}. Fetch it again.")

    def u32(self) -> int:
        """The next 4 bytes as a number."""
        value: int = _U32.unpack(self.take(4))[0]
        return value

    def u64(self) -> int:
        """The next 8 bytes as a number."""
        value: int = _U64.unpack(self.take(8))[0]
        return value

    def key(self) -> str:
        """The next string, a name."""
        length = self.u64()
        self.expect(length)
        if length > _LONGEST_KEY:
            self.fail(f"is damaged: a name in its header claims {length} bytes. Fetch it again.")
        return self.take(length).decode("utf-8", "replace")

    def value(self) -> Scalar | HeaderArray:
        """The next typed value; of a long string only the first KiB."""
        kind = self.u32()
        if number := _NUMBERS.get(kind):
            raw = number.unpack(self.take(number.size))[0]
            return bool(raw) if kind == _BOOL else raw
        if kind == _STRING:
            return self._string()
        if kind != _ARRAY:
            self.fail(f"has a value of unknown type {kind} in its header: it is damaged, or made for a newer reader.")
        return self._array(1)

    def _string(self) -> str:
        length = self.u64()
        self.expect(length)
        kept = self.take(min(length, _KEPT_STRING_BYTES))
        self.skip(length - len(kept))
        return kept.decode("utf-8", "replace")

    def _array(self, depth: int) -> HeaderArray:
        kind, count = _ARRAY_HEAD.unpack(self.take(_ARRAY_HEAD.size))
        if number := _NUMBERS.get(kind):
            self.expect(count * number.size)
            return HeaderArray(count, self._numbers(kind, number, count))
        if kind == _STRING:
            self._spend(count)
            self._skip_strings(count)
        elif kind == _ARRAY and depth < _DEEPEST:
            self._spend(count * _NESTED_STEPS)
            self.expect(count * _ARRAY_HEAD.size)
            for _ in range(count):
                self._array(depth + 1)
        else:
            self.fail(f"has an array of unknown type {kind} in its header: it is damaged, or made for a newer reader.")
        return HeaderArray(count, None)

    def _numbers(self, kind: int, number: struct.Struct, count: int) -> tuple[int | float | bool, ...] | None:
        if count > _KEPT_PER_ARRAY or count > self._kept_elements:
            self.skip(count * number.size)
            return None
        self._kept_elements -= count
        values = struct.unpack(f"<{count}{number.format[1:]}", self.take(count * number.size))
        return tuple(map(bool, values)) if kind == _BOOL else values

    def _skip_strings(self, count: int) -> None:
        """Pass over ``count`` strings; the inner loop is all the time that a large vocabulary takes."""
        self.expect(count * 8)
        length_at = _U64.unpack_from
        while count:
            self._move_window(8)
            window, place, passed = self._window, self._place, 0
            # No look at the window's end before each string: that would take as long as the rest of the loop.
            try:
                for passed in range(count):  # noqa: B007  how many were passed when one lay beyond the window
                    place += 8 + length_at(window, place)[0]
                passed = count
            except _BEYOND:
                pass
            count -= passed
            self._place = place
            self.expect(0)

    def _spend(self, steps: int) -> None:
        self._steps -= steps
        if self._steps < 0:
            self.fail("is damaged: the arrays in its header claim millions of entries. Fetch it again.")

    def _move_window(self, count: int) -> None:
        """Begin the window at the present place and have at least ``count`` bytes in it."""
        if self._place + count <= len(self._window):
            return
        self.expect(count)
        self._base, self._place, self._window = self.position, 0, b""
        while len(self._window) < count:
            piece = os.pread(self._fd, max(_WINDOW_BYTES, count), self._base + len(self._window))
            if not piece:
                self.fail("was cut while it was read. Fetch it again.")
            self._window += piece
