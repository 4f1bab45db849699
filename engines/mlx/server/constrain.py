"""Holds one answer to its grammar, token by token. Runs in the engine's thread."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import numpy as np

_WORD_BITS = 32


class Constraint:
    """Lets only tokens through with which the answer can still become what was asked for.

    It looks at the tokens themselves, by their place, and not at how often it was called: an answer that was set aside
    and goes on is the same. The model's thoughts, where the prompt has opened them, are free.

    Args:
        matcher: of llguidance; used by this answer alone.
        prompt: tokens of the prompt among those that it is called with.
        ends: tokens that end an answer.
        after: the token that closes the thoughts, which come first; None: there are none.
    """

    def __init__(self, matcher: Any, prompt: int, ends: frozenset[int], after: int | None = None) -> None:
        self._matcher = matcher
        self._place = prompt  # of the next token to look at
        self._ends = ends
        self._after = after
        self._masks: Any = None

    def __call__(self, tokens: Any, logits: Any) -> Any:
        """Scores ``(1, vocabulary)`` for what follows ``tokens``, with those that don't fit taken out."""
        new = tokens[self._place :].tolist()
        self._place += len(new)
        for token in new:
            self._take(token)
        if self._after is not None:
            return logits
        allowed = self._allowed(logits.shape[-1])
        return mx.where(allowed, logits, mx.array(-mx.inf, logits.dtype))

    def _take(self, token: int) -> None:
        if self._after is not None:
            if token == self._after:
                self._after = None
            return
        if token not in self._ends and not self._matcher.is_stopped():
            self._matcher.consume_token(token)
            if self._matcher.is_error():
                raise ValueError(f"its grammar could not be kept to: {self._matcher.get_error()[:300]}")

    def _allowed(self, vocabulary: int) -> Any:
        row = np.zeros(vocabulary, dtype=bool)
        if not self._matcher.is_stopped():
            words = self._mask(vocabulary)
            row |= np.unpackbits(words.view(np.uint8), bitorder="little")[:vocabulary].astype(bool)
        if self._matcher.is_stopped() or not row.any():
            row[[end for end in self._ends if end < vocabulary]] = True
        return mx.array(row)[None]

    def _mask(self, vocabulary: int) -> Any:
        from llguidance.numpy import fill_next_token_bitmask  # noqa: PLC0415  there is a matcher, so it is loaded

        if self._masks is None:
            self._masks = np.zeros((1, -(-vocabulary // _WORD_BITS)), dtype=np.int32)
        self._masks[:] = 0
        fill_next_token_bitmask(self._matcher, self._masks, 0)
        return self._masks[0]
