"""Counts what the server has done, for ``/metrics``. Lives on the event loop."""

from __future__ import annotations

from dataclasses import dataclass

from engines.mlx.server.work import Counts


@dataclass(slots=True)
class Tally:
    """Sums since the start: requests, tokens and seconds."""

    requests: int = 0
    refused: int = 0
    abandoned: int = 0
    pauses: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    answer_tokens: int = 0
    drafted_tokens: int = 0
    prompt_seconds: float = 0.0
    answer_seconds: float = 0.0

    def began(self, answers: int) -> None:
        """So many answers are to be computed."""
        self.requests += answers

    def left(self) -> None:
        """A client left before its answer was complete."""
        self.abandoned += 1

    def refuse(self) -> None:
        """A request was wrong."""
        self.refused += 1

    def ended(self, counts: Counts) -> None:
        """An answer is complete."""
        self.prompt_tokens += counts.prompt
        self.cached_tokens += counts.cached
        self.answer_tokens += counts.said
        self.drafted_tokens += counts.drafted
        self.prompt_seconds += counts.prompt_seconds
        self.answer_seconds += counts.said_seconds
