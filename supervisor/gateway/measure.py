"""What one generation took: seconds to its first token, seconds for each, and the tokens that the engine counted."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import orjson

from supervisor.clock import Clock
from supervisor.gateway.token_meter import TokenMeter
from supervisor.gateway.translate.sse import data_of

_TIMINGS = b'"timings"'


@dataclass(frozen=True, slots=True)
class Worked:
    """The figures of one generation; None: not known.

    Attributes:
        prompt_tokens: of the whole prompt, those among them that were cached too.
        token_seconds: the mean between two tokens.
        prompt_seconds: for the tokens of the prompt that were not cached, as the engine counted.
    """

    prompt_tokens: int | None
    cached_tokens: int | None
    generated_tokens: int | None
    first_token_seconds: float | None
    token_seconds: float | None
    prompt_seconds: float | None = None


NOTHING = Worked(None, None, None, None, None)


class Measure:
    """Told of each read of an engine's stream; reads one frame of it at the end, and none before."""

    __slots__ = ("_chunks", "_clock", "_first", "_last", "_meter", "_model", "_started", "_timings", "_whole")

    def __init__(self, model: str, started: float, clock: Clock, meter: TokenMeter) -> None:
        """``started``: the request's arrival, in the clock's monotonic seconds."""
        self._model = model
        self._clock = clock
        self._meter = meter
        self._started = started
        self._first: float | None = None
        self._last = 0.0
        self._chunks = 0
        self._timings = b""
        self._whole: Worked | None = None

    def heard(self, frames: list[bytes]) -> None:
        """Frames of content have come, in one read; what is not content is not told here."""
        self._last = self._clock.monotonic()
        if self._first is None:
            self._first = self._last
        self._chunks += len(frames)
        self._meter.add(self._model, len(frames))
        for frame in frames:
            if _TIMINGS in frame:
                self._timings = frame

    def whole(self, timings: object) -> Worked:
        """The whole answer has come, with these ``timings`` of the engine's; what they don't tell is not known."""
        said = timings if isinstance(timings, dict) else {}
        read, cached, written = (_count(said, key) for key in ("prompt_n", "cache_n", "predicted_n"))
        wrote = _seconds(said, "predicted_ms")
        first = None if wrote is None else self._clock.monotonic() - wrote - self._started
        self._meter.add(self._model, written or 0)
        self._whole = Worked(
            prompt_tokens=None if read is None else read + (cached or 0),
            cached_tokens=cached,
            generated_tokens=written,
            first_token_seconds=first,
            token_seconds=None if wrote is None or not written else wrote / written,
            prompt_seconds=_seconds(said, "prompt_ms"),
        )
        return self._whole

    def result(self) -> Worked | None:
        """The figures; None: the engine wrote nothing."""
        if self._whole is not None or self._first is None:
            return self._whole
        timings = _timings_of(self._timings)
        read, cached, written = (_count(timings, key) for key in ("prompt_n", "cache_n", "predicted_n"))
        worked = Worked(
            prompt_tokens=None if read is None else read + (cached or 0),
            cached_tokens=cached,
            generated_tokens=written,
            first_token_seconds=self._first - self._started,
            token_seconds=self._mean(timings, written),
            prompt_seconds=_seconds(timings, "prompt_ms"),
        )
        if self._timings:
            self._whole = worked  # nothing follows an engine's figures that would change them
        return worked

    def _mean(self, timings: dict[str, Any], written: int | None) -> float | None:
        took = _seconds(timings, "predicted_ms")
        if written and took is not None:
            return took / written
        gaps = self._chunks - 1
        return (self._last - (self._first or 0.0)) / gaps if gaps > 0 else None


def _timings_of(frame: bytes) -> dict[str, Any]:
    try:
        chunk = orjson.loads(data_of(frame) or b"null")
    except orjson.JSONDecodeError:
        return {}
    found = chunk.get("timings") if isinstance(chunk, dict) else None
    return found if isinstance(found, dict) else {}


def _seconds(timings: dict[str, Any], key: str) -> float | None:
    value = timings.get(key)
    if isinstance(value, int | float) and math.isfinite(value) and value > 0:
        return float(value) / 1000
    return None


def _count(timings: dict[str, Any], key: str) -> int | None:
    value = timings.get(key)
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None
