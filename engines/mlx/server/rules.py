"""The rules by which one answer's tokens are chosen, made so that a fault in them ends that answer alone."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from engines.mlx.server.problems import RequestError
from engines.mlx.server.sampling import Chooser, Penalties, Processor, Sampler, greedy
from engines.mlx.server.sequence import Sequence

_log = logging.getLogger(__name__)
_FAILED = 500


@dataclass(frozen=True, slots=True)
class Rules:
    """``sampler`` takes log probabilities ``(1, vocabulary)``; ``processors`` change scores before, in order."""

    sampler: Sampler
    processors: tuple[Processor, ...] = ()


def rules_of(sequence: Sequence, *more: Processor, place: int = 0) -> Rules:
    """The rules of a piece of work; ``more`` come after its penalties; ``place``: number of the next token.

    Raises:
        Exception: they can't be made.
    """
    sampling = sequence.work.wishes.sampling
    processors: list[Processor] = []
    if not sampling.plain:
        processors.append(Penalties(sampling, len(sequence.work.prompt)))
    processors += more
    sampler = greedy if sampling.greedy else _guarded_sampler(sequence, Chooser(sampling, sequence.seed, place))
    return Rules(sampler, tuple(_guarded(sequence, processor) for processor in processors))


def _guarded(sequence: Sequence, processor: Processor) -> Processor:
    def guarded(tokens: Any, logits: Any) -> Any:
        if sequence.failure is not None:
            return logits
        try:
            return processor(tokens, logits)
        except Exception as error:  # noqa: BLE001  see the module
            note(sequence, error)
            return logits

    return guarded


def _guarded_sampler(sequence: Sequence, sampler: Callable[[Any], Any]) -> Sampler:
    def guarded(logprobs: Any) -> Any:
        try:
            return sampler(logprobs)
        except Exception as error:  # noqa: BLE001  see the module
            note(sequence, error)
            return greedy(logprobs)

    return guarded


def note(sequence: Sequence, error: Exception, what: str = "choosing its tokens") -> RequestError:
    """Remember that a fault in ``what`` ends this answer, and no other."""
    if sequence.failure is None:
        _log.warning("request %d failed alone: %r", sequence.work.id, error)
        message = error.args[0] if isinstance(error, RequestError) else f"{what} failed: {error}"
        sequence.failure = RequestError(str(message), status=_FAILED, kind="server_error")
    return sequence.failure
