"""Whether answers are guessed ahead by a smaller model, and why not. Decisions; nothing in here raises."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from engines.mlx.server.work import Work

SWITCH = "ENGINEHOUSE_MLX_SPEC"
LIMIT = "ENGINEHOUSE_MLX_SPEC_UNCHUNKED_LIMIT"
_OFF = frozenset({"0", "off", "false", "no"})
# A drafter that reads the whole prompt at once needs memory by its square: 61,523 tokens once asked for 181 GB.
_UNCHUNKED = 4096


@dataclass(frozen=True, slots=True)
class Drafter:
    """A smaller model with the same tokens.

    Attributes:
        chunked: it reads prompts in pieces, as every model with caches of its own does.
    """

    model: Any
    tokens: int
    chunked: bool = True


def off_reason(layers: Sequence[Any], draft_layers: Sequence[Any], vocabularies: tuple[int, int]) -> str:
    """Why nothing is guessed with this pair of models; empty: it is."""
    if os.environ.get(SWITCH, "").strip().lower() in _OFF:
        return f"{SWITCH} says so"
    if not all(layer.is_trimmable() for layer in layers):
        return "the model's caches can't be rolled back"
    if not all(layer.is_trimmable() for layer in draft_layers):
        return "the draft model's caches can't be rolled back"
    if vocabularies[0] != vocabularies[1]:
        return f"the draft model has {vocabularies[1]} tokens, the model {vocabularies[0]}"
    return ""


def draft_prefill_gate(drafter: Drafter | None, prompt: int, limit: int | None = None) -> tuple[bool, str]:
    """Whether a drafter may read a prompt of so many tokens, and why not.

    Only one that is fed the model's own hidden states, and those all at once, is bounded.
    """
    if drafter is None or not callable(getattr(drafter.model, "prefill_from_target_hidden", None)) or drafter.chunked:
        return True, ""
    most = unchunked_limit() if limit is None else limit
    if prompt <= most:
        return True, ""
    return False, f"the draft model reads a prompt at once, and {prompt} tokens are more than {most}"


def unchunked_limit() -> int:
    """Tokens, from the environment if it says a whole number above 0."""
    said = os.environ.get(LIMIT, "")
    return int(said) if said.isascii() and said.isdigit() and int(said) > 0 else _UNCHUNKED


def speculates(work: Work, drafter: Drafter | None, others: int) -> tuple[bool, str]:
    """Whether this piece of work is guessed ahead, and why not where it could have been.

    Unless the request says so itself, only an answer that is computed alone is: several gain more by being computed
    together.
    """
    wishes = work.wishes
    if drafter is None or wishes.mode == "ar":
        return False, ""
    reason = _hindrance(work, drafter)
    if reason or (wishes.mode is None and others):
        return False, reason
    return True, ""


def _hindrance(work: Work, drafter: Drafter) -> str:
    if work.sequential:
        return "its session is computed one token at a time"
    if not work.wishes.sampling.greedy or not work.wishes.sampling.plain:
        return "only the likeliest tokens, with scores as they are, can be guessed"
    if work.matcher is not None:
        return "an answer of a set form is not guessed"
    return draft_prefill_gate(drafter, len(work.prompt))[1]
