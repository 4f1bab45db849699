"""``python -m supervisor.config.document``: writes docs/configuration.md and docs/config.schema.json from the schema.

With ``--check`` it writes nothing, and exits 1 if one of them is not what it would write.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from engines.contract import EngineKind, LaunchSettings
from supervisor.config.document_text import AFTER, BEFORE, LAUNCH, STATED_DEFAULTS, STEPS
from supervisor.config.forms import applies, shown
from supervisor.config.json_schema import Schema, file_schema, written
from supervisor.config.schema import Config, settings_type

PAGE = "configuration.md"
SCHEMA = "config.schema.json"

_DOCS = Path(__file__).parents[2] / "docs"
_HEADER = "| key | value | default | a change applies | what it is |\n|---|---|---|---|---|"
_SCALARS = {"integer": "whole number", "number": "number", "boolean": "`true` or `false`", "string": "text"}


def documents() -> dict[str, str]:
    """The content of both files, by name."""
    return {PAGE: page(), SCHEMA: json.dumps(file_schema(), indent=2, ensure_ascii=False) + "\n"}


def page() -> str:
    """How a config is found and read, then each section with its keys."""
    tables = [_section(path, owner) for path, owner in _sections("", Config)]
    launch = [_launch_section(kind) for kind in EngineKind]
    return "\n".join([BEFORE, *tables, *launch, AFTER])


def stale_documents(folder: Path) -> dict[Path, str]:
    """The files that are not there, or not what the schema says, with what they should be."""
    wanted = {folder / name: text for name, text in documents().items()}
    return {
        path: text for path, text in wanted.items() if not path.is_file() or path.read_text(encoding="utf-8") != text
    }


def _sections(path: str, owner: type[BaseModel]) -> Iterator[tuple[str, type[BaseModel]]]:
    """Every section with its path, in the order of the schema; launch settings apart."""
    yield path, owner
    for name, field in owner.model_fields.items():
        inner = _section_in(field.annotation)
        if inner is not None:
            yield from _sections(_join(path, name) + STEPS.get(name, ""), inner)


def _section_in(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return None if issubclass(annotation, LaunchSettings) else annotation
    return next(filter(None, map(_section_in, get_args(annotation))), None)


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _section(path: str, owner: type[BaseModel]) -> str:
    about = (owner.__doc__ or "").partition("\n")[0] if path else "These keys stand at the left margin of the file."
    rows = list(_rows(path, owner))
    table = f"\n{_HEADER}\n" + "\n".join(rows) + "\n" if rows else ""
    return f"## {f'`{path}`' if path else 'The top level'}\n\n{about}\n{table}"


def _launch_section(kind: EngineKind) -> str:
    rows = "\n".join(_rows("launch", settings_type(kind)))
    return f"## Launch settings of `{kind.value}`\n\n{LAUNCH.format(kind=kind.value)}\n{_HEADER}\n{rows}\n"


def _rows(path: str, owner: type[BaseModel]) -> Iterator[str]:
    """A row for each key that is no section itself: sections have tables of their own."""
    made = owner.model_json_schema()
    for name, field in owner.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            continue
        value = written(owner, name, made["properties"][name])
        if value.form is not None:
            kinds = [value.form if _takes_zero(value.ways) else f"{value.form}, not 0"]
        else:
            kinds = [_in_words(way, made.get("$defs", {})) for way in value.ways]
        # In a field of text a word is not told from text, and is in the description.
        text = ", or ".join([*kinds, *(f"`{word}`" for word in value.words)])
        place = _join(path, name)
        yield f"| `{place}` | {text} | {_default(place, field)} | {applies(field)} | {_cell(field.description)} |"


def _takes_zero(ways: Sequence[Schema]) -> bool:
    return any(0 in way.get("enum", ()) for way in ways)


def _in_words(way: Mapping[str, Any], parts: Mapping[str, Any]) -> str:
    """A way of writing a value, in words."""
    if "$ref" in way:
        return _in_words(parts[way["$ref"].rpartition("/")[2]], parts)
    if "anyOf" in way:
        return " or ".join(_in_words(inner, parts) for inner in way["anyOf"])
    if "const" in way or "enum" in way:
        return ", ".join(f"`{choice}`" for choice in way.get("enum", [way.get("const")]))
    if way["type"] == "array":
        return f"list of: {_in_words(way['items'], parts)}"
    return _of_object(way, parts) if way["type"] == "object" else _of_scalar(way)


def _of_object(way: Mapping[str, Any], parts: Mapping[str, Any]) -> str:
    if "properties" in way:
        return "section"
    held = way.get("additionalProperties") or next(iter(way["patternProperties"].values()))
    # JSON schema says `true` for whatever may stand there.
    return f"name: {'any value' if held is True else _in_words(held, parts)}"


def _of_scalar(way: Mapping[str, Any]) -> str:
    word = "path" if way.get("format") == "path" else _SCALARS[way["type"]]
    return word + _limits(way)


def _limits(way: Mapping[str, Any]) -> str:
    low, high = way.get("minimum"), way.get("maximum")
    if low is not None and high is not None:
        return f", {low:g} to {high:g}"
    if low is not None:
        return f", at least {low:g}"
    return f", above {way['exclusiveMinimum']:g}" if "exclusiveMinimum" in way else ""


def _default(place: str, field: FieldInfo) -> str:
    if place in STATED_DEFAULTS:
        return STATED_DEFAULTS[place]
    if field.is_required():
        return "required"
    value = shown(field, field.get_default(call_default_factory=False))
    if value is None:
        return "not set"
    return f"`[{', '.join(map(str, value))}]`" if isinstance(value, list) else f"`{_cell(_yaml(value))}`"


def _yaml(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _cell(text: str | None) -> str:
    return (text or "").replace("|", "\\|").replace("\n", " ")


def main(arguments: Sequence[str]) -> int:
    """The exit code: 0 good, 1 not up to date, 2 a wrong call."""
    if list(arguments) not in ([], ["--check"]) or not _DOCS.is_dir():
        sys.stderr.write("usage: python -m supervisor.config.document [--check], in a checkout that has docs/\n")
        return 2
    old = stale_documents(_DOCS)
    for path, text in old.items():
        if arguments:
            sys.stderr.write(f"{path} is not up to date: run python -m supervisor.config.document\n")
        else:
            path.write_text(text, encoding="utf-8")
            sys.stdout.write(f"wrote {path}\n")
    return 1 if old and arguments else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
