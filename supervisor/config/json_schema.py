"""The JSON schema of the file's format, for editors: units, ``auto`` and launch settings as a file writes them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, get_args

from pydantic import BaseModel

from engines.contract import EngineKind
from supervisor.config.fields import Section, is_part
from supervisor.config.forms import applies, shown, words_of
from supervisor.config.schema import Config, ModelConfig, settings_type

Schema = dict[str, Any]

_DIALECT = "http://json-schema.org/draft-07/schema#"
_REFERENCE = "#/$defs/"
_FROM_ENV = {"type": "string", "pattern": r"\$\{env:"}
_NULL = {"type": "null"}
# pydantic writes a limit that stands outside a union by its own name, which means nothing to others.
_LIMITS = {"gt": "exclusiveMinimum", "ge": "minimum", "lt": "exclusiveMaximum", "le": "maximum"}
_SAID_ELSEWHERE = {"title", "description", "default", "applies", "form", "unit"}
_SCALARS = {"integer", "number", "boolean"}


@dataclass(frozen=True, slots=True)
class Written:
    """How a file writes a field's value.

    Attributes:
        ways: JSON schemas, each of one way.
        words: what may stand instead of a value, such as ``auto``.
        form: a name for values with a unit: ``duration``, ``size``.
    """

    ways: tuple[Schema, ...]
    words: tuple[str, ...]
    form: str | None


def file_schema() -> Schema:
    """The schema of a whole file."""
    raw = Config.model_json_schema()
    raw_parts: Schema = raw["$defs"]
    parts = {name: part for name, part in raw_parts.items() if "enum" in part}
    parts |= {part.__name__: _object(part, raw_parts[part.__name__]) for part in sections(Config)}
    engine = parts.pop("EngineConfig")
    for kind in EngineKind:
        settings = settings_type(kind)
        made = settings.model_json_schema()
        parts |= made.get("$defs", {})
        parts[settings.__name__] = _object(settings, made)
        with_defaults = {**engine["properties"], "defaults": _launch(kind)}
        parts[_engine_part(kind)] = {**engine, "properties": with_defaults}
    parts["ModelConfig"] = _with_launch(parts["ModelConfig"])
    root = _object(Config, raw)
    root["properties"]["engines"] = {
        "description": root["properties"]["engines"]["description"],
        "type": ["object", "null"],
        "properties": {kind.value: {"$ref": _REFERENCE + _engine_part(kind)} for kind in EngineKind},
        "additionalProperties": False,
    }
    whole = {"$schema": _DIALECT, "title": "Enginehouse config", **root, "required": ["version"]}
    return {key: _draft_7(value) for key, value in {**whole, "definitions": dict(sorted(parts.items()))}.items()}


def sections(owner: type[BaseModel]) -> Iterator[type[Section]]:
    """Every section inside a section, at any depth, each once."""
    seen: dict[type[Section], None] = {}

    def gather(annotation: Any) -> None:
        if isinstance(annotation, type) and issubclass(annotation, Section) and annotation not in seen:
            seen[annotation] = None
            for field in annotation.model_fields.values():
                gather(field.annotation)
        for inner in get_args(annotation):
            gather(inner)

    for field in owner.model_fields.values():
        gather(field.annotation)
    return iter(seen)


def written(owner: type[BaseModel], name: str, made: Mapping[str, Any]) -> Written:
    """How a file writes a field, from what pydantic says of it and what its validators take."""
    return Written(tuple(_ways(made)), words_of(owner.model_fields[name]), _form(made))


def _ways(made: Mapping[str, Any]) -> Iterator[Schema]:
    if "anyOf" in made:
        for way in made["anyOf"]:
            yield from _ways(way)
        return
    way = {_LIMITS.get(key, key): value for key, value in sorted(made.items()) if key not in _SAID_ELSEWHERE}
    if "enum" in way:
        way["enum"] = [choice for choice in way["enum"] if choice is not None]
    if way != _NULL:
        yield way


def _form(made: Mapping[str, Any]) -> str | None:
    own = made.get("form")
    return str(own) if own is not None else next(filter(None, map(_form, made.get("anyOf", ()))), None)


def _object(owner: type[BaseModel], made: Mapping[str, Any]) -> Schema:
    """A section: its keys, and no others."""
    keys = {name: _property(owner, name, made["properties"][name]) for name in owner.model_fields}
    required = {"required": made["required"]} if "required" in made else {}
    doc = (owner.__doc__ or "").partition("\n")[0]
    return {"description": doc, "type": "object", "properties": keys, "additionalProperties": False, **required}


def _property(owner: type[BaseModel], name: str, made: Mapping[str, Any]) -> Schema:
    field = owner.model_fields[name]
    value = written(owner, name, made)
    ways = list(value.ways)
    if value.words:
        ways.append({"enum": list(value.words)})
    if issubclass(owner, Section):
        if is_part(owner, name):
            ways.append(_NULL)
        elif value.form or any(way.get("type") in _SCALARS or "enum" in way for way in value.ways):
            ways += [_FROM_ENV] if "const" not in ways[0] else []
    if _is_section(field.annotation):
        return {"description": field.description, "anyOf": ways}
    described: Schema = {"description": f"{field.description} [{applies(field)}]"}
    if made.get("default") is not None or value.words:
        described["default"] = shown(field, field.default)
    if len(ways) == 1:
        return described | ({"allOf": ways} if "$ref" in ways[0] else ways[0])
    return described | {"anyOf": ways}


def _is_section(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)


def _engine_part(kind: EngineKind) -> str:
    return f"EngineConfig.{kind.value}"


def _launch(kind: EngineKind) -> Schema:
    return {"anyOf": [{"$ref": _REFERENCE + settings_type(kind).__name__}, _NULL]}


def _with_launch(model: Schema) -> Schema:
    """A model's launch settings are those of its engine."""
    usual = ModelConfig.model_fields["engine"].default
    rules = []
    for kind in EngineKind:
        chosen: Schema = {"properties": {"engine": {"const": kind.value}}}
        if kind != usual:
            chosen["required"] = ["engine"]
        rules.append({"if": chosen, "then": {"properties": {"launch": _launch(kind)}}})
    open_launch = {"description": model["properties"]["launch"]["description"]}
    return {**model, "properties": {**model["properties"], "launch": open_launch}, "allOf": rules}


def _draft_7(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _draft_7(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_draft_7(inner) for inner in value]
    return value.replace(_REFERENCE, "#/definitions/") if isinstance(value, str) else value
