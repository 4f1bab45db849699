"""Which stop string ended an answer: read beside the way of the frames, for APIs that name it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from supervisor.gateway.translate.sse import data_of
from supervisor.gateway.translate.watched import Picker


class Stopped(Protocol):
    """Who keeps what was read."""

    stopped_by: str | None


class StopWatch:
    """Picks like the one that it stands before, and keeps the stop string where a frame has it.

    Args:
        passing: None: only ``look`` is used.
        stop_string: the adapter's reading of a frame's data.
        kept: where it is kept, before the frame is picked.
    """

    __slots__ = ("_kept", "_passing", "_stop_string")

    def __init__(self, passing: Picker | None, stop_string: Callable[[bytes], str | None], kept: Stopped) -> None:
        self._passing = passing
        self._stop_string = stop_string
        self._kept = kept

    @property
    def done(self) -> bool:
        """As the picker behind it."""
        return self._passing is not None and self._passing.done

    @property
    def error(self) -> bytes | None:
        """As the picker behind it."""
        return None if self._passing is None else self._passing.error

    def pick(self, frames: list[bytes]) -> bytes:
        """The bytes for the client, made by the picker behind it."""
        self.look(frames)
        return b"" if self._passing is None else self._passing.pick(frames)

    def look(self, frames: list[bytes]) -> None:
        """Keep the stop string, if one of the frames names it; what can't be read says nothing."""
        for frame in frames:
            data = data_of(frame)
            try:
                word = None if data is None else self._stop_string(data)
            except ValueError:
                continue
            if word is not None:
                self._kept.stopped_by = word
