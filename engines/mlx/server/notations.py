"""How model families write tool calls, as grammars of the constrained decoder (llguidance's Lark). Pure.

Each grammar holds an answer to calls of the offered tools, with every argument that is required: in JSON in the order
of the schema, elsewhere those that are required first. Where a family writes values as they are, without quotes, a
string is any text without the mark that ends it. A family that is not here, or a name that its notation can't hold, has
no grammar: its calls are read from free text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Mark = Callable[[str], str]
"""Gives a mark as the grammar writes it: a token of its own, or its letters."""
Tool = Mapping[str, Any]
"""The ``function`` of an offered tool."""

# Blanks in JSON are fixed, since a small model that may write any number of them sometimes writes nothing else.
BLANKS = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
_PLAIN_NAME = re.compile(r"[\w.:-]{1,256}")
_VALUES = frozenset({"integer", "number", "boolean", "object", "array", "null"})
_PARAMETER_END = "</parameter>"
_DEFINITIONS = ("$defs", "definitions")


def calls_grammar(family: str | None, tools: Sequence[Tool], mark: Mark, *, several: bool, template: str) -> str | None:
    """The grammar of an answer that calls tools and says nothing else; None: this family has none.

    Args:
        family: ``mlx_lm``'s word for how the model writes calls; None: a template that knows no tools.
        tools: those that may be called.
        mark: see ``Mark``.
        several: more than one call may be made.
        template: the model's chat template: a family may have an older and a newer notation.
    """
    if family == "mistral" and "[ARGS]" not in template:
        family = "mistral list"
    write = _WRITERS.get(family)
    if write is None or (family not in _QUOTED and not _plain_names(tools)):
        return None
    rows = _Rows(mark)
    rows.named("start", write(rows, tools, several))
    return "\n".join(rows.lines) + "\n"


def call_schema(function: Tool, name: str = "name") -> dict[str, Any]:
    """The schema of a call that is an object. Definitions move up, since references count from the top."""
    parameters = _parameters(function)
    lifted = {key: parameters.pop(key) for key in _DEFINITIONS if key in parameters}
    return {
        **lifted,
        "type": "object",
        "properties": {name: {"const": function["name"]}, "arguments": parameters},
        "required": [name, "arguments"],
        "additionalProperties": False,
    }


class _Rows:
    """Collects rules, each under a name of its own."""

    def __init__(self, mark: Mark) -> None:
        self.lines = ["%llguidance {}"]
        self.mark = mark
        self._count = 0

    def named(self, name: str, body: str) -> None:
        self.lines.append(f"{name}: {body}")

    def rule(self, body: str) -> str:
        self._count += 1
        self.named(name := f"rule_{self._count}", body)
        return name

    def terminal(self, body: str) -> str:
        self._count += 1
        self.named(name := f"TEXT_{self._count}", body)
        return name

    def text_until(self, end: str) -> str:
        """Any text up to the letters that end it, and those."""
        self._count += 1
        name = f"rule_{self._count}"
        self.lines.append(f"{name}[suffix={end}]: /(?s:.*)/")
        return name

    def json(self, schema: Mapping[str, Any]) -> str:
        return self.rule(f"%json {json.dumps({**schema, 'x-guidance': BLANKS})}")

    def any_of(self, rules: Sequence[str]) -> str:
        return self.rule(" | ".join(rules))


@dataclass(frozen=True, slots=True)
class _Around:
    """What stands around a value: ``end`` is the mark that ends any text; ``before_end`` only stands after JSON."""

    start: str
    end: str
    after: str = ""
    before_end: str = ""


Writer = Callable[[_Rows, Sequence[Tool], bool], str]


def _json_tools(rows: _Rows, tools: Sequence[Tool], several: bool) -> str:
    tool = rows.any_of([rows.json(call_schema(tool)) for tool in tools])
    call = rows.rule(f'{rows.mark("<tool_call>")} "\\n" {tool} "\\n" {rows.mark("</tool_call>")}')
    return _repeated(call, several, rows.terminal("/\\n?/"))


def _mistral(rows: _Rows, tools: Sequence[Tool], several: bool) -> str:
    start, arguments = rows.mark("[TOOL_CALLS]"), rows.mark("[ARGS]")
    made = [f"{start} {_text(tool['name'])} {arguments} {rows.json(_parameters(tool))}" for tool in tools]
    return _repeated(rows.any_of(made), several)


def _mistral_list(rows: _Rows, tools: Sequence[Tool], several: bool) -> str:
    tool = rows.any_of([rows.json(call_schema(tool)) for tool in tools])
    return f'{rows.mark("[TOOL_CALLS]")} " "? "[" {_repeated(tool, several, _text(", "))} "]"'


def _kimi(rows: _Rows, tools: Sequence[Tool], several: bool) -> str:
    number = rows.terminal("/[0-9]/")
    begin, arguments, end = (rows.mark(f"<|tool_call_{part}|>") for part in ("begin", "argument_begin", "end"))
    made = []
    for tool in tools:
        name = _text(f"functions.{tool['name']}:")
        made.append(f"{begin} {name} {number} {arguments} {rows.json(_parameters(tool))} {end}")
    calls = _repeated(rows.any_of(made), several)
    return f"{rows.mark('<|tool_calls_section_begin|>')} {calls} {rows.mark('<|tool_calls_section_end|>')}"


def _qwen_coder(rows: _Rows, tools: Sequence[Tool], several: bool) -> str:
    end, line = _text("</function>\n"), rows.terminal("/\\n?/")
    made = []
    for tool in tools:
        name = _text(f"\n<function={tool['name']}>\n")
        made.append(f"{name} {_given(rows, tool, _qwen_parameter)} {end}")
    call = rows.rule(f"{rows.mark('<tool_call>')} {rows.any_of(made)} {rows.mark('</tool_call>')}")
    return _repeated(call, several, line)


def _qwen_parameter(key: str) -> _Around:
    return _Around(_text(f"<parameter={key}>\n"), _text(_PARAMETER_END), _text("\n"), _text("\n"))


def _minimax(rows: _Rows, tools: Sequence[Tool], several: bool) -> str:
    end, line = _text("</invoke>\n"), _text("\n")
    made = []
    for tool in tools:
        name = _text(f'<invoke name="{tool["name"]}">\n')
        made.append(f"{name} {_given(rows, tool, _minimax_parameter)} {end}")
    calls = _repeated(rows.any_of(made), several)
    return f"{rows.mark('<minimax:tool_call>')} {line} {calls} {rows.mark('</minimax:tool_call>')}"


def _minimax_parameter(key: str) -> _Around:
    return _Around(_text(f'<parameter name="{key}">'), _text(_PARAMETER_END), _text("\n"))


def _glm(rows: _Rows, tools: Sequence[Tool], several: bool) -> str:
    line = rows.terminal("/\\n?/")
    key, key_end, value, value_end = map(rows.mark, ("<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"))

    def around(name: str) -> _Around:
        return _Around(f"{line} {key} {_text(name)} {key_end} {line} {value}", value_end)

    made = rows.any_of([f"{_text(tool['name'])} {_given(rows, tool, around)}" for tool in tools])
    call = rows.rule(f"{rows.mark('<tool_call>')} {made} {line} {rows.mark('</tool_call>')}")
    return _repeated(call, several, line)


def _pythonic(rows: _Rows, tools: Sequence[Tool], several: bool) -> str:
    end, comma = _text(")"), _text(", ")
    made = []
    for tool in tools:
        first: list[str] = []
        rest: list[str] = []
        for key, schema, required in _properties(tool):
            (first if required else rest).append(f"{_text(key + '=')} {rows.json(schema)}")
        made.append(f"{_text(tool['name'] + '(')} {_listed(rows, first, rest)} {end}")
    calls = _repeated(rows.any_of(made), several, comma)
    return f'{rows.mark("<|tool_call_start|>")} "[" {calls} "]" {rows.mark("<|tool_call_end|>")}'


_WRITERS: Mapping[str | None, Writer] = {
    None: _json_tools,
    "json_tools": _json_tools,
    "mistral": _mistral,
    "mistral list": _mistral_list,
    "kimi_k2": _kimi,
    "qwen3_coder": _qwen_coder,
    "minimax_m2": _minimax,
    "glm47": _glm,
    "pythonic": _pythonic,
}
# Those that write names as JSON strings, which hold anything.
_QUOTED = frozenset({None, "json_tools", "mistral list"})


def _given(rows: _Rows, tool: Tool, around: Callable[[str], _Around]) -> str:
    """Arguments as elements: those that are required, then any of the others."""
    first: list[str] = []
    rest: list[str] = []
    for key, schema, required in _properties(tool):
        made = _element(rows, schema, around(key))
        (first if required else rest).append(made if required else f"({made})?")
    return " ".join((*first, *rest))


def _element(rows: _Rows, schema: Mapping[str, Any], around: _Around) -> str:
    """A value without quotes if it may be a string, else JSON, with what stands around it."""
    kind, choices = schema.get("type"), [schema["const"]] if "const" in schema else schema.get("enum")
    if isinstance(choices, list) and choices and all(isinstance(choice, str) and choice for choice in choices):
        value = rows.any_of([_text(choice) for choice in choices])
    elif isinstance(kind, str) and kind in _VALUES:
        value = rows.json(schema)
    elif around.end.startswith('"'):
        return f"{around.start} {rows.text_until(around.end)} {around.after}"
    else:  # a token of its own ends any text
        value = rows.terminal("/(?s:.*)/")
    return f"{around.start} {value} {around.before_end} {around.end} {around.after}"


def _listed(rows: _Rows, first: Sequence[str], rest: Sequence[str]) -> str:
    """Those of ``first``, then any of ``rest`` in their order, with commas between."""
    comma = _text(", ")
    joined = f" {comma} ".join(first)
    if first:
        return " ".join((joined, *(f"({comma} {one})?" for one in rest)))
    begun = []
    for place, one in enumerate(rest):
        begun.append(" ".join((one, *(f"({comma} {other})?" for other in rest[place + 1 :]))))
    return f"{rows.any_of(begun)}?" if begun else ""


def _properties(tool: Tool) -> list[tuple[str, dict[str, Any], bool]]:
    """Name, schema, and whether it is required, of each argument; one that is required is there, described or not."""
    parameters = _parameters(tool)
    lifted = {key: parameters[key] for key in _DEFINITIONS if key in parameters}
    properties = parameters.get("properties")
    described = dict(properties) if isinstance(properties, Mapping) else {}
    required = parameters.get("required")
    wanted = [key for key in required if isinstance(key, str)] if isinstance(required, list) else []
    for key in wanted:
        described.setdefault(key, {})
    return [
        (key, {**(schema if isinstance(schema, Mapping) else {}), **lifted}, key in wanted)
        for key, schema in described.items()
    ]


def _parameters(tool: Tool) -> dict[str, Any]:
    parameters = dict(tool.get("parameters") or {"properties": {}})
    parameters.setdefault("type", "object")
    return parameters


def _plain_names(tools: Sequence[Tool]) -> bool:
    names = [name for tool in tools for name in (tool["name"], *(key for key, _, _ in _properties(tool)))]
    return all(_PLAIN_NAME.fullmatch(name) for name in names)


def _repeated(call: str, several: bool, between: str = "") -> str:
    return f"{call} ({between} {call})*" if several else call


def _text(letters: str) -> str:
    return json.dumps(letters)
