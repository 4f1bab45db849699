"""A validator for the part of JSON schema that the config's schema uses; an unknown keyword is an error."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

_TYPES: Mapping[str, type | tuple[type, ...]] = {
    "object": dict,
    "array": list,
    "string": str,
    "boolean": bool,
    "null": type(None),
    "integer": int,
    "number": (int, float),
}
_SAID = {"$schema", "title", "description", "default", "definitions", "format", "then"}


def fits(value: Any, schema: Mapping[str, Any] | bool, root: Mapping[str, Any]) -> bool:
    """Whether a value is valid."""
    if isinstance(schema, bool):
        return schema
    for keyword, wanted in schema.items():
        if keyword not in _SAID and not _RULES[keyword](value, wanted, schema, root):
            return False
    return True


def _is(value: Any, name: str) -> bool:
    if isinstance(value, bool):
        return name == "boolean"
    return isinstance(value, _TYPES[name])


def _type(value: Any, wanted: Any, *_: Any) -> bool:
    return any(_is(value, name) for name in ([wanted] if isinstance(wanted, str) else wanted))


def _reference(value: Any, wanted: str, _: Any, root: Mapping[str, Any]) -> bool:
    place = root
    for step in wanted.removeprefix("#/").split("/"):
        place = place[step]
    return fits(value, place, root)


def _properties(value: Any, wanted: Mapping[str, Any], _: Any, root: Mapping[str, Any]) -> bool:
    return not isinstance(value, dict) or all(
        fits(value[key], inner, root) for key, inner in wanted.items() if key in value
    )


def _patterns(value: Any, wanted: Mapping[str, Any], _: Any, root: Mapping[str, Any]) -> bool:
    return not isinstance(value, dict) or all(
        fits(inner, held, root) for key, inner in value.items() for text, held in wanted.items() if re.search(text, key)
    )


def _more(value: Any, wanted: Any, schema: Mapping[str, Any], root: Mapping[str, Any]) -> bool:
    more = [value[key] for key in value if key not in schema.get("properties", {})] if isinstance(value, dict) else []
    return not more if wanted is False else all(fits(inner, wanted, root) for inner in more)


def _condition(value: Any, wanted: Any, schema: Mapping[str, Any], root: Mapping[str, Any]) -> bool:
    return not fits(value, wanted, root) or fits(value, schema["then"], root)


def _keys(value: Any) -> list[Any]:
    return list(value) if isinstance(value, dict) else []


def _items(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


_RULES: Mapping[str, Callable[[Any, Any, Any, Any], bool]] = {
    "$ref": _reference,
    "type": _type,
    "properties": _properties,
    "patternProperties": _patterns,
    "additionalProperties": _more,
    "if": _condition,
    "propertyNames": lambda value, wanted, _, root: all(fits(key, wanted, root) for key in _keys(value)),
    "required": lambda value, wanted, *_: not isinstance(value, dict) or set(wanted) <= set(value),
    "items": lambda value, wanted, _, root: all(fits(item, wanted, root) for item in _items(value)),
    "anyOf": lambda value, wanted, _, root: any(fits(value, way, root) for way in wanted),
    "allOf": lambda value, wanted, _, root: all(fits(value, way, root) for way in wanted),
    "enum": lambda value, wanted, *_: any(value == choice and type(value) is type(choice) for choice in wanted),
    "const": lambda value, wanted, *_: value == wanted,
    "pattern": lambda value, wanted, *_: not isinstance(value, str) or bool(re.search(wanted, value)),
    "minLength": lambda value, wanted, *_: not isinstance(value, str) or len(value) >= wanted,
    "maxLength": lambda value, wanted, *_: not isinstance(value, str) or len(value) <= wanted,
    "minItems": lambda value, wanted, *_: not isinstance(value, list) or len(value) >= wanted,
    "minimum": lambda value, wanted, *_: not _is(value, "number") or value >= wanted,
    "maximum": lambda value, wanted, *_: not _is(value, "number") or value <= wanted,
    "exclusiveMinimum": lambda value, wanted, *_: not _is(value, "number") or value > wanted,
}
