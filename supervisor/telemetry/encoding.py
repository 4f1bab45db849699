"""JSON that can't fail: what a file name or an engine's log line may hold must never stop the one who reports it."""

from __future__ import annotations

import json
from typing import Any

import orjson


def to_json(document: Any) -> bytes:
    """One line of JSON; types without a JSON form are written as text, broken Unicode as escapes."""
    try:
        return orjson.dumps(document, default=str, option=orjson.OPT_NON_STR_KEYS)
    except TypeError:  # lone surrogates (file names that aren't UTF-8) and integers beyond 64 bits
        return json.dumps(document, default=str, separators=(",", ":")).encode()
