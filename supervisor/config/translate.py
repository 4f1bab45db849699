"""pydantic's errors in the owner's words; the only file that knows their names."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from supervisor.config.problems import Found, Where
from supervisor.config.suggest import nearest, suggest_key

_MESSAGES = {
    "missing": "is missing",
    "extra_forbidden": "unknown key",
    "string_type": "must be text",
    "string_too_short": "must not be empty",
    "string_pattern_mismatch": "must be without blanks and control characters",
    "too_short": "must not be empty",
    "dict_type": "must be a section of keys (name: value)",
    "model_type": "must be a section of keys (name: value)",
    "model_attributes_type": "must be a section of keys (name: value)",
    "tuple_type": "must be a list, such as [a, b]",
    "list_type": "must be a list, such as [a, b]",
    "int_type": "must be a whole number",
    "int_parsing": "must be a whole number",
    "int_from_float": "must be a whole number",
    "int_parsing_size": "is too large",
    "bool_type": "must be true or false",
    "bool_parsing": "must be true or false",
    "finite_number": "must be a number that can be counted",
}
_ADDED_STEPS = frozenset({"[key]"})
_CHOICES = re.compile(r"'([^']*)'|\b(\d+)\b")


def found_in(error: ValidationError, tree: Any) -> Iterator[Found]:
    """Each error of a validation as a problem, with advice."""
    for detail in error.errors(include_url=False):
        if not _is_echo(detail):
            yield _found(detail, tree)


def _is_echo(detail: ErrorDetails) -> bool:
    """Whether another problem is the cause, such as a list too short because its entries are wrong."""
    return detail["type"] == "default_factory_not_called" or (detail["type"] == "too_short" and bool(detail["input"]))


def _found(detail: ErrorDetails, tree: Any) -> Found:
    kind, value = detail["type"], detail["input"]
    where: Where = tuple(step for step in detail["loc"] if step not in _ADDED_STEPS)
    if kind in ("enum", "literal_error"):
        return _one_of(where, detail)
    if kind == "extra_forbidden":
        return Found(where, _MESSAGES[kind], suggest_key(where, tree))
    if kind == "value_error":
        return Found(where, str(detail["ctx"]["error"]) if "ctx" in detail else detail["msg"])
    if kind == "string_type" and isinstance(value, bool | int | float):
        read_as = "true or false" if isinstance(value, bool) else "a number"
        return Found(where, f"must be text, and this is {read_as} to YAML", "quote it")
    if value is None and kind != "missing":
        return Found(where, "has no value", "write one, or leave the key out")
    message = _MESSAGES.get(kind) or detail["msg"].replace("Input should be", "must be").replace("Value error, ", "")
    return Found(where, message)


def _one_of(where: Where, detail: ErrorDetails) -> Found:
    expected = detail.get("ctx", {}).get("expected", "")
    choices = [quoted or number for quoted, number in _CHOICES.findall(expected)]
    value = detail["input"]
    close = nearest(value, choices) if isinstance(value, str) else None
    message = f"must be {choices[0]}" if len(choices) == 1 else f"must be one of: {', '.join(choices)}"
    if detail["loc"] and detail["loc"][-1] == "[key]":
        message = f"unknown engine, known: {', '.join(choices)}"
    if isinstance(value, bool) and not close:
        return Found(where, message, "quote it: YAML reads words such as no and off as true or false")
    return Found(where, message, f"did you mean {close}?" if close else None)
