"""Secrets never reach a log or a stream: what is known by its key, and what is known by itself, becomes ``***``."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

HIDDEN = "***"
_PLAIN = frozenset({int, float, bool, type(None)})
_KEPT_KEYS = 512

# The end of a key decides, so that `token_file` (a path) and `max_tokens` (a number, never hidden) stay readable.
_SECRET_KEY = re.compile(
    r"(?:tokens?|secrets?|passwd|passwords?|passphrase|authorization|cookie|credentials?|(?:api|access|private)[_-]?keys?)$",
    re.IGNORECASE,
)
_BEARER = re.compile(r"\b(bearer|basic)\s+[\w.~+/=-]{8,}", re.IGNORECASE)


class Redactor:
    """Hides secrets in plain values.

    One object for the daemon's life: callers' tokens and each launch's API key are registered as they are made.
    """

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        self._secrets: set[str] = set()
        self._pattern: re.Pattern[str] | None = None
        self._keys: dict[str, bool] = {}
        for secret in secrets:
            self.add(secret)

    def add(self, secret: str) -> None:
        """Hide this string wherever it appears from now on; an empty one is ignored."""
        if secret:
            self._secrets.add(secret)
            self._compile()

    def discard(self, secret: str) -> None:
        """Stop looking for a secret that opens nothing any more; unknown ones are ignored."""
        self._secrets.discard(secret)
        self._compile()

    def clean(self, value: Any) -> Any:
        """The same value without secrets: mappings, lists and tuples are copied, other types pass unchanged."""
        if type(value) in _PLAIN:  # most values of a log line
            return value
        if isinstance(value, str):
            return self._clean_text(value)
        if isinstance(value, bytes):
            return self._clean_text(value.decode(errors="replace"))
        if isinstance(value, Mapping):
            return {key: self._clean_entry(key, entry) for key, entry in value.items()}
        if isinstance(value, list | tuple):
            return [self.clean(entry) for entry in value]
        return value

    def _clean_entry(self, key: Any, value: Any) -> Any:
        # Numbers and flags are counts and settings (`max_tokens: 16`, `api_key: true`), never secrets.
        if type(value) in _PLAIN:
            return value
        return HIDDEN if isinstance(key, str) and self._names_a_secret(key) else self.clean(value)

    def _names_a_secret(self, key: str) -> bool:
        # The same few keys stand in every line; those of clients' making are not remembered without end.
        known = self._keys.get(key)
        if known is None:
            known = _SECRET_KEY.search(key) is not None
            if len(self._keys) < _KEPT_KEYS:
                self._keys[key] = known
        return known

    def _clean_text(self, text: str) -> str:
        # Looking for a few words is twenty times faster than a pattern, and nearly every text holds none.
        if self._pattern is not None and any(secret in text for secret in self._secrets):
            text = self._pattern.sub(HIDDEN, text)
        lowered = text.lower()
        return _BEARER.sub(rf"\1 {HIDDEN}", text) if "bearer" in lowered or "basic" in lowered else text

    def _compile(self) -> None:
        # Longest first: a secret that begins another one must not leave the other's tail behind.
        ordered = sorted(self._secrets, key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, ordered))) if ordered else None
