"""The real ollama client, sync and async, gets from the daemon what it expects from Ollama."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import ollama
import pytest

from tests.support.daemon import Daemon
from tests.wire.asking import said

ANSWER = "You said: hello there"
TOOL: Any = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "the weather of a city",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}


@pytest.fixture
def client(shared: Daemon) -> Iterator[ollama.Client]:
    """The client as an application would make it."""
    with closing(ollama.Client(host=shared.base_url)) as client:
        yield client


def test_chat_and_generate(client: ollama.Client) -> None:
    """Whole and streamed, the same words, with counts; the model is found with its tag."""
    whole = client.chat(model="quick:latest", messages=said("hello there"))
    assert (whole.message.content, whole.done, whole.done_reason) == (ANSWER, True, "stop")
    assert whole.eval_count
    parts = list(client.chat(model="quick", messages=said("hello there"), stream=True))
    assert len(parts) > 2
    assert "".join(part.message.content or "" for part in parts) == ANSWER
    assert [part.done for part in parts][-2:] == [False, True]
    assert client.generate(model="quick", prompt="hello there").response == ANSWER


async def test_async_stream(shared: Daemon) -> None:
    """The async client reads the same lines."""
    async with ollama.AsyncClient(host=shared.base_url) as client:
        stream = await client.chat(model="quick", messages=said("hello there"), stream=True)
        pieces = [part.message.content or "" async for part in stream]
    assert "".join(pieces) == ANSWER


@pytest.mark.parametrize("model", ["calling", "telling"])
def test_tools(client: ollama.Client, model: str) -> None:
    """A call has its arguments as an object, also if the model wrote it as text; its result brings the answer."""
    asked: Any = {"model": model, "tools": [TOOL]}
    answer = client.chat(messages=said("weather?"), **asked)
    [call] = answer.message.tool_calls or []
    assert (call.function.name, dict(call.function.arguments)) == ("weather", {"city": "Oslo"})
    streamed = [part.message.tool_calls for part in client.chat(messages=said("weather?"), stream=True, **asked)]
    assert [dict(call.function.arguments) for calls in streamed for call in calls or []] == [{"city": "Oslo"}]
    if model == "calling":
        result = {"role": "tool", "tool_name": "weather", "content": "sunny"}
        last = client.chat(messages=[*said("weather?"), answer.message, result], **asked)
        assert last.message.content == "You said: sunny"


def test_vectors_and_listings(client: ollama.Client) -> None:
    """Vectors for each text; what there is, what runs, and what is known of one model parse into the client's types."""
    assert len(client.embed(model="quick", input=["a", "b"]).embeddings) == 2
    listed = {row.model for row in client.list().models}
    assert "quick:latest" in listed
    running = {row.model: row for row in client.ps().models}
    assert running["quick:latest"].context_length
    assert running["quick:latest"].size
    assert "never-ready:latest" in listed - running.keys()
    assert "completion" in (client.show("quick").capabilities or [])


def test_errors(client: ollama.Client) -> None:
    """The client raises its own error, with the status and words for people; also in the middle of a stream."""
    with pytest.raises(ollama.ResponseError) as caught:
        client.chat(model="nobody", messages=said("x"))
    assert caught.value.status_code == 404
    seen: list[Any] = []
    with pytest.raises(ollama.ResponseError):
        seen.extend(client.chat(model="failing", messages=said("one two three four five"), stream=True))
