"""How much context a request gets, and how many requests run at once."""

from __future__ import annotations

from dataclasses import dataclass

from engines.contract import Capability, Choice, ModelMetadata

# Tokens a request gets unless the config says: enough for a long chat, small enough for a home server's memory.
DEFAULT_CTX_SIZE = 8192
# llama-server serves 4 slots unless told; fewer where there are fewer threads to share.
MAX_DEFAULT_SLOTS = 4


@dataclass(frozen=True, slots=True)
class ContextRequest:
    """What is asked for and what the model was trained on; ``source`` names where a wish stands in the config."""

    ctx_size: int | None
    ctx_source: str
    slots: int | None
    slots_source: str
    cache_type: str | None
    cache_source: str
    threads: int | None
    capabilities: frozenset[Capability]
    metadata: ModelMetadata


@dataclass(frozen=True, slots=True)
class ContextChoice:
    """Tokens for one request, slots, and the KV type, each with its reason; None where there are none."""

    ctx_size: int | None
    slots: int
    cache_type: str | None
    choices: tuple[Choice, ...]


NO_CONTEXT = ContextChoice(None, 1, None, (Choice("slots", 1, "this engine serves one request at a time"),))
"""Of an engine whose requests take up no context."""


def choose_context(request: ContextRequest) -> ContextChoice:
    """Wishes stand as they are; what is left to us follows the model and the threads."""
    ctx = _ctx_size(request)
    slots = _slots(request)
    cache = (
        Choice("cache_type", request.cache_type, f"from {request.cache_source}")
        if request.cache_type is not None
        else Choice("cache_type", "f16", "the engine's own precision; a smaller type costs quality")
    )
    return ContextChoice(ctx.value, slots.value, cache.value, (ctx, slots, cache))


def _ctx_size(request: ContextRequest) -> Choice:
    trained = request.metadata.context_length
    if request.ctx_size is not None:
        beyond = trained is not None and request.ctx_size > trained
        warning = f"; the model was trained on {trained}, answers get worse beyond it" if beyond else ""
        return Choice("ctx_size", request.ctx_size, f"from {request.ctx_source}{warning}")
    size = default_ctx_size(trained)
    if trained is None:
        return Choice("ctx_size", size, "the default; the header does not say what it was trained on")
    if trained <= size:
        return Choice("ctx_size", size, "what the model was trained on")
    return Choice("ctx_size", size, f"the default; the model was trained on {trained}, launch.ctx_size asks for more")


def default_ctx_size(trained: int | None) -> int:
    """Tokens a request gets when nobody says, for a model trained on ``trained``."""
    return min(trained or DEFAULT_CTX_SIZE, DEFAULT_CTX_SIZE)


def _slots(request: ContextRequest) -> Choice:
    if request.slots is not None:
        return Choice("slots", request.slots, f"from {request.slots_source}")
    threads = request.threads or 1
    slots = max(1, min(MAX_DEFAULT_SLOTS, threads))
    return Choice("slots", slots, f"the lesser of {MAX_DEFAULT_SLOTS} and {threads} threads")
