"""A strict reader of YAML: plain values only, duplicate keys are errors, and nothing is read as what it isn't.

YAML 1.1 reads ``1:30`` as 90, ``010`` as 8 and ``2024-01-01`` as a date; here each is an error that says how to write
it. ``${env:NAME}`` in a value becomes the variable's value; ``$${`` stands for ``${``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import yaml

from supervisor.config.problems import Found, Where

# A config is some ten levels deep; the second bound ends aliases that multiply.
_MAX_DEPTH = 32
_MAX_NODES = 200_000

_TAG = "tag:yaml.org,2002:"
_MERGE = f"{_TAG}merge"
_INT = re.compile(r"[-+]?(?:0|[1-9][0-9]{0,18})|0x[0-9a-fA-F]{1,16}")
_FLOAT = re.compile(r"[-+]?(?:[0-9]+\.[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?")
_ENV = re.compile(r"\$\$\{|\$\{env:([A-Za-z_][A-Za-z0-9_]*)\}|\$\{([^}]*)\}?")
_READERS: Mapping[str, tuple[re.Pattern[str], Callable[[str], Any]]] = {
    "null": (re.compile(r".*", re.DOTALL), lambda _: None),
    "bool": (
        re.compile(r"true|yes|on|false|no|off", re.IGNORECASE),
        lambda text: text.lower() in ("true", "yes", "on"),
    ),
    "int": (_INT, lambda text: int(text, 0)),
    "float": (_FLOAT, float),
}
_TAGGED = ("has a tag (!…), which a config doesn't use", "leave the tag out")
_BASE_60 = "YAML reads numbers with colons in base 60 (1:30 is 90)"
_OCTAL = "YAML reads a number that starts with 0 as octal (010 is 8)"


@dataclass(frozen=True, slots=True)
class Document:
    """What a file holds.

    Attributes:
        tree: dicts, lists, text, numbers, switches and None; None where a problem was found.
        lines: line of each key or list entry, from 1.
        secrets: values that came from the environment, by place.
        problems: what is wrong with it as YAML.
    """

    tree: Any = None
    lines: Mapping[Where, int] = field(default_factory=dict)
    secrets: Mapping[Where, tuple[str, ...]] = field(default_factory=dict)
    problems: tuple[Found, ...] = ()


def read_yaml(data: bytes, env: Mapping[str, str]) -> Document:
    """The document in ``data``. Never raises: what is wrong is in its ``problems``."""
    loader_type = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        text = data.decode("utf-8-sig")
        loader = loader_type(text)
        try:
            node = loader.get_single_node()
        finally:
            loader.dispose()
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        return Document(problems=(Found((), "is not UTF-8 text: is this a config?", line=line),))
    except yaml.YAMLError as error:
        return Document(problems=(_not_yaml(error),))
    except RecursionError:
        return Document(problems=(Found((), "is nested too deeply"),))
    if node is None:
        return Document()
    builder = _Builder(env)
    tree = builder.build(node, ())
    return Document(tree, lines=builder.lines, secrets=builder.secrets, problems=tuple(builder.problems))


def _not_yaml(error: yaml.YAMLError) -> Found:
    mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
    line = mark.line + 1 if mark is not None else None
    if isinstance(error, yaml.reader.ReaderError):
        return Found((), "holds control characters: is this a config?", line=line)
    said = getattr(error, "problem", None) or getattr(error, "context", None) or "can't be read"
    if "another document" in said:
        return Found((), "holds two documents", "leave one, without '---' between", line)
    if "cannot start any token" in said:
        hint = "indent with spaces, not tabs, and quote text that starts with @, ` or %"
        return Found((), f"is not YAML: {said}", hint, line)
    return Found((), f"is not YAML: {said}", line=line)


class _Builder:
    """Walks the nodes of one document once; owns what it finds."""

    def __init__(self, env: Mapping[str, str]) -> None:
        self.lines: dict[Where, int] = {}
        self.secrets: dict[Where, tuple[str, ...]] = {}
        self.problems: list[Found] = []
        self._env = env
        self._nodes = 0

    def build(self, node: yaml.Node, where: Where) -> Any:
        """The plain value of a node; None where it has a problem."""
        self._nodes += 1
        if len(where) > _MAX_DEPTH or self._nodes > _MAX_NODES:
            if self._nodes <= _MAX_NODES + 1:
                self._wrong(where[:3], node, "is nested too deeply, or its aliases multiply without end")
            return None
        if isinstance(node, yaml.MappingNode) and node.tag == f"{_TAG}map":
            return self._mapping(node, where)
        if isinstance(node, yaml.SequenceNode) and node.tag == f"{_TAG}seq":
            values = []
            for index, entry in enumerate(node.value):
                self.lines[*where, index] = entry.start_mark.line + 1
                values.append(self.build(entry, (*where, index)))
            return values
        if isinstance(node, yaml.ScalarNode):
            return self._scalar(node, where)
        self._wrong(where, node, *_TAGGED)
        return None

    def _wrong(self, where: Where, node: yaml.Node, message: str, suggestion: str | None = None) -> None:
        self.problems.append(Found(where, message, suggestion, node.start_mark.line + 1))

    def _mapping(self, node: yaml.MappingNode, where: Where) -> dict[str, Any]:
        values: dict[str, Any] = {}
        for key, value in node.value:
            if key.tag == _MERGE:
                for merged in self._merged(value, where):
                    values = {**merged, **values}
        own: dict[str, int] = {}
        for key, value in node.value:
            if key.tag == _MERGE:
                continue
            if not isinstance(key, yaml.ScalarNode) or not key.tag.startswith(_TAG):
                self._wrong(where, key, "has a key that isn't text")
                continue
            place, line = (*where, key.value), key.start_mark.line + 1
            if key.value in own:
                first = f"is there twice, first in line {own[key.value]}"
                self.problems.append(Found(place, first, "keep one of them", line, blocks=False))
                self.build(value, place)
                continue
            if key.tag != f"{_TAG}str":
                self._wrong(place, key, "the key is not text to YAML", f'quote it: "{key.value}"')
            own[key.value] = self.lines[place] = line
            values[key.value] = self.build(value, place)
        return values

    def _merged(self, node: yaml.Node, where: Where) -> list[dict[str, Any]]:
        parts = node.value if isinstance(node, yaml.SequenceNode) else [node]
        built = [self.build(part, where) for part in parts]
        if not all(isinstance(part, dict) for part in built):
            self._wrong((*where, "<<"), node, "can only take in sections of keys")
        return [part for part in built if isinstance(part, dict)]

    def _scalar(self, node: yaml.ScalarNode, where: Where) -> Any:
        text: str = node.value
        kind = node.tag.removeprefix(_TAG)
        if kind in ("str", "value"):
            return self._text(node, where)
        if kind in _READERS and _READERS[kind][0].fullmatch(text):
            return _READERS[kind][1](text)
        if kind in ("int", "float"):
            self._wrong(where, node, *_number_trap(text))
        elif kind == "timestamp":
            self._wrong(where, node, "is a date to YAML", "quote it")
        else:
            self._wrong(where, node, *_TAGGED)
        return None

    def _text(self, node: yaml.ScalarNode, where: Where) -> str | None:
        if "\0" in node.value:
            self._wrong(where, node, "holds a NUL character")
            return None
        used: list[str] = []
        wrong: list[tuple[str, str]] = []

        def fill(match: re.Match[str]) -> str:
            name, other = match[1], match[2]
            if name is None and other is None:
                return "${"
            if name is None:
                meant = other.removeprefix("env:").strip()
                hint = f"${{env:{meant}}}" if meant.isidentifier() else "${env:NAME}"
                wrong.append(("only ${env:NAME} is filled in", f"write {hint}, or $${{ for a plain ${{"))
            elif name not in self._env:
                wrong.append((f"the environment has no {name}", f"set {name}, or write the value here"))
            else:
                used.append(self._env[name])
                return self._env[name]
            return ""

        text = _ENV.sub(fill, node.value)
        for message, suggestion in wrong:
            self._wrong(where, node, message, suggestion)
        if wrong:
            return None
        if used:
            self.secrets[where] = (text, *used)
        return text


def _number_trap(text: str) -> tuple[str, str]:
    if ":" in text:
        return _BASE_60, "quote it; a duration is written like 1m30s"
    if "_" in text:
        return "YAML takes the underscores out of numbers", "leave them out, or quote it if it is text"
    if re.fullmatch(r"[-+]?0[0-9]+", text):
        return _OCTAL, "leave the 0 out, or quote it if it is text"
    return "is not a plain decimal number", "write digits, or quote it if it is text"
