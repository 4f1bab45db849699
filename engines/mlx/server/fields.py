"""Reads fields of a request's body, each with the one type and range that it may have. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from engines.mlx.server.problems import RequestError

_SHOWN = 60


class Fields:
    """The members of one JSON object; every method gives the default for what is absent or null.

    All raise ``RequestError`` with the field's name where the value is of a wrong kind or out of its range.
    """

    def __init__(self, body: Mapping[str, Any], where: str = "") -> None:
        self._body = body
        self._where = where

    def name(self, key: str) -> str:
        """The field as it is called in messages."""
        return f"{self._where}{key}"

    def raw(self, key: str) -> Any:
        """Whatever is there."""
        return self._body.get(key)

    def number(self, key: str, default: float, low: float, high: float) -> float:
        """A finite number from ``low`` to ``high``."""
        value = self._body.get(key)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int | float) or not _between(value, low, high):
            raise self.wrong(key, f"must be a number from {low:g} to {high:g}")
        return float(value)

    def integer(self, key: str, low: int, high: int) -> int | None:
        """A whole number from ``low`` to ``high``, also written as ``2.0``; None where it is absent."""
        value = self._body.get(key)
        if value is None:
            return None
        if isinstance(value, float) and math.isfinite(value) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise self.wrong(key, f"must be a whole number from {low} to {high}")
        return value

    def flag(self, key: str, *, default: bool = False) -> bool:
        """True or false."""
        value = self._body.get(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.wrong(key, "must be true or false")
        return value

    def text(self, key: str) -> str | None:
        """A string."""
        value = self._body.get(key)
        if value is not None and not isinstance(value, str):
            raise self.wrong(key, "must be a string")
        return value

    def object(self, key: str) -> Mapping[str, Any] | None:
        """A JSON object."""
        value = self._body.get(key)
        if value is not None and not isinstance(value, dict):
            raise self.wrong(key, "must be an object")
        return value

    def list(self, key: str) -> list[Any] | None:
        """A JSON array."""
        value = self._body.get(key)
        if value is not None and not isinstance(value, list):
            raise self.wrong(key, "must be an array")
        return value

    def wrong(self, key: str, rule: str) -> RequestError:
        """The error for a field that breaks a rule; shows the value, cut short."""
        shown = repr(self._body.get(key))
        if len(shown) > _SHOWN:
            shown = shown[:_SHOWN] + "…"
        return RequestError(f"`{self.name(key)}` {rule}, not {shown}.", param=self.name(key))


def _between(value: float, low: float, high: float) -> bool:
    try:
        return math.isfinite(value) and low <= value <= high
    except OverflowError:  # an integer beyond every float
        return False
