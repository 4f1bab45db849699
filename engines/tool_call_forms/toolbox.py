"""The tools that a request offers, and the turning of written arguments into the types that they declare."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from engines.tool_call_forms.values import MAX_DEPTH, number, read_whole

_NUMBER = re.compile(r"-?(?:0|[1-9]\d*)(\.\d+)?([eE][+-]?\d+)?", re.ASCII)
_BOOLEANS = {"true": True, "false": False}


@dataclass(frozen=True, slots=True)
class Toolbox:
    """Offered tools: the JSON schema of the arguments by name, and the length of the longest name."""

    schemas: Mapping[str, Mapping[str, Any]]
    starts: frozenset[str]
    longest: int

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and name in self.schemas

    def typed(self, name: str, arguments: Mapping[str, Any], *, as_text: bool) -> dict[str, Any]:
        """The arguments in the types that the tool declares; what does not fit stays as it was written.

        Args:
            name: an offered tool.
            arguments: the arguments as read.
            as_text: whether strings stand for any type, as between XML-like tags.
        """
        properties = _mapping(self.schemas[name].get("properties"))
        return {key: coerce(value, _mapping(properties.get(key)), as_text=as_text) for key, value in arguments.items()}

    def declares(self, name: str, keys: Iterable[str]) -> bool:
        """Whether the tool has parameters of all these names."""
        properties = _mapping(self.schemas[name].get("properties"))
        return all(key in properties for key in keys)

    def missing(self, name: str, arguments: Mapping[str, Any]) -> list[str]:
        """Required properties that the arguments lack, in the order of the schema."""
        required = self.schemas[name].get("required")
        if not isinstance(required, list):
            return []
        return [key for key in required if isinstance(key, str) and key not in arguments]


def toolbox(tools: object) -> Toolbox:
    """The offered tools of an OpenAI or Anthropic request; entries that are no tool are passed over."""
    schemas: dict[str, Mapping[str, Any]] = {}
    entries = tools if isinstance(tools, Iterable) and not isinstance(tools, str | bytes | Mapping) else ()
    for entry in entries:
        tool = _mapping(entry)
        function = _mapping(tool.get("function")) or tool
        name = function.get("name")
        if isinstance(name, str) and name:
            schemas.setdefault(name, _mapping(function.get("parameters") or function.get("input_schema")))
    starts = frozenset(name[:end] for name in schemas for end in range(1, min(len(name), 256) + 1))
    return Toolbox(schemas, starts, max(map(len, schemas), default=0))


def coerce(value: Any, schema: Mapping[str, Any], *, as_text: bool, depth: int = 0) -> Any:
    """``value`` in a type that ``schema`` declares, if that loses nothing; else as it is."""
    if depth > MAX_DEPTH:
        return value
    types = declared_types(schema)
    if isinstance(value, str) and types and "string" not in types:
        value = _from_text(value, types, as_text=as_text)
    elif types == {"string"} and isinstance(value, int | float) and not isinstance(value, bool):
        value = str(value)
    if isinstance(value, list):
        items = _mapping(schema.get("items"))
        return [coerce(item, items, as_text=False, depth=depth + 1) for item in value] if items else value
    if isinstance(value, dict):
        known = _mapping(schema.get("properties"))
        return {
            key: coerce(member, _mapping(known.get(key)), as_text=False, depth=depth + 1)
            for key, member in value.items()
        }
    return value


def declared_types(schema: Mapping[str, Any], depth: int = 0) -> set[str]:
    """Type names that the schema allows at its top; empty where it does not say."""
    declared = schema.get("type")
    if isinstance(declared, str):
        return {declared}
    if isinstance(declared, list):
        return {name for name in declared if isinstance(name, str)}
    choices = [schema["const"]] if "const" in schema else schema.get("enum")
    if isinstance(choices, list):
        return {_type_name(choice) for choice in choices}
    for word in ("anyOf", "oneOf", "allOf"):
        parts = schema.get(word)
        if isinstance(parts, list) and depth < MAX_DEPTH:
            return {name for part in parts for name in declared_types(_mapping(part), depth + 1)}
    return set()


def _from_text(text: str, types: set[str], *, as_text: bool) -> Any:
    word = text.strip()
    if "boolean" in types and word.lower() in _BOOLEANS:
        return _BOOLEANS[word.lower()]
    if types & {"integer", "number"} and _NUMBER.fullmatch(word):
        value = number(word)
        if isinstance(value, int) or "number" in types:
            return value
        if isinstance(value, float) and value.is_integer():
            return int(value)
    if "null" in types and as_text and word.lower() in {"null", "none"}:
        return None
    if types & {"array", "object"}:
        value = read_whole(word)
        if (isinstance(value, list) and "array" in types) or (isinstance(value, dict) and "object" in types):
            return value
    return text


def _type_name(value: object) -> str:
    if value is None:
        return "null"
    names = ((bool, "boolean"), (int, "integer"), (float, "number"), (str, "string"), (list, "array"))
    return next((name for kind, name in names if isinstance(value, kind)), "object")


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
