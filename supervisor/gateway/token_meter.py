"""What engines write, counted while they write it: a number for each model, one addition for each read of a stream."""

from __future__ import annotations

from collections import Counter


class TokenMeter:
    """Counts chunks of content, which is what engines send for a token; a few tokens come as one chunk.

    Attributes:
        written: chunks by model, since the daemon began.
    """

    def __init__(self) -> None:
        self.written: Counter[str] = Counter()

    def add(self, model: str, chunks: int) -> None:
        """So many more."""
        self.written[model] += chunks

    @property
    def total(self) -> int:
        """Of all models."""
        return self.written.total()
