"""What a stream's time went into, beside the counts of its ``usage``: only that chunk is read, all others pass."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import orjson

from supervisor.gateway.translate.sse import data_of
from supervisor.gateway.translate.watched import Picker

# Engines write it as an object's key; in a text its quotes would be escaped.
_USAGE = b'"usage":{'


class Timed:
    """Picks like the one that it stands before, from frames whose usage has the timings too.

    Args:
        timing: what there is to say, from the engine's timings.
    """

    __slots__ = ("_passing", "_timing")

    def __init__(self, passing: Picker, timing: Callable[[Any], dict[str, Any]]) -> None:
        self._passing = passing
        self._timing = timing

    @property
    def done(self) -> bool:
        """As the picker behind it."""
        return self._passing.done

    @property
    def error(self) -> bytes | None:
        """As the picker behind it."""
        return self._passing.error

    def pick(self, frames: list[bytes]) -> bytes:
        """The bytes for the client."""
        return self._passing.pick([self._timed(frame) if _USAGE in frame else frame for frame in frames])

    def _timed(self, frame: bytes) -> bytes:
        data = data_of(frame)
        try:
            chunk = orjson.loads(data) if data is not None else None
        except orjson.JSONDecodeError:
            return frame
        if not isinstance(chunk, dict) or not isinstance(chunk.get("usage"), dict) or "error" in chunk:
            return frame
        chunk["usage"] |= self._timing(chunk.get("timings"))
        return b"data: " + orjson.dumps(chunk) + b"\n\n"
