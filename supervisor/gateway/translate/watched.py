"""Ways of an engine's stream that read its chunks: beside the way to the client, or into another API's events.

Both pick like ``PassThrough``, from which they differ only in what they make of a frame that passes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import orjson

from supervisor.gateway.translate.passing import PassThrough
from supervisor.gateway.translate.sse import DONE, data_of
from supervisor.gateway.translate.tool_calls import CallWatch

# Read like the engine's own error frame.
_NO_ANSWER = b'{"error": {"message": "it sent something that is no answer"}}'
_WRONG_SHAPE = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)


class Picker(Protocol):
    """Which bytes a client gets of an engine's frames, and when the stream is over; attributes as ``PassThrough``."""

    @property
    def done(self) -> bool: ...  # noqa: D102  said in the class

    @property
    def error(self) -> bytes | None: ...  # noqa: D102  said in the class

    def pick(self, frames: list[bytes]) -> bytes:
        """The bytes for the client; empty when nothing may be passed yet."""
        ...


class Events(Protocol):
    """Makes one API's events from a chat's chunks."""

    def feed(self, chunk: dict[str, Any]) -> bytes:
        """The events that this chunk makes.

        Raises:
            TypeError, ValueError, AttributeError, KeyError: it has not the shape of a chunk.
        """
        ...

    def progress(self, report: dict[str, Any]) -> None:
        """The engine's own report of how far it has read the prompt: ``total`` and ``cache`` in tokens."""
        ...

    def end(self) -> bytes:
        """The last events of an answer that is complete."""
        ...


Wrap = Callable[[PassThrough], Picker]


class _Reading:
    """The part that both ways share."""

    __slots__ = ("_passing", "_watch", "_wrong")

    def __init__(self, passing: PassThrough, watch: CallWatch | None) -> None:
        self._passing = passing
        self._watch = watch
        self._wrong: bytes | None = None

    @property
    def done(self) -> bool:
        """The engine said that its answer is complete."""
        return self._passing.done

    @property
    def error(self) -> bytes | None:
        """Data of the engine's error frame, or what stands for one that can't be read."""
        return self._wrong or self._passing.error

    def pick(self, frames: list[bytes]) -> bytes:
        """The bytes for the client; empty when nothing may be passed yet."""
        made: list[bytes] = []
        for frame in frames:
            passed = self._passing.pick([frame])
            try:
                if self._passing.done:
                    made.append(self._end(passed))
                elif passed:
                    made.append(self._make(passed))
                elif self._passing.error is None:
                    self._skip(frame)
            except _WRONG_SHAPE:
                self._wrong = _NO_ANSWER
            if self.done or self.error is not None:
                break
        return b"".join(made)

    def _skip(self, frame: bytes) -> None:
        """A frame that is not for the client."""

    def _make(self, frame: bytes) -> bytes:
        raise NotImplementedError

    def _end(self, frame: bytes) -> bytes:
        raise NotImplementedError

    def _chunk(self, frame: bytes) -> dict[str, Any] | None:
        data = data_of(frame)
        if data is None or data == DONE:
            return None
        chunk = orjson.loads(data)
        if chunk is not None and not isinstance(chunk, dict):
            raise TypeError("a chunk is an object")
        return chunk


class Watched(_Reading):
    """Passes frames as they are, and gives calls that stood in the text as calls before the answer ends."""

    def _make(self, frame: bytes) -> bytes:
        chunk = self._chunk(frame)
        instead = self._watch.see(chunk) if self._watch is not None and chunk is not None else None
        return frame if instead is None else b"".join(b"data: " + orjson.dumps(one) + b"\n\n" for one in instead)

    def _end(self, frame: bytes) -> bytes:
        return frame


class Translation(_Reading):
    """Makes another API's events from the chunks."""

    __slots__ = ("_events",)

    def __init__(self, passing: PassThrough, watch: CallWatch | None, events: Events) -> None:
        super().__init__(passing, watch)
        self._events = events

    def _make(self, frame: bytes) -> bytes:
        chunk = self._chunk(frame)
        if chunk is None:
            return b""
        instead = self._watch.see(chunk) if self._watch is not None else None
        return self._events.feed(chunk) if instead is None else b"".join(map(self._events.feed, instead))

    def _skip(self, frame: bytes) -> None:
        report = (self._chunk(frame) or {}).get("prompt_progress")
        if isinstance(report, dict):
            self._events.progress(report)

    def _end(self, frame: bytes) -> bytes:  # noqa: ARG002  the engine's [DONE] is no event of another API
        return self._events.end()
