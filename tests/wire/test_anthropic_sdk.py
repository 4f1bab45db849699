"""The real anthropic SDK, sync and async, gets from the daemon what it expects from Anthropic."""

from __future__ import annotations

from typing import Any

import anthropic

# Loads its parts when they are first used, which takes too long inside an event loop that is being watched.
import anthropic.resources.messages
import anthropic.types
import pytest

from tests.support.daemon import Daemon
from tests.wire.asking import said

ANSWER = "You said: hello there"
TOOL: Any = {
    "name": "weather",
    "description": "the weather of a city",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}


def _sdk(daemon: Daemon) -> anthropic.Anthropic:
    return anthropic.Anthropic(base_url=daemon.base_url, api_key="none", max_retries=0)


def _asked(model: str, text: str = "hello there", **more: Any) -> Any:
    return {"model": model, "max_tokens": 100, "messages": said(text), **more}


def test_a_message(shared: Daemon) -> None:
    """A whole message parses into the SDK's type, with text, stop reason, usage and the request's id."""
    with _sdk(shared) as client:
        answer = client.messages.create(**_asked("quick"))
    assert (answer.type, answer.role, answer.model, answer.stop_reason) == ("message", "assistant", "quick", "end_turn")
    assert [block.to_dict() for block in answer.content] == [{"type": "text", "text": ANSWER}]
    assert answer.usage.input_tokens > 0
    assert answer.usage.output_tokens > 0
    assert answer._request_id


async def test_a_streamed_message_async(shared: Daemon) -> None:
    """The async client's own accumulator, which is strict about the order of events, ends with the whole message."""
    async with (
        anthropic.AsyncAnthropic(base_url=shared.base_url, api_key="none", max_retries=0) as client,
        client.messages.stream(**_asked("quick")) as stream,
    ):
        pieces = [piece async for piece in stream.text_stream]
        answer = await stream.get_final_message()
    assert len(pieces) > 1
    assert "".join(pieces) == ANSWER
    assert (answer.stop_reason, answer.usage.input_tokens > 0) == ("end_turn", True)


@pytest.mark.parametrize("model", ["calling", "telling"])
@pytest.mark.parametrize("streamed", [False, True])
def test_an_agent_works_a_tool_loop(shared: Daemon, model: str, streamed: bool) -> None:
    """The model calls a tool, the agent runs it, and the result brings the answer; also for a call written as text."""
    messages: list[Any] = said("weather?")
    with _sdk(shared) as client:

        def ask() -> anthropic.types.Message:
            asked: Any = {"model": model, "max_tokens": 100, "messages": messages, "tools": [TOOL]}
            if not streamed:
                whole: anthropic.types.Message = client.messages.create(**asked)
                return whole
            with client.messages.stream(**asked) as stream:
                return stream.get_final_message()

        answer = ask()
        [call] = [block for block in answer.content if block.type == "tool_use"]
        assert (answer.stop_reason, call.name, call.input) == ("tool_use", "weather", {"city": "Oslo"})
        result = {"type": "tool_result", "tool_use_id": call.id, "content": "sunny"}
        messages += [{"role": "assistant", "content": answer.content}, {"role": "user", "content": [result]}]
        if model == "calling":
            answer = ask()
            assert (answer.stop_reason, answer.content[0].type) == ("end_turn", "text")
            assert answer.content[0].to_dict()["text"] == "You said: sunny"


def test_tokens_are_counted(shared: Daemon) -> None:
    """A longer text counts more; nothing is generated for it."""
    with _sdk(shared) as client:
        short = client.messages.count_tokens(model="quick", messages=said("hello"))
        long = client.messages.count_tokens(model="quick", messages=said("hello " * 50), system="Be brief.")
    assert 0 < short.input_tokens < long.input_tokens


def test_limits(shared: Daemon) -> None:
    """An answer that max_tokens cut says so."""
    with _sdk(shared) as client:
        answer = client.messages.create(**{**_asked("quick"), "max_tokens": 2})
    assert (answer.stop_reason, answer.usage.output_tokens) == ("max_tokens", 2)


@pytest.mark.parametrize(
    ("asked", "kind"),
    [
        (_asked("nobody"), anthropic.NotFoundError),
        (_asked("quick", system=[{"type": "image"}]), anthropic.BadRequestError),
        (_asked("quick", "word " * 20_000), anthropic.BadRequestError),
    ],
)
def test_errors(shared: Daemon, asked: Any, kind: type[anthropic.APIStatusError]) -> None:
    """The SDK raises the class that Anthropic's own answer would have raised, with a message for people."""
    with _sdk(shared) as client, pytest.raises(kind) as caught:
        client.messages.create(**asked)
    assert '"type": "error"' in caught.value.response.text.replace('":"', '": "')


@pytest.mark.parametrize("model", ["failing", "cutting"])
def test_an_engine_that_fails_in_mid_stream(shared: Daemon, model: str) -> None:
    """The SDK raises after the first text, and never sees the message end as if it were complete."""
    seen: list[str] = []
    with (
        _sdk(shared) as client,
        pytest.raises(anthropic.APIStatusError),
        client.messages.create(**_asked(model, "one two three four five six"), stream=True) as stream,
    ):
        seen.extend(event.type for event in stream)
    assert "content_block_delta" in seen
    assert "message_stop" not in seen


@pytest.mark.parametrize("streamed", [False, True])
def test_the_stop_sequence_that_ended_it_is_named(shared: Daemon, streamed: bool) -> None:
    """Of several the one that came, and the text before it; a message that ended by itself names none."""
    with _sdk(shared) as client:

        def ask(*sequences: str) -> anthropic.types.Message:
            asked = _asked("quick", "one two three", stop_sequences=list(sequences))
            if not streamed:
                whole: anthropic.types.Message = client.messages.create(**asked)
                return whole
            with client.messages.stream(**asked) as stream:
                return stream.get_final_message()

        cut, ended = ask("five", " two"), ask("five", "six")
    assert (cut.stop_reason, cut.stop_sequence) == ("stop_sequence", " two")
    assert cut.content[0].to_dict()["text"] == "You said: one"
    assert (ended.stop_reason, ended.stop_sequence) == ("end_turn", None)


def test_models_are_listed_in_anthropics_form(shared: Daemon) -> None:
    """The SDK's list goes through all of them, page by page; one is found by its alias; errors are Anthropic's."""
    with _sdk(shared) as client:
        listed = [model.id for model in client.models.list(limit=2)]
        assert {"quick", "slow", "calling"} < set(listed)
        assert len(listed) == len(set(listed))
        back = client.models.list(before_id=listed[3], limit=2)
        assert [model.id for model in back.data] == listed[1:3]
        one = client.models.retrieve("default")
        assert (one.id, one.type, one.max_input_tokens) == ("quick", "model", 2048)
        with pytest.raises(anthropic.NotFoundError, match="not_found_error"):
            client.models.retrieve("nobody")
