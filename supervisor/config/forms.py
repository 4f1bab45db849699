"""How a field's value is written in a file: the words it takes, and a held value in the file's form.

Read from the schema itself, so that documents and answers can't say something else than the loader does.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import StrEnum
from pathlib import Path, PurePath
from typing import Annotated, Any, get_args, get_origin

from pydantic import BaseModel, TypeAdapter, ValidationError, WithJsonSchema
from pydantic.fields import FieldInfo
from pydantic_core import to_jsonable_python

from supervisor.config.fields import FileContext
from supervisor.units import format_duration

_WORDS = ("auto", "never", "forever")
_CONTEXT = FileContext(Path("/"), {"HOME": "/"})
_SIZE_STEPS = {"TiB": 2**40, "GiB": 2**30, "MiB": 2**20, "KiB": 2**10}


class Applies(StrEnum):
    """When a change takes effect: at once, when an engine is next started, or when the daemon is."""

    LIVE = "live"
    NEXT_LAUNCH = "next launch"
    RESTART = "restart"


def applies(field: FieldInfo) -> Applies:
    """The class of change of a field; every field of the schema has one."""
    extra = field.json_schema_extra
    assert isinstance(extra, Mapping), "held by a test of the schema"
    return Applies(str(extra["applies"]))


def written_type(field: FieldInfo) -> Any:
    """The field's type with all its validators."""
    return Annotated[(field.annotation, *field.metadata)] if field.metadata else field.annotation


def words_of(field: FieldInfo) -> tuple[str, ...]:
    """Words that a file may write instead of a value, such as ``auto``; found by asking the validators.

    In a field of text every word is a value, so only one that stands for None counts.
    """
    adapter: TypeAdapter[Any] = TypeAdapter(written_type(field))
    taken = []
    for word in _WORDS:
        try:
            value = adapter.validate_python(word, context=_CONTEXT)
        except ValidationError:
            continue
        if not isinstance(value, str | PurePath):
            taken.append(word)
    return tuple(taken)


def shown(field: FieldInfo, value: Any) -> Any:
    """A held value as a file would write it, in plain JSON: ``10m``, ``1GiB``, ``auto``, a list of text."""
    if value is None:
        return next(iter(words_of(field)), None)
    schema = _own_schema(written_type(field))
    if schema.get("form") == "duration":
        return _duration_text(value)
    if schema.get("form") == "size":
        return _size_text(value * _SIZE_STEPS.get(str(schema.get("unit")), 1))
    return _plain(value)


def _own_schema(annotation: Any) -> Mapping[str, Any]:
    """The JSON schema that a type was given by hand, outermost first; empty if none was."""
    return next(_given_schemas(annotation), {})


def _given_schemas(annotation: Any) -> Iterator[Mapping[str, Any]]:
    arguments = get_args(annotation)
    if get_origin(annotation) is Annotated:
        yield from (item.json_schema or {} for item in arguments[1:] if isinstance(item, WithJsonSchema))
        arguments = arguments[:1]
    for inner in arguments:
        yield from _given_schemas(inner)


def _duration_text(seconds: float) -> str:
    whole = float(seconds).is_integer()
    return format_duration(seconds) if whole else f"{round(seconds * 1000, 6):.15g}ms"


def _size_text(count: float) -> str:
    """Exact, unlike ``format_size``: two sizes that differ must not look alike."""
    for unit, step in _SIZE_STEPS.items():
        if count and count % step == 0:
            return f"{int(count // step)}{unit}"
    return f"{int(count)}B" if count else "0"


def _plain(value: Any) -> Any:
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json", exclude_unset=True)
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return to_jsonable_python(value)
