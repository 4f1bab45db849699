"""The anthropic SDK against the real engines: words, tools, and counts that are the engine's own."""

from __future__ import annotations

from typing import Any

import anthropic

# Loads its parts when they are first used, which takes too long inside an event loop that is being watched.
import anthropic.resources.messages
import anthropic.types
import pytest

from tests.engines.conftest import Served
from tests.wire.asking import said
from tests.wire.test_anthropic_sdk import TOOL

pytestmark = [pytest.mark.engine, pytest.mark.timeout(120)]

# Not every version of the SDK takes `temperature` everywhere.
QUESTION: Any = {
    "model": "smol",
    "messages": said("Name three colours."),
    "max_tokens": 16,
    "extra_body": {"temperature": 0},
}


def test_whole_streamed_and_counted(served: Served) -> None:
    """The streamed text is the whole one; the count beforehand is what the answer says of its prompt."""
    with anthropic.Anthropic(base_url=served.daemon.base_url, api_key="none", max_retries=0) as client:
        count = client.messages.count_tokens(model="smol", messages=QUESTION["messages"])
        whole = client.messages.create(**QUESTION)
        with client.messages.stream(**QUESTION) as stream:
            text = "".join(stream.text_stream)
            streamed = stream.get_final_message()
    assert len(text.split()) > 3
    assert [block.to_dict() for block in whole.content] == [{"type": "text", "text": text}]
    assert whole.stop_reason == streamed.stop_reason == "max_tokens"
    for usage in (whole.usage, streamed.usage):
        assert usage.input_tokens + (usage.cache_read_input_tokens or 0) == count.input_tokens
        assert usage.output_tokens == 16
    assert streamed.usage.cache_read_input_tokens


# The demo model's template knows no tools, and the model would not call one by itself: held to this schema, it writes a
# call as text, which is what the gateway recovers.
CALL = {
    "type": "object",
    "properties": {
        "name": {"const": "weather"},
        "arguments": {
            "type": "object",
            "properties": {"city": {"enum": ["Oslo", "Rome"]}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
    "required": ["name", "arguments"],
    "additionalProperties": False,
}
AS_A_CALL = {"type": "json_schema", "json_schema": {"name": "call", "schema": CALL}}


async def test_a_tool_is_called_and_its_result_taken(served: Served) -> None:
    """A call that the model writes reaches the async client as one, streamed, and its result can be sent back."""
    async with anthropic.AsyncAnthropic(base_url=served.daemon.base_url, api_key="none", max_retries=0) as client:
        asked: Any = {**QUESTION, "max_tokens": 80, "tools": [TOOL]}
        wish = {"temperature": 0, "response_format": AS_A_CALL}
        async with client.messages.stream(**{**asked, "extra_body": wish}) as stream:
            answer = await stream.get_final_message()
        [call] = [block for block in answer.content if block.type == "tool_use"]
        assert (answer.stop_reason, call.name) == ("tool_use", "weather")
        assert call.input in ({"city": "Oslo"}, {"city": "Rome"})
        result = {"type": "tool_result", "tool_use_id": call.id, "content": "sunny"}
        more: Any = [{"role": "assistant", "content": answer.content}, {"role": "user", "content": [result]}]
        last = await client.messages.create(**{**asked, "messages": [*QUESTION["messages"], *more], "max_tokens": 4})
    assert last.usage.output_tokens


def test_the_stop_sequence_that_ended_it_is_named(served: Served) -> None:
    """Each engine says which of the sequences came, whole and streamed, and nothing where none did."""
    with anthropic.Anthropic(base_url=served.daemon.base_url, api_key="none", max_retries=0) as client:
        full = client.messages.create(**QUESTION).content[0].to_dict()["text"]
        word = full.split()[2]
        asked: Any = {**QUESTION, "stop_sequences": ["never said", word]}
        whole = client.messages.create(**asked)
        with client.messages.stream(**asked) as stream:
            streamed = stream.get_final_message()
        other = client.messages.create(**{**QUESTION, "stop_sequences": ["never said"]})
    for answer in (whole, streamed):
        assert (answer.stop_reason, answer.stop_sequence) == ("stop_sequence", word)
        assert answer.content[0].to_dict()["text"] == full[: full.index(word)]
    assert (other.stop_reason, other.stop_sequence) == ("max_tokens", None)
