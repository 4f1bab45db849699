"""One answer while it is computed: from tokens to text, stop strings and scores. Knows nothing of MLX."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Protocol

from engines.mlx.server.problems import RequestError
from engines.mlx.server.stops import StopFilter
from engines.mlx.server.work import Counts, Done, Event, Failed, Piece, Progress, Scored, Work

Emit = Callable[[int, Event], None]


class Speller(Protocol):
    """Makes text of tokens, one after the other."""

    def feed(self, token: int) -> str:
        """The text that is certain now; empty while a character is not complete."""
        ...

    def finish(self) -> str:
        """What was left."""
        ...


class Sequence:
    """The running state of one piece of work.

    Attributes:
        failure: what went wrong in its own rules, such as a grammar; it is ended for that at the next step.
        ended: its last event was sent.
        said: tokens of the answer so far.
        seed: of its draws: the request's, or one of its own.
    """

    def __init__(self, work: Work, speller: Speller, emit: Emit, cached: int) -> None:
        self.work = work
        self.failure: RequestError | None = None
        self.ended = False
        self.said = 0
        self.drafted = 0
        seed = work.wishes.sampling.seed
        self.seed = int.from_bytes(os.urandom(8)) if seed is None else seed
        self._speller = speller
        self._stops = StopFilter(work.wishes.stop)
        self._emit = emit
        self._cached = cached
        self._began = time.perf_counter()
        self._first: float | None = None
        self._text = 0
        self._passed = 0
        self._scores: list[tuple[int, Scored]] = []

    def read(self, processed: int) -> None:
        """So many tokens of the prompt, with those that were cached, have been read."""
        if self.work.wishes.progress:
            seconds = time.perf_counter() - self._began
            self._emit(self.work.id, Progress(processed, len(self.work.prompt), self._cached, seconds))

    def add(self, token: int, scored: Scored | None = None) -> bool:
        """A token of the answer; True: a stop string is complete, and nothing more is wanted."""
        if self._first is None:
            self._first = time.perf_counter()
        self.said += 1
        text = self._speller.feed(token)
        if scored is not None:
            self._scores.append((self._text, scored))
        self._pass(self._stops.feed(text), len(text))
        return self._stops.matched is not None

    def end(self, reason: str) -> None:
        """The last token was added: give out what was held back, unless a stop string cuts it."""
        rest = self._speller.finish()
        passed = self._stops.feed(rest)
        if self._stops.matched is None:
            passed += self._stops.finish()
        self._pass(passed, len(rest), final=self._stops.matched is None)
        if self._stops.matched is not None:
            reason = "stop"
        self._finish(Done(reason, self._counts(), self._stops.matched))

    def fail(self, error: RequestError) -> None:
        """It can't go on; others are not touched."""
        self._finish(Failed(error))

    def _finish(self, event: Event) -> None:
        if not self.ended:
            self.ended = True
            self._emit(self.work.id, event)

    def _pass(self, passed: str, length: int, *, final: bool = False) -> None:
        """Scores go with the text of their token; those of tokens that a stop took back are dropped."""
        self._text += length
        self._passed += len(passed)
        ready = len(self._scores) if final else sum(1 for start, _ in self._scores if start < self._passed)
        scores = tuple(scored for _, scored in self._scores[:ready])
        del self._scores[:ready]
        if passed or scores:
            self._emit(self.work.id, Piece(passed, scores))

    def _counts(self) -> Counts:
        now = time.perf_counter()
        first = now if self._first is None else self._first
        return Counts(
            prompt=len(self.work.prompt),
            cached=self._cached,
            said=self.said,
            prompt_seconds=first - self._began,
            said_seconds=now - first,
            drafted=self.drafted,
        )
