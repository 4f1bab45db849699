"""Compares answers by their form alone."""

from __future__ import annotations

from typing import Any


def shape(value: Any) -> Any:
    """Keys in order and types, without the values: two answers of one shape look the same to a client."""
    if isinstance(value, dict):
        return tuple((key, shape(item)) for key, item in value.items())
    if isinstance(value, list):
        return ("list", *sorted({repr(shape(item)) for item in value}))
    if isinstance(value, bool) or value is None:
        return repr(value)
    return "number" if isinstance(value, int | float) else "text"


def in_turn(events: list[Any]) -> list[Any]:
    """The shapes of a stream's events, each run of equal ones as one."""
    shapes = [event if event == "[DONE]" else shape(event) for event in events]
    return [item for at, item in enumerate(shapes) if at == 0 or item != shapes[at - 1]]
