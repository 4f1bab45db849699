"""A request's wish for drafting several tokens at once, alike in Responses and in Messages. Pure."""

from __future__ import annotations

from typing import Any

DRAFTING = frozenset({"generation_mode", "mtp_depth"})
_DEEPEST = 64


def drafting(body: dict[str, Any]) -> dict[str, Any]:
    """Whether and how far several tokens are drafted at once, for engines that can; what makes no sense is dropped."""
    made: dict[str, Any] = {}
    if body.get("generation_mode") in {"mtp", "ar"}:
        made["generation_mode"] = body["generation_mode"]
    depth = body.get("mtp_depth")
    if isinstance(depth, int) and not isinstance(depth, bool) and 1 <= depth <= _DEEPEST:
        made["mtp_depth"] = depth
    return made
