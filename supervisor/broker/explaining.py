"""The arithmetic of memory decisions in words for the owner. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from supervisor.broker.eviction import Resident
from supervisor.broker.ledger import Ledger, Shortfall
from supervisor.units import format_size


def holders_text(ledger: Ledger, pool: str) -> str:
    """Who holds how much of the pool, largest first."""
    rows = [(ledger.entries[name].model, size) for name, size in ledger.holders(pool) if size]
    return ", ".join(f"{holder} {format_size(size)}" for holder, size in rows) or "nobody"


def room_text(model: str, short: Sequence[Shortfall], held_by: Callable[[str], str]) -> str:
    """What the model needs, and who holds what is lacking; ``held_by`` is ``holders_text`` of a pool."""
    parts = []
    for lack in short:
        held = held_by(lack.pool)
        need = "an unknown amount" if lack.need is None else format_size(lack.need)
        free = format_size(max(0, lack.budget - lack.reserved))
        parts.append(f"{need} in {lack.pool}, where {free} of {format_size(lack.budget)} is free (held by {held})")
    return f"{model} needs {' and '.join(parts)}"


def never_text(model: str, short: Iterable[Shortfall]) -> str:
    """Why it does not even fit alone."""
    parts = [
        f"{format_size(lack.need)} in {lack.pool}, whose whole budget is {format_size(lack.budget)}"
        for lack in short
        if lack.never
    ]
    return f"{model} needs {' and '.join(parts)}: it would not fit if everything else were stopped"


def pinned_text(model: str, text: str, residents: Iterable[Resident]) -> str:
    """Why waiting helps nobody: what holds the memory never goes by itself."""
    pinned = ", ".join(r.model for r in residents if r.pinned) or "nothing that could be stopped"
    return f"{text}. Pinned models are never stopped ({pinned}); unpin one, or give {model} smaller settings"


def behind_text(model: str, pool: str) -> str:
    """Why a model whose turn is far off waits."""
    return f"{model} waits for memory in {pool}; others come before it"


def busy_text(text: str, named: Sequence[Resident], *, drained: bool) -> str:
    """Which engines in use it waits for."""
    names = ", ".join(r.model for r in named)
    if drained:
        return f"{text}; {names} takes no new requests and is stopped when its running ones have ended"
    return f"{text}; {names} is in use, and is drained for it if this lasts"
