"""Grammars of tool calls: what each family writes is let through and read back; what lacks an argument is not."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engines.mlx.server.notations import calls_grammar
from engines.tool_calls import recover

llguidance = pytest.importorskip("llguidance")

PLACE = {"type": "object", "properties": {"x": {"type": "number"}}, "required": ["x"], "additionalProperties": False}
WEATHER: dict[str, Any] = {
    "name": "weather",
    "parameters": {
        "type": "object",
        "properties": {
            "city": {"type": "string"},
            "days": {"type": "integer"},
            "unit": {"enum": ["c", "f"]},
            "place": PLACE,
        },
        "required": ["city", "days"],
    },
}
CLOCK: dict[str, Any] = {"name": "clock"}
TOOLS = (WEATHER, CLOCK)
OFFERED = [{"type": "function", "function": tool} for tool in TOOLS]


def _plain(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _json_call(arguments: Mapping[str, Any]) -> str:
    return json.dumps({"name": "weather", "arguments": arguments}, ensure_ascii=False)


def _written(family: str, arguments: Mapping[str, Any]) -> str:
    """A call of the weather as a model of this family writes it."""
    text = json.dumps(arguments, ensure_ascii=False)
    kimi = f"<|tool_call_begin|>functions.weather:0<|tool_call_argument_begin|>{text}<|tool_call_end|>"
    rows = [(key, _plain(value)) for key, value in arguments.items()]
    qwen = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in rows)
    minimax = "".join(f'<parameter name="{key}">{value}</parameter>\n' for key, value in rows)
    glm = "".join(f"\n<arg_key>{key}</arg_key>\n<arg_value>{value}</arg_value>" for key, value in rows)
    python = ", ".join(f"{key}={json.dumps(value, ensure_ascii=False)}" for key, value in arguments.items())
    return {
        "json_tools": f"<tool_call>\n{_json_call(arguments)}\n</tool_call>",
        "mistral": f"[TOOL_CALLS]weather[ARGS]{text}",
        "mistral list": f"[TOOL_CALLS] [{_json_call(arguments)}]",
        "kimi_k2": f"<|tool_calls_section_begin|>{kimi}<|tool_calls_section_end|>",
        "qwen3_coder": f"<tool_call>\n<function=weather>\n{qwen}</function>\n</tool_call>",
        "minimax_m2": f'<minimax:tool_call>\n<invoke name="weather">\n{minimax}</invoke>\n</minimax:tool_call>',
        "glm47": f"<tool_call>weather{glm}\n</tool_call>",
        "pythonic": f"<|tool_call_start|>[weather({python})]<|tool_call_end|>",
    }[family]


FAMILIES = ["json_tools", "mistral", "mistral list", "kimi_k2", "qwen3_coder", "minimax_m2", "glm47", "pythonic"]


def _passes(family: str, text: str, tools: tuple[dict[str, Any], ...] = TOOLS, *, several: bool = True) -> bool:
    """The whole text is what the grammar lets through, byte by byte."""
    template = "[ARGS]" if family == "mistral" else ""
    name = family.split(" ", maxsplit=1)[0]
    grammar = calls_grammar(name, tools, json.dumps, several=several, template=template)
    assert grammar is not None
    form = llguidance.LLMatcher.grammar_from_lark(grammar)
    matcher = llguidance.LLMatcher(llguidance.LLTokenizer("byte"), form, log_level=0)
    assert not matcher.is_error(), matcher.get_error()
    tokens = list(text.encode())
    if matcher.validate_tokens(tokens) < len(tokens):
        return False
    matcher.consume_tokens(tokens)
    return bool(matcher.is_accepting())


# What a value without quotes can't hold is left out: marks, and blanks at its ends.
WORDS = st.text(st.characters(codec="utf-8", exclude_categories=("C", "Z")), min_size=1, max_size=12)


@settings(max_examples=40, deadline=None)
@given(st.sampled_from(FAMILIES), WORDS, st.integers(-99, 99), st.sampled_from([None, "c"]), st.booleans())
def test_a_good_call_passes_and_is_read(family: str, city: str, days: int, unit: str | None, place: bool) -> None:
    """Whatever the values are, in every family, with and without what is not required."""
    arguments: dict[str, Any] = {"city": f"x{city}", "days": days}
    if unit is not None:
        arguments["unit"] = unit
    if place:
        arguments["place"] = {"x": 1.5}
    text = _written(family, arguments)
    assert _passes(family, text)
    found = recover(text, OFFERED)
    assert [(call.name, call.arguments) for call in found.calls] == [("weather", arguments)]
    assert (found.complete, found.missing_required) == (True, ())


@pytest.mark.parametrize("family", FAMILIES)
def test_what_is_no_good_call_does_not_pass(family: str) -> None:
    """A required argument is missing, a value is of another type, a tool is not offered, or it is no call."""
    for arguments in ({"city": "Oslo"}, {"days": 2}, {}, {"city": "Oslo", "days": "two"}):
        assert not _passes(family, _written(family, arguments)), arguments
    assert not _passes(family, _written(family, {"city": "Oslo", "days": 2, "unit": "k"}))
    assert not _passes(family, _written(family, {"city": "Oslo", "days": 2}).replace("weather", "whether"))
    assert not _passes(family, "Oslo is nice.")
    assert not _passes(family, "")


@pytest.mark.parametrize("family", FAMILIES)
def test_calls_after_each_other(family: str) -> None:
    """As many as are allowed, and tools without arguments."""
    one = _written(family, {"city": "Oslo", "days": 2})
    if family not in {"mistral list", "kimi_k2", "minimax_m2", "pythonic"}:  # these repeat inside of their marks
        assert _passes(family, one * 2)
        assert not _passes(family, one * 2, several=False)
    assert _passes(family, one, (WEATHER,), several=False)
    assert _passes(family, one, (CLOCK, WEATHER))


@pytest.mark.parametrize("family", ["qwen3_coder", "minimax_m2"])
def test_text_may_hold_tags(family: str) -> None:
    """Code is a common argument: only the mark that ends a value ends it."""
    text = _written(family, {"city": "<b>Oslo</b>\n</div> a < b", "days": 2})
    assert _passes(family, text)
    assert recover(text, OFFERED).calls[0].arguments["city"] == "<b>Oslo</b>\n</div> a < b"


def test_what_has_no_grammar() -> None:
    """A family that is not known, and names that its notation can't hold; JSON holds any."""
    odd = ({"name": "a b", "parameters": {"type": "object", "properties": {'"': {}}, "required": ['"']}},)
    assert calls_grammar("gemma4", TOOLS, json.dumps, several=True, template="") is None
    assert calls_grammar("glm47", odd, json.dumps, several=True, template="") is None
    assert calls_grammar("json_tools", odd, json.dumps, several=True, template="") is not None


def test_arguments_that_are_all_optional() -> None:
    """Commas stand between those that are there, whichever they are."""
    tool = {"name": "f", "parameters": {"type": "object", "properties": {key: {"type": "integer"} for key in "abc"}}}
    for given_ in ("", "a=1", "b=1", "a=1, c=2", "b=1, c=2", "a=1, b=2, c=3"):
        assert _passes("pythonic", f"<|tool_call_start|>[f({given_})]<|tool_call_end|>", (tool,)), given_
    for given_ in (", a=1", "a=1,", "c=1, a=2", "a=1 b=2"):
        assert not _passes("pythonic", f"<|tool_call_start|>[f({given_})]<|tool_call_end|>", (tool,)), given_


def test_definitions_are_found_from_a_property() -> None:
    """References count from the top of the schema that they are in, which is a property's own here."""
    definitions = {"day": {"enum": [1, 2]}}
    schema = {"type": "object", "properties": {"d": {"type": "integer", "$ref": "#/$defs/day"}}, "$defs": definitions}
    tool = {"name": "f", "parameters": {**schema, "required": ["d"]}}
    assert _passes("json_tools", '<tool_call>\n{"name": "f", "arguments": {"d": 2}}\n</tool_call>', (tool,))
    assert _passes("pythonic", "<|tool_call_start|>[f(d=2)]<|tool_call_end|>", (tool,))
    assert not _passes("pythonic", "<|tool_call_start|>[f(d=3)]<|tool_call_end|>", (tool,))
