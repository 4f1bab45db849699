"""How much of a prompt is read between two tokens of the answers that are being written. Pure."""

from __future__ import annotations

_LEAST = 16
_WEIGHT = 0.3


class Pace:
    """Learns how fast prompts are read, and cuts them so that answers are not held up.

    Args:
        step: tokens at once while no answer waits.
        pause: seconds that a piece may take while one does.
    """

    def __init__(self, step: int, pause: float) -> None:
        self._step = step
        self._pause = pause
        self._rate: float | None = None

    @property
    def rate(self) -> float | None:
        """Tokens a second; None before the first piece."""
        return self._rate

    def size(self, *, answers: int, prompts: int) -> int:
        """Tokens of each of ``prompts`` to read next, while ``answers`` wait for their next token."""
        if not answers:
            return self._step
        if self._rate is None:
            return min(self._step, 4 * _LEAST)
        size = int(self._rate * self._pause / max(prompts, 1))
        return max(min(size, self._step), min(_LEAST, self._step))

    def learn(self, tokens: int, seconds: float) -> None:
        """A piece of so many tokens took so long."""
        if tokens <= 0 or seconds <= 0:
            return
        rate = tokens / seconds
        self._rate = rate if self._rate is None else (1 - _WEIGHT) * self._rate + _WEIGHT * rate
