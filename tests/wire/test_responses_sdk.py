"""The real openai SDK's Responses, sync and async: streams, tools, chains, and chains that outlive the daemon."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import openai

# Loads its parts when they are first used, which takes too long inside an event loop that is being watched.
import openai.resources.responses
import pytest

from tests.support.daemon import Daemon, daemon_config, running_daemon_sync
from tests.support.fake_engine import fake_build, tiny_model
from tests.wire.asking import async_sdk, sdk

ANSWER = "You said: hello there"
TOOL: Any = {
    "type": "function",
    "name": "weather",
    "description": "the weather of a city",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    "strict": False,
}


def test_a_response_and_its_chain(shared: Daemon) -> None:
    """Text, status and usage parse into the SDK's types; a chain goes on, is read back, and forgotten."""
    with sdk(shared) as client:
        first = client.responses.create(model="quick", input="hello there")
        assert (first.output_text, first.status) == (ANSWER, "completed")
        assert first.usage is not None
        assert first.usage.total_tokens > 2
        second = client.responses.create(model="quick", input="and more", previous_response_id=first.id)
        assert second.output_text == "You said: and more"
        assert second.usage is not None
        assert second.usage.input_tokens > first.usage.input_tokens
        assert client.responses.retrieve(second.id).output_text == second.output_text
        [item] = client.responses.input_items.list(second.id).data
        assert item.to_dict()["content"] == [{"type": "input_text", "text": "and more"}]
        client.responses.delete(first.id)
        with pytest.raises(openai.NotFoundError):
            client.responses.create(model="quick", input="x", previous_response_id=second.id)


@pytest.mark.blocks_loop("the SDK makes its types of events when they are first used")
async def test_a_stream_async(shared: Daemon) -> None:
    """The SDK's own accumulator, which is strict about the order of events, ends with the whole response."""
    async with async_sdk(shared) as client:
        asked: Any = {"model": "quick", "input": "hello there"}
        async with client.responses.stream(**asked) as stream:
            pieces = [event.delta async for event in stream if event.type == "response.output_text.delta"]
            final = await stream.get_final_response()
        again = await client.responses.create(model="quick", input="go on", previous_response_id=final.id)
    assert "".join(pieces) == final.output_text == ANSWER
    assert again.output_text == "You said: go on"


@pytest.mark.parametrize("model", ["calling", "telling"])
def test_an_agent_works_a_tool_loop(shared: Daemon, model: str) -> None:
    """The model calls a tool, the agent runs it, and the result brings the answer; also for a call written as text."""
    with sdk(shared) as client:
        with client.responses.stream(model=model, input="weather?", tools=[TOOL]) as stream:
            for _ in stream:
                pass
            answer = stream.get_final_response()
        [call] = [item for item in answer.output if item.type == "function_call"]
        assert (call.name, json.loads(call.arguments)) == ("weather", {"city": "Oslo"})
        result: Any = {"type": "function_call_output", "call_id": call.call_id, "output": "sunny"}
        if model == "calling":
            last = client.responses.create(model=model, input=[result], tools=[TOOL], previous_response_id=answer.id)
            assert last.output_text == "You said: sunny"


def test_an_engine_that_fails_in_mid_stream(shared: Daemon) -> None:
    """The last event is a response that failed; there is none that is complete."""
    with sdk(shared) as client:
        events = list(client.responses.create(model="failing", input="one two three four five", stream=True))
    assert events[-1].type == "response.failed"
    assert "response.completed" not in {event.type for event in events}


def test_errors(shared: Daemon) -> None:
    """The SDK raises its own classes, and a picture by URL is refused before anything starts."""
    picture: Any = [{"role": "user", "content": [{"type": "input_image", "image_url": "http://x/y.png"}]}]
    with sdk(shared) as client:
        with pytest.raises(openai.NotFoundError):
            client.responses.create(model="nobody", input="x")
        with pytest.raises(openai.BadRequestError, match="data URL"):
            client.responses.create(model="quick", input=picture)


def test_a_chain_outlives_a_daemon_that_is_killed(tmp_path: Path) -> None:
    """What a client was told of is there after kill -9, as soon as another daemon runs."""
    config = daemon_config(fake_build(tmp_path), models={"tiny": {"file": str(tiny_model(tmp_path))}})
    known = None
    for text in ("first", "second"):
        with running_daemon_sync(tmp_path, config) as daemon:
            with sdk(daemon) as client:
                asked: Any = {"previous_response_id": known} if known else {}
                answer = client.responses.create(model="tiny", input=text, **asked)
            assert answer.output_text == f"You said: {text}"
            assert answer.previous_response_id == known
            known = answer.id
            if text == "first":
                daemon.send(signal.SIGKILL)
                daemon.process.wait()


def test_a_daemon_that_is_killed_while_a_chain_goes_on(tmp_path: Path) -> None:
    """What was complete is there; the one that was being made is not, not even in part; and the chain goes on."""
    config = daemon_config(
        fake_build(tmp_path), models={"tiny": {"file": str(tiny_model(tmp_path, chunk_delay=0.05, chunks=400))}}
    )
    asked: Any = {"model": "tiny", "max_output_tokens": 2}
    with running_daemon_sync(tmp_path, config) as daemon, sdk(daemon) as client:
        first = client.responses.create(input="first", **asked)
        second = client.responses.create(input="second", previous_response_id=first.id, **asked)
        with client.responses.create(
            model="tiny", input="third", previous_response_id=second.id, stream=True
        ) as stream:
            begun: Any = next(iter(stream))
            assert any(event.type == "response.output_text.delta" for event in stream)
            daemon.send(signal.SIGKILL)
            daemon.process.wait()
            with pytest.raises(openai.APIError):
                list(stream)
    with running_daemon_sync(tmp_path, config) as daemon, sdk(daemon) as client:
        with pytest.raises(openai.NotFoundError, match=begun.response.id):
            client.responses.create(input="x", previous_response_id=begun.response.id, **asked)
        again = client.responses.create(input="third", previous_response_id=second.id, **asked)
        assert (again.status, again.previous_response_id) == ("incomplete", second.id)
        assert again.usage is not None
        assert second.usage is not None
        assert again.usage.input_tokens > second.usage.input_tokens
