"""How far a picture is, by the signs of the engine's log. Pure but for the reading of ``now``."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from engines.pictures import PictureSign, Stage


@dataclass(frozen=True, slots=True)
class Progress:
    """One state of a picture.

    Attributes:
        state: ``queued``, ``loading``, ``starting``, ``drawing`` or ``decoding``.
        position: in the queue, from 1.
        step, steps: of the picture that is being drawn.
        image: which of several, from 1.
        step_seconds: measured, or by the engine's word.
    """

    state: str
    position: int | None = None
    step: int = 0
    steps: int = 0
    image: int = 1
    step_seconds: float | None = None

    def document(self) -> dict[str, Any]:
        """As events and jobs show it."""
        shown: dict[str, Any] = {"state": self.state}
        if self.state == "queued":
            shown["position"] = self.position
        if self.state in {"drawing", "decoding"}:
            shown |= {"step": self.step, "steps": self.steps, "image": self.image}
        if self.state == "drawing" and self.step_seconds:
            shown |= {"seconds_per_step": round(self.step_seconds, 4), "eta_seconds": self.rest}
        return shown

    @property
    def rest(self) -> float | None:
        """Seconds that the steps of this picture still take; None: not known."""
        return None if self.step_seconds is None else round((self.steps - self.step) * self.step_seconds, 3)


class Tracker:
    """Reads one picture's signs, and tells ``changed`` of each new state.

    Attributes:
        progress: now.
        asked_bytes: what the engine could not get; None: it did not say, or lacked nothing.
        lacked: it ran out of memory.
        applied: tensors of LoRAs that it applied, and all there were.
        over: it has said that the pictures are done, or can't be: what is left is to ask for them.
        at_end: called when it says so.
        heard_at: monotonic second of its last sign.
    """

    def __init__(
        self,
        read: Callable[[str], PictureSign | None],
        changed: Callable[[Progress], None],
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self.progress = Progress("starting")
        self.asked_bytes: int | None = None
        self.lacked = self.over = False
        self.applied: tuple[int, int] | None = None
        self.heard_at = now()
        self.at_end: Callable[[], None] | None = None
        self._read = read
        self._changed = changed
        self._now = now
        self._drawing = False
        self._image = 1
        self._stepped_at: float | None = None
        self._decoding_at: float | None = None
        self._last: PictureSign | None = None

    def line(self, line: str) -> None:
        """A line that the engine has written, or begun."""
        sign = self._read(line)
        if sign is not None:
            self._note(sign)

    @property
    def silent(self) -> float:
        """Seconds since the engine last told anything new."""
        return self._now() - self.heard_at

    def rest(self, decode_seconds: float | None) -> float | None:
        """Seconds that the engine still needs, decoding included; None: not known."""
        if self.progress.state == "decoding":
            spent = 0.0 if self._decoding_at is None else self._now() - self._decoding_at
            return None if decode_seconds is None else max(0.0, decode_seconds - spent)
        rest = self.progress.rest
        return None if rest is None or decode_seconds is None else rest + decode_seconds

    @property
    def decode_seconds(self) -> float | None:
        """Time since it began to decode; None: it has not."""
        return None if self._decoding_at is None else self._now() - self._decoding_at

    def _note(self, sign: PictureSign) -> None:
        if sign != self._last:  # a bar that stands is read again and again
            self._last, self.heard_at = sign, self._now()
        if sign.stage is Stage.OUT_OF_MEMORY:
            self.lacked = True
            self.asked_bytes = max(sign.asked_bytes or 0, self.asked_bytes or 0) or None
            self._end()
        elif sign.stage is Stage.LORAS:
            self.applied = (sign.step, sign.steps)
        elif sign.stage is Stage.FINISHED:
            self._end()
        elif sign.stage is Stage.ENCODED:
            # From here on the bar is that of steps; before, files were loaded with it.
            self._drawing = True
            self._image = sign.image or self._image
        elif sign.stage is Stage.STEP and self._drawing:
            self._step(sign)
        elif sign.stage is Stage.DECODING:
            self._drawing = False
            self._decoding_at = self._now()
            was = self.progress
            self._show(Progress("decoding", None, was.steps, was.steps, self._image))

    def _end(self) -> None:
        self.over = True
        if self.at_end is not None:
            self.at_end()

    def _step(self, sign: PictureSign) -> None:
        last = self.progress
        if last.state == "drawing" and (last.step, last.steps, last.image) == (sign.step, sign.steps, self._image):
            return
        now, seconds = self._now(), sign.step_seconds
        # The engine's figure is that of its last step alone.
        if self._stepped_at is not None and last.step_seconds is not None and sign.step_seconds is not None:
            seconds = (last.step_seconds + sign.step_seconds) / 2
        self._stepped_at = now
        self._show(Progress("drawing", None, sign.step, sign.steps, self._image, seconds))

    def _show(self, progress: Progress) -> None:
        if progress != self.progress:
            self.progress = progress
            self._changed(progress)
