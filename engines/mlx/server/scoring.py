"""Scores of tokens for requests that ask for them. Runs in the engine's thread."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import numpy as np

from engines.mlx.server.spelling import Spelling
from engines.mlx.server.work import Scored


class Scoring:
    """Reads log probabilities of one step."""

    def __init__(self, spelling: Spelling) -> None:
        self._spelling = spelling

    def of(self, logprobs: Any, token: int, top: int) -> Scored:
        """The chosen token's score and those of the ``top`` likeliest ones, the likeliest first."""
        row = np.array(logprobs.astype(mx.float32)).reshape(-1)
        chosen = self._spelling.score(token, float(row[token]))
        if top <= 0:
            return Scored(chosen, ())
        best = np.argpartition(-row, min(top, row.size - 1))[:top]
        ordered = best[np.argsort(-row[best], kind="stable")]
        return Scored(chosen, tuple(self._spelling.score(int(one), float(row[one])) for one in ordered))
