"""Answers of a set form, calls of tools, and thoughts."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.mlx_server import MlxServer, running_mlx_server

pytestmark = [pytest.mark.engine, pytest.mark.timeout(180)]

CITY: dict[str, Any] = {
    "type": "object",
    "properties": {"city": {"enum": ["Oslo", "Rome"]}},
    "required": ["city"],
    "additionalProperties": False,
}
NOTHING = {"type": "object", "properties": {}, "additionalProperties": False}
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 8}, "size": {"enum": [1, 2, 3]}, "place": CITY},
    "required": ["name", "size", "place"],
    "additionalProperties": False,
}
TOOL = {"type": "function", "function": {"name": "weather", "parameters": CITY}}
OTHER = {"type": "function", "function": {"name": "clock", "parameters": NOTHING}}


@pytest.fixture(scope="module")
def thinker(mlx_models: Path) -> Iterator[MlxServer]:
    """A server over the model that thinks and calls tools."""
    with running_mlx_server(mlx_models / "qwen3", "--alias", "toy") as server:
        yield server


def test_schema(thinker: MlxServer) -> None:
    """What comes fits the schema, greedy and at random, alone and with others."""
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}
    for more in ({}, {"temperature": 1.5, "n": 3}):
        answer = thinker.chat("Hello", response_format=form, max_tokens=100, **more)
        for choice in answer.json["choices"]:
            assert choice["finish_reason"] == "stop"
            document = json.loads(choice["message"]["content"])
            assert document.keys() == {"name", "size", "place"}
            assert document["size"] in {1, 2, 3}
            assert document["place"]["city"] in {"Oslo", "Rome"}


def test_any_object(thinker: MlxServer) -> None:
    """json_object begins as an object; a limit may cut it, and says so."""
    answer = thinker.chat("Hello", response_format={"type": "json_object"}, max_tokens=20)
    assert answer.text.startswith("{")


def test_bad_schemas_are_the_clients_error(thinker: MlxServer) -> None:
    """They are found before anything is computed."""
    for schema in ({"type": "nonsense"}, {"$ref": "#/nowhere"}, {"type": "object", "minProperties": -1}):
        form = {"type": "json_schema", "json_schema": {"schema": schema}}
        answer = thinker.chat("Hello", response_format=form, max_tokens=5)
        assert answer.status in {200, 400}
        assert "can't be used" in answer.body.decode() or answer.status == 200
    assert thinker.chat("Hello", max_tokens=2).status == 200


def test_required_calls(thinker: MlxServer) -> None:
    """A call that must be made is made, with every required argument, whole and streamed."""
    asked: dict[str, Any] = {"tools": [TOOL, OTHER], "max_tokens": 120, "parallel_tool_calls": False}
    named = {"type": "function", "function": {"name": "weather"}}
    whole = thinker.chat("Weather?", tool_choice=named, **asked).json["choices"][0]
    [call] = whole["message"]["tool_calls"]
    assert whole["finish_reason"] == "tool_calls"
    assert call["function"]["name"] == "weather"
    assert json.loads(call["function"]["arguments"])["city"] in {"Oslo", "Rome"}
    streamed = thinker.chat("Weather?", tool_choice=named, stream=True, **asked)
    pieces = [
        piece["function"].get("arguments", "")
        for chunk in streamed.chunks
        for choice in chunk["choices"]
        for piece in choice["delta"].get("tool_calls", ())
    ]
    assert json.loads("".join(pieces)) == json.loads(call["function"]["arguments"])
    any_of_them = thinker.chat("Weather?", tool_choice="required", **asked).json["choices"][0]
    assert any_of_them["message"]["tool_calls"][0]["function"]["name"] in {"weather", "clock"}


def test_a_turn_with_a_call_and_its_result(thinker: MlxServer) -> None:
    """What was called and what came of it go back into the template."""
    call = {"id": "1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Oslo"}'}}
    messages = [
        {"role": "user", "content": "Weather?"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "1", "content": "sunny"},
    ]
    prompt = thinker.ask("/apply-template", {"messages": messages, "tools": [TOOL]}).json["prompt"]
    assert '{"name": "weather", "arguments": {"city": "Oslo"}}' in prompt
    assert "sunny" in prompt
    answer = thinker.ask("/v1/chat/completions", {"messages": messages, "tools": [TOOL], "max_tokens": 3})
    assert answer.status == 200


def test_thinking_can_be_turned_off(thinker: MlxServer) -> None:
    """`enable_thinking` reaches the template, in either place."""
    messages = [{"role": "user", "content": "hi"}]
    on = thinker.ask("/apply-template", {"messages": messages}).json["prompt"]
    off = thinker.ask("/apply-template", {"messages": messages, "enable_thinking": False}).json["prompt"]
    kwargs = {"messages": messages, "chat_template_kwargs": {"enable_thinking": False}}
    assert "<think>" not in on
    assert off.endswith("<think>\n\n</think>\n\n")
    assert thinker.ask("/apply-template", kwargs).json["prompt"] == off


def test_pictures_are_refused(thinker: MlxServer) -> None:
    """With a sentence, before anything is computed."""
    part = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    message = {"role": "user", "content": [{"type": "text", "text": "what?"}, part]}
    answer = thinker.ask("/v1/chat/completions", {"messages": [message]})
    assert answer.status == 400
    assert "text only" in answer.json["error"]["message"]
