"""Agents that work a tool loop against the real engines, each by its own API, and the SDK calls that others leave out.

The models here would call no tool by themselves: as long as there is work to do, the agents hold them to the form of
a call; then they let them speak.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import closing
from typing import Any

import anthropic

# Loads its parts when they are first used, which takes too long inside an event loop that is being watched.
import anthropic.resources.messages
import anthropic.types
import ollama
import pytest

from tests.engines.conftest import Served
from tests.engines.test_anthropic_sdk import AS_A_CALL, CALL
from tests.wire import test_anthropic_sdk as messages_api
from tests.wire import test_responses_sdk as responses_api
from tests.wire.asking import async_sdk, said, sdk

pytestmark = [pytest.mark.engine, pytest.mark.timeout(180)]

WORK = 2
CALLED: Any = AS_A_CALL
WEATHER = {"Oslo": "snow", "Rome": "sun"}
CHAT_TOOL: Any = {
    "type": "function",
    "function": {key: responses_api.TOOL[key] for key in ("name", "description", "parameters")},
}


class Tools:
    """What an agent can do; remembers what it did."""

    def __init__(self) -> None:
        self.done: list[str] = []

    def run(self, name: str, arguments: dict[str, Any]) -> str:
        """The tool's result."""
        assert name == "weather"
        self.done.append(arguments["city"])
        return WEATHER[arguments["city"]]


@pytest.mark.blocks_loop("the SDK makes its types of events when they are first used")
async def test_an_agent_that_speaks_responses(served: Served) -> None:
    """Call, result, call, result, words: streamed, each turn going on from the one before, which the daemon keeps."""
    tools, turns = Tools(), 0
    schema: Any = {"format": {"type": "json_schema", "name": "call", "schema": CALL}}
    asked: Any = {"model": "smol", "temperature": 0, "tools": [responses_api.TOOL]}
    given: Any = "What is the weather in Oslo and in Rome?"
    before: Any = {}
    async with async_sdk(served.daemon) as client:
        while True:
            turns += 1
            limits: Any = {"text": schema} if len(tools.done) < WORK else {"max_output_tokens": 12}
            async with client.responses.stream(input=given, **asked, **before, **limits) as stream:
                events = [event async for event in stream]
            last: Any = events[-1]
            answer = last.response
            calls = [item for item in answer.output if item.type == "function_call"]
            if not calls:
                break
            results = [(call.call_id, tools.run(call.name, json.loads(call.arguments))) for call in calls]
            given = [{"type": "function_call_output", "call_id": known, "output": text} for known, text in results]
            before = {"previous_response_id": answer.id}
        assert (turns, len(tools.done)) == (WORK + 1, WORK)
        assert answer.usage.output_tokens > 0
        kept = await client.responses.retrieve(answer.id)
    assert kept.previous_response_id == before["previous_response_id"]
    assert kept.output_text == answer.output_text


@pytest.mark.parametrize("streamed", [False, True])
def test_an_agent_that_speaks_messages(served: Served, streamed: bool) -> None:
    """The same, with the whole conversation sent each time; it ends when the model asks for no tool any more."""
    tools, conversation = Tools(), said("What is the weather in Oslo and in Rome?")
    with anthropic.Anthropic(base_url=served.daemon.base_url, api_key="none", max_retries=0) as client:
        ask = _turn(client, streamed=streamed)
        while True:
            working = len(tools.done) < WORK
            more = {"temperature": 0, **({"response_format": AS_A_CALL} if working else {})}
            answer = ask(messages=conversation, max_tokens=80 if working else 12, extra_body=more)
            conversation.append({"role": "assistant", "content": answer.content})
            if answer.stop_reason != "tool_use":
                break
            calls = [block for block in answer.content if block.type == "tool_use"]
            results = [(call.id, tools.run(call.name, dict(call.input))) for call in calls]
            content = [{"type": "tool_result", "tool_use_id": known, "content": text} for known, text in results]
            conversation.append({"role": "user", "content": content})
    assert len(tools.done) == WORK
    assert answer.usage.output_tokens > 0


def _turn(client: anthropic.Anthropic, *, streamed: bool) -> Callable[..., anthropic.types.Message]:
    asked: Any = {"model": "smol", "tools": [messages_api.TOOL]}

    def turn(**more: Any) -> anthropic.types.Message:
        if not streamed:
            whole: anthropic.types.Message = client.messages.create(**asked, **more)
            return whole
        with client.messages.stream(**asked, **more) as stream:
            return stream.get_final_message()

    return turn


async def test_what_messages_cost_async(served: Served) -> None:
    """The async client counts as the answer does."""
    async with anthropic.AsyncAnthropic(base_url=served.daemon.base_url, api_key="none", max_retries=0) as client:
        count = await client.messages.count_tokens(model="smol", messages=said("Name three colours."))
        answer = await client.messages.create(model="smol", messages=said("Name three colours."), max_tokens=2)
    assert answer.usage.input_tokens + (answer.usage.cache_read_input_tokens or 0) == count.input_tokens


def test_a_tool_of_a_chat(served: Served) -> None:
    """Whole and streamed, a call reaches the client as one, and its result is taken."""
    asked: Any = {"model": "smol", "messages": said("Weather?"), "tools": [CHAT_TOOL], "temperature": 0}
    with sdk(served.daemon) as client:
        whole: Any = client.chat.completions.create(**asked, response_format=CALLED)
        with client.chat.completions.create(**asked, response_format=CALLED, stream=True) as chunks:
            pieces = [piece for chunk in chunks for choice in chunk.choices for piece in choice.delta.tool_calls or ()]
        [call] = whole.choices[0].message.tool_calls
        assert "".join(piece.function.arguments or "" for piece in pieces if piece.function) == call.function.arguments
        assert json.loads(call.function.arguments)["city"] in WEATHER
        result = {"role": "tool", "tool_call_id": call.id, "content": "sunny"}
        more: Any = [*asked["messages"], whole.choices[0].message.to_dict(), result]
        last = client.chat.completions.create(**{**asked, "messages": more}, max_tokens=4)
    assert last.usage is not None
    assert last.usage.completion_tokens == 4


async def test_vectors_and_a_tool_async(served: Served) -> None:
    """The async client gets vectors of the model's length, and the call of a streamed chat."""
    async with async_sdk(served.daemon) as client:
        vectors = await client.embeddings.create(model="smol", input=["a cat", "a dog"])
        assert [len(row.embedding) for row in vectors.data] == [served.width] * 2
        asked: Any = {"model": "smol", "messages": said("Weather?"), "tools": [CHAT_TOOL], "temperature": 0}
        stream = await client.chat.completions.create(**asked, response_format=CALLED, stream=True)
        async with stream:
            reasons = [choice.finish_reason async for chunk in stream for choice in chunk.choices]
    assert reasons[-1] == "tool_calls"


async def test_ollamas_calls(served: Served) -> None:
    """Tools, listings, and the async client's stream."""
    with closing(ollama.Client(host=served.daemon.base_url)) as client:
        asked: Any = {"model": "smol", "messages": said("Weather?"), "tools": [CHAT_TOOL], "format": CALL}
        calls: Any = client.chat(**asked, options={"temperature": 0}).message.tool_calls
        [call] = calls
        assert call.function.arguments["city"] in WEATHER
        assert "smol:latest" in [model.model for model in client.list().models]
        assert "smol:latest" in [model.model for model in client.ps().models]
        assert client.show("smol").modelinfo
    async with ollama.AsyncClient(host=served.daemon.base_url) as reader:
        options = {"num_predict": 8}
        stream = await reader.chat(model="smol", messages=said("Name three colours."), options=options, stream=True)
        parts = [part async for part in stream]
    assert parts[-1].eval_count
