"""Answers in chunks: the result never depends on the chunking, and text is passed on as soon as it is certain."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engines.tool_call_forms import marks
from engines.tool_calls import Recoverer, recover
from tests.unit.tool_calls.cases import TOOLS, rows

CORPUS = [case["text"] for case in (*rows("handed.jsonl"), *rows("forms.jsonl"))]
PIECES = st.sampled_from(
    [
        *marks.OPENERS,
        *marks.CLOSERS,
        *marks.END_OF_TURN,
        *("forecast_for", "clock_now", "clock", "weather-alerts", "\n", "\n\n", " ", "{", "}", "[", "]", "(", ")"),
        *('"', "'", "\\", "`", "```", "```json\n", "~~~\n", ":", ",", "=", "1", "12", "true", "None", ";", "<", "<t"),
        *('{"name": "forecast_for", "arguments": {"city": "Oslo"}}', '{"name": "', '", "arguments": ', '"city": '),
        *("<parameter=city>", "</parameter>", '<parameter name="city">', "<arg_key>city</arg_key>", "<arg_value>"),
        *("[ARGS]", "functions.", 'name="forecast_for">', "forecast_for>", "clock_now()", 'forecast_for(city="x")'),
        *("call:forecast_for{city:", "<escape>", '<|"|>', "Action:", "to=functions.clock_now", "<|message|>"),
        *("<|channel|>commentary", "<|channel|>analysis", "<|constrain|>json", ":0<|tool_call_argument_begin|>"),
        *("a" * 200, " " * 150, "`" * 70, "to=" + "q" * 200),
        *("all\n", "text", "a ", "fun", ">>", "[TOOL_", "é", "🐶", "\ud83d", "\u2028", "\x00"),
    ]
)


def _mutated(text: str, at: int, gone: int, piece: str) -> str:
    at %= len(text) + 1
    return text[:at] + piece + text[at + gone :]


ANSWERS = st.one_of(
    st.lists(PIECES, max_size=25).map("".join),
    st.text(max_size=80),
    st.builds(_mutated, st.sampled_from(CORPUS), st.integers(0, 999), st.integers(0, 12), PIECES | st.just("")),
    st.lists(st.sampled_from(CORPUS), min_size=2, max_size=3).map("\n".join),
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
SCHEMAS = st.dictionaries(st.sampled_from(["type", "properties", "required", "enum", "items", "anyOf", "const"]), JSON)
TOOLBOXES = st.lists(
    st.builds(
        lambda name, parameters: {"type": "function", "function": {"name": name, "parameters": parameters}},
        st.sampled_from(["forecast_for", "clock_now", "", "a b", "x" * 300]) | st.text(max_size=6),
        SCHEMAS | JSON,
    ),
    max_size=3,
)


def _feed(text: str, sizes: list[int], tools: object = TOOLS) -> tuple[str, Recoverer]:
    recoverer = Recoverer(tools)
    passed, at = [], 0
    for turn in range(len(text)):
        size = sizes[turn % len(sizes)]
        passed.append(recoverer.feed(text[at : at + size]))
        at += size
        if at >= len(text):
            break
    return "".join(passed), recoverer


@settings(max_examples=400, deadline=None)
@given(ANSWERS, st.lists(st.integers(1, 40), min_size=1, max_size=5))
def test_any_chunking_gives_the_same(text: str, sizes: list[int]) -> None:
    """The result is that of the whole text, and passed text plus rest is exactly its content."""
    passed, recoverer = _feed(text, sizes)
    recovered = recoverer.end()
    assert recovered == recover(text, TOOLS)
    assert passed + recoverer.rest == recovered.content


@settings(max_examples=200, deadline=None)
@given(ANSWERS)
def test_without_a_call_the_text_is_untouched(text: str) -> None:
    """No call: the content is the text, complete, of no provenance."""
    recovered = recover(text, TOOLS)
    if not recovered.calls:
        assert (recovered.content, recovered.complete, recovered.provenance) == (text, True, None)
        assert recovered.missing_required == ()


@settings(max_examples=200, deadline=None)
@given(ANSWERS, TOOLBOXES | JSON)
def test_nothing_raises(text: str, tools: Any) -> None:
    """Whatever the tools are: no error, offered names only, and arguments that JSON can write and UTF-8 can hold."""
    recovered = recover(text, tools)
    offered = {entry["function"]["name"] for entry in tools} if recovered.calls else set()
    for call in recovered.calls:
        assert call.name in offered
        if "\ud83d" not in text:
            json.dumps(call.arguments, allow_nan=False, ensure_ascii=False).encode()


def test_plain_text_passes_at_once() -> None:
    """Words are passed on with the chunk that ends them; only white space waits for what follows it."""
    recoverer = Recoverer(TOOLS)
    assert recoverer.feed("It is nine ") == "It is nine"
    assert recoverer.feed("degrees") == " degrees"
    assert recoverer.feed("<") == ""
    assert recoverer.feed("3 here") == "<3 here"


def test_without_tools_every_chunk_passes_unread() -> None:
    """Nothing can be called, so nothing is held back, markers neither."""
    recoverer = Recoverer([])
    assert recoverer.feed("<tool_call>\n") == "<tool_call>\n"
    assert recoverer.end().content == "<tool_call>\n"
    assert recoverer.rest == ""


def test_text_after_a_call_is_passed_on() -> None:
    """A call is held back, but not the rest of the answer with it."""
    recoverer = Recoverer(TOOLS)
    assert recoverer.feed('Sure.\n<tool_call>{"name": "clock_now", "arguments": {}}') == "Sure."
    later = "".join(recoverer.feed(word) for word in ("</tool_call>\nDone", " and done.", " More words follow." * 10))
    assert later.startswith("\n\nDone and done.")


@pytest.mark.parametrize(
    "text",
    [
        json.dumps([{"name": f"n{at}", "note": "<tool_call>"} for at in range(200)]),
        "```json\n" + json.dumps({f"k{at}": at for at in range(400)}, indent=1) + "\n```\nDone.",
        "The <tool_call> tag is odd. " * 100,
        "> quote\n- item\n\n`code` and ``more``\n" * 60,
        "```python\nclock_now()\n```\n" * 100,
    ],
    ids=["json", "fence", "spoken", "markdown", "code"],
)
def test_answers_that_look_like_calls_are_not_held_back(text: str) -> None:
    """At most 250 characters wait, however long the answer is (a JSON answer once waited for its end)."""
    recoverer = Recoverer(TOOLS)
    passed = 0
    for at in range(0, len(text), 4):
        passed += len(recoverer.feed(text[at : at + 4]))
        assert at + 4 - passed <= 250


HOSTILE = [
    "<tool_call>",
    "{{{{",
    '{"a":',
    '<tool_call>{"',
    "<tool_call>{'",
    '<tool_call>{"name":"forecast_for","arguments":{"city":[',
    "<tool_call><function=forecast_for>\n<parameter=city>\nx\n</function></tool_call>\n",
    '<invoke name="x"><parameter name="a">',
    "forecast_for\n<arg_key>city</arg_key><arg_value>\n",
    "\nclock_now()\n\n",
    '\n```json\n{"name": "forecast_for", "arguments": {"city": "Oslo"}}\n```\n',
    "``\n`<tool_call>\n",
    "\n ",
    "[",
    "<|channel|>analysis<|message|>",
    ">>>",
    "<|tool_call_start|>[clock_now(),",
    '<tool_call>{"name":"clock_now","arguments":{}}</tool_call>',
    "</s>",
]


@pytest.mark.parametrize("unit", HOSTILE)
def test_hostile_text_takes_linear_time(unit: str) -> None:
    """A hundred kilobytes of markers are read in seconds, where a quadratic reader needs minutes."""
    text = (unit * (100_000 // len(unit) + 1))[:100_000]
    began = time.process_time()
    recover(text, TOOLS)
    assert time.process_time() - began < 10


@pytest.mark.parametrize("unit", HOSTILE)
def test_feeding_costs_a_constant_per_character(unit: str) -> None:
    """What is held back is looked at again only when it has grown: the characters looked at stay in proportion."""
    text = (unit * (20_000 // len(unit) + 1))[:20_000]
    _, recoverer = _feed(text, [3])
    assert recoverer._work <= 8_192 + 8 * len(text)
