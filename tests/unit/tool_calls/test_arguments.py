"""Arguments: types by the tool's schema, and what a tool requires."""

from __future__ import annotations

from typing import Any

import pytest

from engines.tool_call_forms.toolbox import coerce
from engines.tool_call_forms.values import LOST, read_whole
from engines.tool_calls import recover
from tests.unit.tool_calls.cases import TOOLS, tool


@pytest.mark.parametrize(
    ("text", "schema", "value"),
    [
        ("5", {"type": "integer"}, 5),
        ("5.0", {"type": "integer"}, 5),
        ("5.5", {"type": "integer"}, "5.5"),
        ("00420", {"type": "integer"}, "00420"),
        ("00420", {"type": "string"}, "00420"),
        ("9007199254740993", {"type": "integer"}, 9007199254740993),
        ("9" * 5000, {"type": "integer"}, "9" * 5000),
        ("1e999", {"type": "number"}, "1e999"),
        ("-0.25", {"type": "number"}, -0.25),
        ("TRUE", {"type": "boolean"}, True),
        ("yes", {"type": "boolean"}, "yes"),
        ("null", {"type": ["integer", "null"]}, None),
        ("5", {"anyOf": [{"type": "integer"}, {"type": "null"}]}, 5),
        ("5", {"type": ["integer", "string"]}, "5"),
        ("5", {}, "5"),
        ("2", {"enum": [1, 2]}, 2),
        ('["a", "b"]', {"type": "array"}, ["a", "b"]),
        ("['1']", {"type": "array", "items": {"type": "integer"}}, [1]),
        ('{"a": "1"}', {"type": "object", "properties": {"a": {"type": "integer"}}}, {"a": 1}),
        ("{oops", {"type": "object"}, "{oops"),
    ],
)
def test_text_becomes_what_is_declared(text: str, schema: dict[str, Any], value: object) -> None:
    """Text turns into the declared type where that loses nothing, and stays text elsewhere."""
    result = coerce(text, schema, as_text=True)
    assert result == value
    assert type(result) is type(value)


def test_a_number_becomes_the_string_that_is_declared() -> None:
    """A bare number for a string parameter is that string; a boolean is left alone."""
    assert coerce(2031, {"type": "string"}, as_text=False) == "2031"
    assert coerce(True, {"type": "string"}, as_text=False) is True  # noqa: FBT003 - the value under test


def test_missing_required_arguments_are_named_in_the_order_of_the_schema() -> None:
    """What a tool requires and its call lacks is listed, and nothing is invented for it."""
    tools = [tool("move", ["source", "target"], source="string", target="string")]
    recovered = recover('<tool_call>{"name": "move", "arguments": {"x": 1}}</tool_call>', tools)
    assert recovered.missing_required == ("source", "target")
    assert recovered.calls[0].arguments == {"x": 1}


def test_reasoning_is_never_searched() -> None:
    """A call that was only considered is not made."""
    call = '<tool_call>{"name": "clock_now", "arguments": {}}</tool_call>'
    assert recover("It is noon.", TOOLS, reasoning=call).calls == ()


def test_half_a_surrogate_pair_does_not_reach_the_arguments() -> None:
    """A lone half would make the request unwritable in UTF-8."""
    text = r'<tool_call>{"name": "find_notes", "arguments": {"query": "\ud83d \ud83d\udc36"}}</tool_call>'
    assert recover(text, TOOLS).calls[0].arguments == {"query": "\ufffd 🐶"}


@pytest.mark.parametrize("text", ["[" * 5000, '{"a":' * 5000, "[1", "1 2", "", "tru", "{1: 2}"])
def test_text_that_is_no_value(text: str) -> None:
    """What does not read as one whole value is lost, however deep it goes."""
    assert read_whole(text) is LOST


@pytest.mark.parametrize("name", ["Forecast_for", "forecast_for2", "functions.forecast_for"])
def test_names_match_exactly(name: str) -> None:
    """A name that is nearly offered is not offered."""
    text = f'<tool_call>{{"name": "{name}", "arguments": {{"city": "Oslo"}}}}</tool_call>'
    recovered = recover(text, TOOLS)
    assert recovered.calls == ()
    assert recovered.content == text
