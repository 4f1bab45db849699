"""Chooses the next token of one answer among others, by that answer's own rules. Runs in the engine's thread.

The helpers of ``mlx_lm`` are not used: they compile once more for each value of ``top_p`` and the like, take one random
state for all answers, and end the whole batch for a value out of range.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mlx.core as mx

from engines.mlx.server.asked import Sampling

Sampler = Callable[[Any], Any]
Processor = Callable[[Any, Any], Any]

_MIX = 0x9E3779B97F4A7C15
_64_BITS = 2**64


def greedy(logprobs: Any) -> Any:
    """The likeliest token of each row; one function for all greedy answers, so that a batch needs one call."""
    return mx.argmax(logprobs, axis=-1)


class Chooser:
    """Draws tokens of one answer.

    The key of each draw follows from the seed and the token's place alone, so that an answer with a seed draws the same
    numbers whoever else is served, also after it was set aside. (Scores may differ in their last bits in company.)

    Attributes:
        place: number of the next token.
    """

    def __init__(self, sampling: Sampling, seed: int, place: int = 0) -> None:
        self.place = place
        self._seed = seed
        self._sampling = sampling

    def __call__(self, logprobs: Any) -> Any:
        """A token of ``(1, vocabulary)`` log probabilities."""
        rules = self._sampling
        if rules.top_k:
            logprobs = _best(logprobs, rules.top_k)
        if rules.top_p < 1.0:
            logprobs = _nucleus(logprobs, rules.top_p)
        if rules.min_p > 0.0:
            logprobs = _likely(logprobs, rules.min_p)
        key = mx.random.key((self._seed + (self.place + 1) * _MIX) % _64_BITS)
        self.place += 1
        return mx.random.categorical(logprobs * (1.0 / rules.temperature), key=key)


def _best(logprobs: Any, count: int) -> Any:
    least = mx.min(mx.topk(logprobs, count, axis=-1), axis=-1, keepdims=True)
    return mx.where(logprobs < least, -mx.inf, logprobs)


def _nucleus(logprobs: Any, mass: float) -> Any:
    """The fewest tokens whose probabilities add up to ``mass``."""
    ordered = mx.sort(logprobs, axis=-1)
    above = mx.cumsum(mx.exp(ordered.astype(mx.float32)), axis=-1, reverse=True, inclusive=False)
    total = mx.sum(mx.exp(ordered.astype(mx.float32)), axis=-1, keepdims=True)
    dropped = mx.minimum(mx.sum(above >= mass * total, axis=-1, keepdims=True), logprobs.shape[-1] - 1)
    least = mx.take_along_axis(ordered, dropped, axis=-1)
    return mx.where(logprobs < least, -mx.inf, logprobs)


def _likely(logprobs: Any, share: float) -> Any:
    """Tokens with at least ``share`` of the likeliest one's probability."""
    least = mx.max(logprobs, axis=-1, keepdims=True) + mx.log(mx.array(share))
    return mx.where(logprobs < least, -mx.inf, logprobs)


class Penalties:
    """Changes scores by what was said, and by the request's own wishes for single tokens.

    Args:
        sampling: the request's rules.
        prompt: tokens of the prompt among those that it is called with.
    """

    def __init__(self, sampling: Sampling, prompt: int) -> None:
        self._rules = sampling
        self._prompt = prompt
        self._tokens: Any = mx.array([token for token, _ in sampling.logit_bias])
        self._biases: Any = mx.array([bias for _, bias in sampling.logit_bias])

    def __call__(self, tokens: Any, logits: Any) -> Any:
        """Scores ``(1, vocabulary)`` for what follows ``tokens``, prompt and answer so far."""
        rules = self._rules
        if rules.repetition_penalty != 1.0:
            recent = tokens[-rules.penalty_window :]
            chosen = logits[:, recent]
            penalty = rules.repetition_penalty
            logits[:, recent] = mx.where(chosen < 0, chosen * penalty, chosen / penalty)
        answer = tokens[self._prompt :]
        if answer.size:
            if rules.presence_penalty:
                logits[:, answer] = logits[:, answer] - rules.presence_penalty
            if rules.frequency_penalty:
                logits = logits.at[:, answer].subtract(rules.frequency_penalty)
        if rules.logit_bias:
            logits = logits.at[:, self._tokens].add(self._biases.astype(logits.dtype))
        return logits
