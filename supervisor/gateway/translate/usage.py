"""What an engine says of its work, as the APIs count it."""

from __future__ import annotations

import math
from typing import Any, Protocol


class Waited(Protocol):
    """What a request waited for: seconds for a slot and for a start, and whether it made the engine start."""

    @property
    def queue_seconds(self) -> float: ...  # noqa: D102  said in the class

    @property
    def load_seconds(self) -> float: ...  # noqa: D102  said in the class

    @property
    def load_owner(self) -> bool: ...  # noqa: D102  said in the class


def tokens(usage: Any, key: str) -> int:
    """A count of tokens; APIs whose clients need a number get 0 where the engine gave none."""
    value = usage.get(key) if isinstance(usage, dict) else None
    return value if isinstance(value, int) and not isinstance(value, bool) else 0


def cached_tokens(usage: Any) -> int:
    """Tokens of the prompt that were in the engine's cache."""
    details = usage.get("prompt_tokens_details") if isinstance(usage, dict) else None
    return tokens(details, "cached_tokens")


def timing_fields(timings: Any, waits: Waited | None) -> dict[str, Any]:
    """What a request's time went into, beside the counts: milliseconds and tokens a second; unknown is left out."""
    given = timings if isinstance(timings, dict) else {}
    made = {
        "time_to_first_token_ms": _positive(given.get("prompt_ms")),
        "prefill_tokens_per_second": _positive(given.get("prompt_per_second")),
        "decode_tokens_per_second": _positive(given.get("predicted_per_second")),
    }
    if waits is not None:
        made["server_queue_ms"] = round(waits.queue_seconds * 1000, 3)
        made["server_load_wait_ms"] = round(waits.load_seconds * 1000, 3)
        if waits.load_seconds > 0:
            made["server_load_owner"] = waits.load_owner
    return {key: value for key, value in made.items() if value is not None}


def _positive(value: Any) -> float | None:
    good = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and value > 0
    return round(value, 3) if good else None
