"""Requests are checked before the engine sees any of them."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engines.mlx.server.asked import ModelLimits
from engines.mlx.server.checks import read_chat_request, read_completion_request
from engines.mlx.server.problems import RequestError

LIMITS = ModelLimits("toy", vocabulary=500, context=2048, has_template=True)
USER = [{"role": "user", "content": "hello"}]

# What ended the thread of mlx_lm's own server, and what else nobody should send.
BAD_COMPLETIONS: list[dict[str, Any]] = [
    {},
    {"prompt": None},
    {"prompt": ""},
    {"prompt": []},
    {"prompt": [[]]},
    {"prompt": ["a", ""]},
    {"prompt": {"a": 1}},
    {"prompt": [1, "a"]},
    {"prompt": [500]},
    {"prompt": [-1]},
    {"prompt": [True]},
    {"prompt": ["a"] * 65},
    {"prompt": "a", "stop": [5]},
    {"prompt": "a", "stop": 5},
    {"prompt": "a", "stop": ["x"] * 17},
    {"prompt": "a", "stop": "x" * 1001},
    {"prompt": "a", "max_tokens": 0},
    {"prompt": "a", "max_tokens": "5"},
    {"prompt": "a", "max_tokens": 1.5},
    {"prompt": "a", "max_tokens": True},
    {"prompt": "a", "max_tokens": 10**30},
    {"prompt": "a", "temperature": -1},
    {"prompt": "a", "temperature": "hot"},
    {"prompt": "a", "temperature": 10**400},
    {"prompt": "a", "top_p": 1.1},
    {"prompt": "a", "top_p": -0.1},
    {"prompt": "a", "min_p": 2},
    {"prompt": "a", "top_k": -2},
    {"prompt": "a", "top_k": "many"},
    {"prompt": "a", "seed": 2**64},
    {"prompt": "a", "seed": "x"},
    {"prompt": "a", "n": 0},
    {"prompt": "a", "n": 17},
    {"prompt": "a", "best_of": 2},
    {"prompt": "a", "echo": True},
    {"prompt": "a", "suffix": "b"},
    {"prompt": "a", "logprobs": 21},
    {"prompt": "a", "logit_bias": {"x": 1}},
    {"prompt": "a", "logit_bias": {"500": 1}},
    {"prompt": "a", "logit_bias": {"-1": 1}},
    {"prompt": "a", "logit_bias": {"1": "much"}},
    {"prompt": "a", "logit_bias": {"1": 1e9}},
    {"prompt": "a", "logit_bias": [[1]]},
    {"prompt": "a", "logit_bias": 5},
    {"prompt": "a", "presence_penalty": 3},
    {"prompt": "a", "frequency_penalty": None, "repetition_penalty": 0},
    {"prompt": "a", "stream": "yes"},
    {"prompt": "a", "stream_options": 1},
    {"prompt": "a", "stream_options": {"include_usage": 1}},
    {"prompt": "a", "model": 5},
    {"prompt": "a", "model": "another"},
    {"prompt": "a", "adapters": "/etc"},
    {"prompt": "a", "draft_model": "/etc"},
    {"prompt": "a", "grammar": "root ::= x"},
]
BAD_CHATS: list[dict[str, Any]] = [
    {},
    {"messages": []},
    {"messages": "hi"},
    {"messages": ["hi"]},
    {"messages": [{"content": "no role"}]},
    {"messages": [{"role": 5, "content": "x"}]},
    {"messages": [{"role": "martian", "content": "x"}]},
    {"messages": [{"role": "user", "content": 5}]},
    {"messages": [{"role": "user", "content": [5]}]},
    {"messages": [{"role": "user", "content": [{"type": "text"}]}]},
    {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:x"}}]}]},
    {"messages": [{"role": "user", "content": [{"type": "input_audio", "input_audio": {}}]}]},
    {"messages": [{"role": "user", "name": 5, "content": "x"}]},
    {"messages": [{"role": "assistant", "tool_calls": [5]}]},
    {"messages": [{"role": "assistant", "tool_calls": [{"function": {}}]}]},
    {"messages": USER, "tools": 5},
    {"messages": USER, "tools": [5]},
    {"messages": USER, "tools": [{"type": "retrieval"}]},
    {"messages": USER, "tools": [{"type": "function", "function": {"name": ""}}]},
    {"messages": USER, "tools": [{"type": "function", "function": {"name": "a b"}}]},
    {"messages": USER, "tools": [{"type": "function", "function": {"name": "f", "parameters": []}}]},
    {"messages": USER, "tool_choice": "required"},
    {"messages": USER, "tool_choice": {"type": "function", "function": {"name": "f"}}},
    {"messages": USER, "response_format": "json"},
    {"messages": USER, "response_format": {"type": "xml"}},
    {"messages": USER, "response_format": {"type": "json_schema"}},
    {"messages": USER, "response_format": {"type": "json_schema", "json_schema": {"schema": 5}}},
    {"messages": USER, "chat_template_kwargs": {"chat_template": "{{ 1 }}"}},
    {"messages": USER, "chat_template_kwargs": {"tokenize": True}},
    {"messages": USER, "chat_template_kwargs": 5},
    {"messages": USER, "logprobs": True, "top_logprobs": 21},
    {"messages": USER, "top_logprobs": 3},
    {"messages": USER, "max_tokens": -2},
]


@pytest.mark.parametrize("body", BAD_COMPLETIONS, ids=str)
def test_bad_completions(body: dict[str, Any]) -> None:
    """Each is refused with a sentence."""
    with pytest.raises(RequestError) as caught:
        read_completion_request(body, LIMITS)
    assert 400 <= caught.value.status < 500
    assert len(str(caught.value)) > 10


@pytest.mark.parametrize("body", BAD_CHATS, ids=str)
def test_bad_chats(body: dict[str, Any]) -> None:
    """Each is refused with a sentence."""
    with pytest.raises(RequestError) as caught:
        read_chat_request(body, LIMITS)
    assert 400 <= caught.value.status < 500


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
FIELDS = st.sampled_from(
    (
        *("messages", "prompt", "model", "max_tokens", "max_completion_tokens", "temperature", "top_p", "top_k"),
        *("min_p", "seed", "n", "stop", "stream", "stream_options", "logprobs", "top_logprobs", "logit_bias"),
        *("presence_penalty", "frequency_penalty", "repetition_penalty", "tools", "tool_choice", "response_format"),
        *("chat_template_kwargs", "echo", "best_of", "generation_mode", "mtp_depth", "return_progress"),
    )
)


@given(st.dictionaries(FIELDS, JSON, max_size=6) | JSON)
def test_anything(body: Any) -> None:
    """Whatever is sent, it is read or refused, and nothing else is raised."""
    for read in (read_chat_request, read_completion_request):
        for given_body in (body, {**body, "messages": USER, "prompt": "a"} if isinstance(body, dict) else body):
            try:
                read(given_body, LIMITS)
            except RequestError as error:
                assert error.status in {400, 404}  # noqa: PT017  either is fine


def test_a_full_chat() -> None:
    """What is asked for arrives in the form that the engine takes."""
    body = {
        "model": "toy",
        "messages": [
            {"role": "developer", "content": "short"},
            {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
            {"role": "assistant", "content": None, "tool_calls": [_call('{"x": 1}')]},
            {"role": "tool", "tool_call_id": "1", "content": "2"},
        ],
        "max_completion_tokens": 7,
        "temperature": 0.5,
        "top_k": 10_000,
        "seed": -5,
        "stop": "end",
        "logit_bias": {"3": -100},
        "stream": True,
        "stream_options": {"include_usage": True},
        "generation_mode": "mtp",
        "mtp_depth": 65,
    }
    asked = read_chat_request(body, LIMITS)
    assert asked.chat is not None
    first, second, third, _ = asked.chat.messages
    assert (first["role"], second["content"]) == ("system", "ab")
    assert third["tool_calls"][0]["function"]["arguments"] == {"x": 1}
    wishes = asked.wishes
    assert (wishes.max_tokens, wishes.stop, wishes.stream, wishes.include_usage) == (7, ("end",), True, True)
    assert (wishes.mode, wishes.depth) == ("mtp", None)
    assert wishes.sampling.top_k == 0, "more than there are is all of them"
    assert wishes.sampling.seed == 2**64 - 5
    assert wishes.sampling.logit_bias == ((3, -100.0),)


@pytest.mark.parametrize("body", [{"temperature": 0}, {"temperature": 1e-9}, {"top_p": 0}, {"top_k": 1}])
def test_greedy(body: dict[str, Any]) -> None:
    """Several ways to say the same."""
    assert read_completion_request({"prompt": "a", **body}, LIMITS).wishes.sampling.greedy


def test_named_tool() -> None:
    """A named choice leaves that tool alone; none leaves no tool."""
    tools = [{"type": "function", "function": {"name": name}} for name in ("f", "g")]
    named = {"messages": USER, "tools": tools, "tool_choice": {"type": "function", "function": {"name": "g"}}}
    chat = read_chat_request(named, LIMITS).chat
    assert chat is not None
    assert [tool["function"]["name"] for tool in chat.tools.offered] == ["g"]
    assert chat.tools.choice == "required"
    none = read_chat_request({"messages": USER, "tools": tools, "tool_choice": "none"}, LIMITS).chat
    assert none is not None
    assert not none.tools.offered


def _call(arguments: str) -> dict[str, Any]:
    return {"id": "1", "type": "function", "function": {"name": "f", "arguments": arguments}}
