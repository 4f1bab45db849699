"""The real openai SDK, sync and async, gets from the daemon what it expects from OpenAI."""

from __future__ import annotations

import json
import math
from typing import Any

import openai
import pytest

from tests.support.daemon import Daemon
from tests.wire.asking import async_sdk, said, sdk, unloaded_after

ANSWER = "You said: hello there"
TOOL: Any = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "the weather of a city",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}


def test_chat(shared: Daemon) -> None:
    """A whole chat answer parses into the SDK's type, with text, finish reason and usage."""
    with sdk(shared) as client:
        answer = client.chat.completions.create(model="quick", messages=said("hello there"))
    choice = answer.choices[0]
    assert (answer.object, answer.model) == ("chat.completion", "quick")
    assert (choice.message.role, choice.message.content, choice.finish_reason) == ("assistant", ANSWER, "stop")
    assert answer.usage is not None
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens > 2


async def test_chat_async(shared: Daemon) -> None:
    """The async client gets the same answer as the sync one."""
    async with async_sdk(shared) as client:
        answer = await client.chat.completions.create(model="quick", messages=said("hello there"))
    assert answer.choices[0].message.content == ANSWER


def test_chat_stream(shared: Daemon) -> None:
    """Streamed pieces add up to the whole answer; the last choice says why it ended, and usage comes only if asked."""
    with (
        sdk(shared) as client,
        client.chat.completions.create(model="quick", messages=said("hello there"), stream=True) as stream,
    ):
        chunks = list(stream)
    choices = [choice for chunk in chunks for choice in chunk.choices]
    assert choices[0].delta.role == "assistant"
    assert "".join(choice.delta.content or "" for choice in choices) == ANSWER
    assert [choice.finish_reason for choice in choices if choice.finish_reason] == ["stop"]
    assert {chunk.model for chunk in chunks} == {"quick"}
    assert len({chunk.id for chunk in chunks}) == 1
    assert all(chunk.usage is None for chunk in chunks)


async def test_chat_stream_async(shared: Daemon) -> None:
    """The async client streams the same pieces, and the usage chunk that it asked for comes last."""
    async with async_sdk(shared) as client:
        stream = await client.chat.completions.create(
            model="quick", messages=said("hello there"), stream=True, stream_options={"include_usage": True}
        )
        async with stream:
            chunks = [chunk async for chunk in stream]
    pieces = [choice.delta.content or "" for chunk in chunks for choice in chunk.choices]
    assert "".join(pieces) == ANSWER
    assert [chunk.usage is not None for chunk in chunks] == [False] * (len(chunks) - 1) + [True]
    assert chunks[-1].choices == []


def test_the_streaming_helper_rebuilds_the_answer(shared: Daemon) -> None:
    """The SDK's own accumulator, which is strict about the shape of chunks, ends with the whole answer."""
    with sdk(shared) as client, client.chat.completions.stream(model="quick", messages=said("hello there")) as stream:
        for _ in stream:
            pass
        answer = stream.get_final_completion()
    assert answer.choices[0].message.content == ANSWER


def test_several_choices(shared: Daemon) -> None:
    """Choices that the engine streams side by side come back as separate ones, in order."""
    with sdk(shared) as client:
        answer = client.chat.completions.create(model="quick", messages=said("hello there"), n=3)
    assert [(choice.index, choice.message.content) for choice in answer.choices] == [
        (index, ANSWER) for index in range(3)
    ]


@pytest.mark.parametrize("stream", [False, True])
def test_tool_call(shared: Daemon, stream: bool) -> None:
    """A call of a tool has the tool's name, an id and arguments that are JSON, streamed or not."""
    with sdk(shared) as client:
        asked: Any = {"model": "calling", "messages": said("weather?"), "tools": [TOOL]}
        if stream:
            with client.chat.completions.stream(**asked) as chunks:
                for _ in chunks:
                    pass
                answer: Any = chunks.get_final_completion()
        else:
            answer = client.chat.completions.create(**asked)
    [call] = answer.choices[0].message.tool_calls
    assert (call.type, call.function.name, json.loads(call.function.arguments)) == (
        "function",
        "weather",
        {"city": "Oslo"},
    )
    assert call.id
    assert answer.choices[0].finish_reason == "tool_calls"


@pytest.mark.parametrize("stream", [False, True])
def test_a_tool_call_that_the_model_wrote_as_text(shared: Daemon, stream: bool) -> None:
    """An engine that did not parse a call does not keep it from the client: the SDK sees a call, streamed or not."""
    with sdk(shared) as client:
        asked: Any = {"model": "telling", "messages": said("weather?"), "tools": [TOOL]}
        if stream:
            with client.chat.completions.stream(**asked) as chunks:
                for _ in chunks:
                    pass
                answer: Any = chunks.get_final_completion()
        else:
            answer = client.chat.completions.create(**asked)
            assert answer.choices[0].message.content == "I will look."
            assert answer.choices[0].model_extra["enginehouse"]["tool_calls"][0]["complete"] is True
    choice = answer.choices[0]
    [call] = choice.message.tool_calls
    assert (call.function.name, json.loads(call.function.arguments)) == ("weather", {"city": "Oslo"})
    assert choice.finish_reason == "tool_calls"


def test_text_that_looks_like_a_call_stays_text_without_tools(shared: Daemon) -> None:
    """Who offers no tools gets the model's words as they are."""
    with sdk(shared) as client:
        answer = client.chat.completions.create(model="telling", messages=said("weather?"))
    assert "<tool_call>" in (answer.choices[0].message.content or "")
    assert answer.choices[0].finish_reason == "stop"


def test_completions(shared: Daemon) -> None:
    """Text completions work whole and streamed, with the same text, one choice for each prompt."""
    with sdk(shared) as client:
        whole = client.completions.create(model="quick", prompt=["one", "two"])
        with client.completions.create(model="quick", prompt="one", stream=True) as stream:
            streamed = "".join(choice.text for chunk in stream for choice in chunk.choices)
    assert (whole.object, [choice.text for choice in whole.choices]) == (
        "text_completion",
        ["You said: one", "You said: two"],
    )
    assert streamed == "You said: one"


async def test_completions_async(shared: Daemon) -> None:
    """The async client completes text, whole and streamed."""
    async with async_sdk(shared) as client:
        whole = await client.completions.create(model="quick", prompt="one")
        stream = await client.completions.create(model="quick", prompt="one", stream=True)
        async with stream:
            streamed = "".join([choice.text async for chunk in stream for choice in chunk.choices])
    assert whole.choices[0].text == streamed == "You said: one"


def test_embeddings(shared: Daemon) -> None:
    """The SDK asks for base64 unless told otherwise; both forms give the same unit vectors, one for each input."""
    with sdk(shared) as client:
        default = client.embeddings.create(model="quick", input=["a", "b"])
        floats = client.embeddings.create(model="quick", input=["a", "b"], encoding_format="float")
    assert [row.index for row in default.data] == [0, 1]
    for row, other in zip(default.data, floats.data, strict=True):
        assert row.embedding == pytest.approx(other.embedding, abs=1e-6)
        assert math.hypot(*row.embedding) == pytest.approx(1, abs=1e-5)
    assert default.data[0].embedding != default.data[1].embedding
    assert default.usage.prompt_tokens == 2
    assert default.model == "quick"


async def test_embeddings_async(shared: Daemon) -> None:
    """The async client embeds a single text."""
    async with async_sdk(shared) as client:
        answer = await client.embeddings.create(model="quick", input="a")
    assert len(answer.data) == 1


def test_models(shared: Daemon) -> None:
    """The list has every model that can be asked for; one is found by its id and by its alias, under its id."""
    with sdk(shared) as client:
        listed = {model.id: model for model in client.models.list()}
        by_id = client.models.retrieve("quick")
        by_alias = client.models.retrieve("default")
    assert {"quick", "slow", "late", "chat-only"} <= listed.keys()
    assert listed["quick"].created > 0
    assert by_id.id == by_alias.id == "quick"


async def test_models_async(shared: Daemon) -> None:
    """The async client lists and retrieves models."""
    async with async_sdk(shared) as client:
        listed = [model.id async for model in client.models.list()]
        one = await client.models.retrieve("slow")
    assert one.id in listed


def test_an_answer_carries_the_models_id(shared: Daemon) -> None:
    """Asked by its alias, a model answers under its id, whole and streamed."""
    with sdk(shared) as client:
        whole = client.chat.completions.create(model="default", messages=said("a"))
        with client.chat.completions.create(model="default", messages=said("a"), stream=True) as stream:
            streamed = {chunk.model for chunk in stream}
        embedded = client.embeddings.create(model="default", input="a")
    assert {whole.model, embedded.model, *streamed} == {"quick"}


def test_headers(shared: Daemon) -> None:
    """The raw response has the request's id as the client chose it, the instance, and both waits in milliseconds."""
    with sdk(shared) as client:
        client.chat.completions.create(model="quick", messages=said("a"))
        raw = client.chat.completions.with_raw_response.create(
            model="quick", messages=said("a"), extra_headers={"x-request-id": "my-own.id_1"}
        )
        streamed = client.chat.completions.with_raw_response.create(model="quick", messages=said("a"), stream=True)
        with streamed.parse() as stream:
            list(stream)
    assert raw.headers["x-request-id"] == "my-own.id_1"
    assert raw.parse()._request_id == "my-own.id_1"
    for headers in (raw.headers, streamed.headers):
        assert headers["x-enginehouse-instance"] == "quick-1"
        assert int(headers["x-enginehouse-queue-ms"]) >= 0
        assert headers["x-enginehouse-load-ms"] == "0"
    assert streamed.headers["x-request-id"] not in {"", "my-own.id_1"}


def test_the_first_request_is_told_what_the_load_cost(shared: Daemon) -> None:
    """The request that waited for the engine says so in its load time, not in its queue time."""
    with sdk(shared) as client, unloaded_after(shared, "late"):
        raw = client.chat.completions.with_raw_response.create(model="late", messages=said("a"))
    assert int(raw.headers["x-enginehouse-load-ms"]) >= 500
    assert int(raw.headers["x-enginehouse-queue-ms"]) < int(raw.headers["x-enginehouse-load-ms"])


def test_unknown_fields_reach_the_engine(shared: Daemon) -> None:
    """What the SDK sends as extra body is the engine's business: here its own switch for timings in each chunk."""
    with (
        sdk(shared) as client,
        client.chat.completions.create(
            model="quick", messages=said("a"), stream=True, extra_body={"timings_per_token": True}
        ) as stream,
    ):
        assert any(chunk.choices[0].delta.content and "timings" in chunk.to_dict() for chunk in stream)


def test_progress_reports_come_only_when_asked_for(shared: Daemon) -> None:
    """The gateway asks engines for progress; its client sees it only if it asked as well."""
    seen = {}
    with sdk(shared) as client:
        for asked in (True, False):
            with client.chat.completions.create(
                model="quick", messages=said("a"), stream=True, extra_body={"return_progress": asked}
            ) as stream:
                seen[asked] = any("prompt_progress" in chunk.to_dict() for chunk in stream)
    assert seen == {True: True, False: False}


def test_the_sdk_has_the_types_that_are_tested() -> None:
    """These tests mean the SDK's own classes: a stand-in of the same name would prove nothing."""
    assert issubclass(openai.OpenAI, openai.Client)
    assert issubclass(openai.RateLimitError, openai.APIStatusError)
