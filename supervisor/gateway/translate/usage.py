"""What an engine says of its work, as the APIs count it."""

from __future__ import annotations

from typing import Any


def tokens(usage: Any, key: str) -> int:
    """A count of tokens; APIs whose clients need a number get 0 where the engine gave none."""
    value = usage.get(key) if isinstance(usage, dict) else None
    return value if isinstance(value, int) and not isinstance(value, bool) else 0


def cached_tokens(usage: Any) -> int:
    """Tokens of the prompt that were in the engine's cache."""
    details = usage.get("prompt_tokens_details") if isinstance(usage, dict) else None
    return tokens(details, "cached_tokens")
