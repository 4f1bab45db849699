"""The openai SDK's Responses against the real engines: words, a chain whose prompt is cached, a call."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.engines.conftest import Served
from tests.engines.test_anthropic_sdk import CALL
from tests.wire.asking import sdk
from tests.wire.test_responses_sdk import TOOL

pytestmark = [pytest.mark.engine, pytest.mark.timeout(120)]


def test_a_chain_with_a_call(served: Served) -> None:
    """Streamed words, then a call that goes on from them, then its result; each prompt holds what came before."""
    schema: Any = {"type": "json_schema", "name": "call", "schema": CALL}
    with sdk(served.daemon) as client:
        asked: Any = {"model": "smol", "temperature": 0}
        with client.responses.stream(input="Name three colours.", max_output_tokens=16, **asked) as stream:
            events = list(stream)
        text = "".join(event.delta for event in events if event.type == "response.output_text.delta")
        assert events[-1].type == "response.incomplete"
        first = events[-1].response
        assert (first.output_text, first.status) == (text, "incomplete")
        assert len(text.split()) > 3
        second = client.responses.create(
            input="Weather?", previous_response_id=first.id, tools=[TOOL], text={"format": schema}, **asked
        )
        [call] = [item for item in second.output if item.type == "function_call"]
        assert json.loads(call.arguments)["city"] in {"Oslo", "Rome"}
        result: Any = {"type": "function_call_output", "call_id": call.call_id, "output": "sunny"}
        third = client.responses.create(input=[result], previous_response_id=second.id, max_output_tokens=4, **asked)
    usage = [answer.usage for answer in (first, second, third)]
    tokens = [used.input_tokens for used in usage if used]
    # Templates that know tools write them into the prompt, and the third was offered none.
    assert tokens[0] < min(tokens[1:])
