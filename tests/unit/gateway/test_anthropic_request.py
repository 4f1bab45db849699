from __future__ import annotations

from typing import Any

import pytest

from supervisor.errors import CallerError
from supervisor.gateway.translate.anthropic_request import shows_thinking, to_chat

PNG = {"type": "base64", "media_type": "image/png", "data": "aGk="}
PNG_PART = {"type": "image_url", "image_url": {"url": "data:image/png;base64,aGk="}}


def _chat(*messages: dict[str, Any], **more: Any) -> dict[str, Any]:
    return to_chat({"model": "m", "max_tokens": 5, "messages": list(messages), **more})


def _user(*blocks: dict[str, Any]) -> dict[str, Any]:
    return {"role": "user", "content": list(blocks)}


def _text(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


def test_the_fields_that_both_have() -> None:
    """Limits and sampling go over; system becomes the first message; what only concerns the service is dropped."""
    chat = _chat(
        {"role": "user", "content": "hi"},
        system=[_text("Be brief."), _text("Be kind.")],
        temperature=0.5,
        top_p=0.9,
        top_k=40,
        stop_sequences=["END"],
        stream=True,
        metadata={"user_id": "u"},
        service_tier="auto",
        min_p=0.1,
    )
    assert chat == {
        "model": "m",
        "max_tokens": 5,
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 40,
        "stop": ["END"],
        "stream": True,
        "min_p": 0.1,
        "messages": [{"role": "system", "content": "Be brief.\nBe kind."}, {"role": "user", "content": "hi"}],
    }


def test_results_of_tools_become_messages_of_their_own() -> None:
    """In order, before the text that follows them; a failed one says so; its pictures go to the user's message."""
    chat = _chat(
        _user(
            {"type": "tool_result", "tool_use_id": "a", "content": "sunny"},
            {"type": "tool_result", "tool_use_id": "b", "content": [_text("no"), _text("net")], "is_error": True},
            {"type": "tool_result", "tool_use_id": "c", "content": [{"type": "image", "source": PNG}]},
            _text("And now?"),
        )
    )
    assert chat["messages"] == [
        {"role": "tool", "tool_call_id": "a", "content": "sunny"},
        {"role": "tool", "tool_call_id": "b", "content": "Error: no\nnet"},
        {"role": "tool", "tool_call_id": "c", "content": ""},
        {"role": "user", "content": [PNG_PART, {"type": "text", "text": "And now?"}]},
    ]


def test_a_turn_of_the_assistant_is_one_message() -> None:
    """Thinking, text and calls of one turn stay together; thinking that only Anthropic can read is left out."""
    chat = _chat(
        {"role": "user", "content": "hi"},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "hm", "signature": "s"},
                {"type": "redacted_thinking", "data": "x"},
                _text("I look."),
                {"type": "tool_use", "id": "a", "name": "weather", "input": {"city": "Oslo"}},
            ],
        },
    )
    assert chat["messages"][1] == {
        "role": "assistant",
        "content": "I look.",
        "reasoning_content": "hm",
        "tool_calls": [
            {"id": "a", "type": "function", "function": {"name": "weather", "arguments": '{"city":"Oslo"}'}}
        ],
    }


def test_texts_and_pictures() -> None:
    """Only-text content becomes a text, since not every template takes parts; pictures become data URLs."""
    document = {"type": "document", "title": "T", "source": {"type": "text", "media_type": "text/plain", "data": "D"}}
    chat = _chat(_user(_text("a"), document), _user({"type": "image", "source": PNG}, _text("b")))
    assert chat["messages"] == [
        {"role": "user", "content": "a\nT\nD"},
        {"role": "user", "content": [PNG_PART, {"type": "text", "text": "b"}]},
    ]


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        (None, {}),
        ({"type": "auto"}, {"tool_choice": "auto"}),
        ({"type": "none"}, {"tool_choice": "none"}),
        (
            {"type": "any", "disable_parallel_tool_use": True},
            {"tool_choice": "required", "parallel_tool_calls": False},
        ),
        ({"type": "tool", "name": "w"}, {"tool_choice": "required"}),
    ],
)
def test_tools(choice: dict[str, Any] | None, expected: dict[str, Any]) -> None:
    """Tools become functions, and the choice among them keeps its meaning; a named one is the only one offered.

    Prevents: llama-server takes a choice by name for "auto", and the model called nothing.
    """
    schema = {"type": "object", "properties": {"city": {"type": "string"}}}
    tools = [{"name": "w", "description": "d", "input_schema": schema}]
    if choice and choice["type"] == "tool":
        tools.insert(0, {"name": "other", "input_schema": schema})
    chat = _chat({"role": "user", "content": "hi"}, tools=tools, tool_choice=choice)
    function = {"name": "w", "description": "d", "parameters": schema}
    made = {key: chat[key] for key in ("tools", "tool_choice", "parallel_tool_calls") if key in chat}
    assert made == {"tools": [{"type": "function", "function": function}], **expected}


@pytest.mark.parametrize(
    ("thinking", "template", "shown"),
    [
        (None, None, False),
        ({"type": "enabled", "budget_tokens": 1024}, {"enable_thinking": True}, True),
        ({"type": "adaptive"}, {"enable_thinking": True}, True),
        ({"type": "disabled"}, {"enable_thinking": False}, False),
    ],
)
def test_thinking(thinking: Any, template: dict[str, Any] | None, shown: bool) -> None:
    """Templates hear whether to let the model think; the answer has blocks of it only for who asked for them."""
    body = {"thinking": thinking} if thinking else {}
    assert _chat({"role": "user", "content": "hi"}, **body).get("chat_template_kwargs") == template
    assert shows_thinking(body) is shown


def test_a_wanted_form_of_the_answer() -> None:
    """A schema for the answer is passed on in the form of chats."""
    wanted = {"format": {"type": "json_schema", "schema": {"type": "object"}}}
    chat = _chat({"role": "user", "content": "hi"}, output_config=wanted)
    assert chat["response_format"]["json_schema"]["schema"] == {"type": "object"}


@pytest.mark.parametrize(
    ("more", "param"),
    [
        ({"messages": []}, "messages"),
        ({"messages": ["hi"]}, "messages[0]"),
        ({"messages": [{"role": "robot", "content": "x"}]}, "messages[0]"),
        ({"messages": [{"role": "user", "content": 3}]}, "messages[0].content"),
        ({"messages": [_user({"type": "video"})]}, "messages[0].content[0]"),
        ({"messages": [_user({"type": "text"})]}, "messages[0].content[0]"),
        ({"messages": [_user({"type": "image", "source": {"type": "file"}})]}, "messages[0].content[0].source"),
        ({"messages": [_user({"type": "document", "source": PNG})]}, "messages[0].content[0]"),
        ({"messages": [{"role": "assistant", "content": [{"type": "image"}]}]}, "messages[0].content[0]"),
        ({"system": [{"type": "image"}]}, "system[0]"),
        ({"tools": "x"}, "tools"),
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "tools[0]"),
        ({"tools": [{"input_schema": {}}]}, "tools[0]"),
        ({"tools": [{"name": "w"}], "tool_choice": "auto"}, "tool_choice"),
        ({"tools": [{"name": "w"}], "tool_choice": {"type": "tool", "name": "v"}}, "tool_choice"),
        ({"thinking": True}, "thinking"),
        ({"mcp_servers": [{"url": "http://x"}]}, "mcp_servers"),
    ],
)
def test_what_can_not_be_asked_is_refused_by_name(more: dict[str, Any], param: str) -> None:
    """Nothing is dropped in silence that would change the answer, and nobody is asked to fetch or run a thing."""
    with pytest.raises(CallerError) as caught:
        to_chat({"messages": [{"role": "user", "content": "hi"}], **more})
    assert (caught.value.code, caught.value.facts["param"]) == ("invalid_request", param)


def test_a_url_is_refused() -> None:
    """An engine would fetch it."""
    with pytest.raises(CallerError) as caught:
        _chat(_user({"type": "image", "source": {"type": "url", "url": "http://x/y.png"}}))
    assert caught.value.code == "url_refused"


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ({"generation_mode": "mtp", "mtp_depth": 3}, {"generation_mode": "mtp", "mtp_depth": 3}),
        ({"generation_mode": "fast", "mtp_depth": 65}, {}),
        ({"generation_mode": "ar", "mtp_depth": True}, {"generation_mode": "ar"}),
    ],
)
def test_drafting_is_asked_for_as_in_responses(more: dict[str, Any], expected: dict[str, Any]) -> None:
    """What makes no sense is dropped, so that an engine never sees it."""
    made = to_chat({"messages": [{"role": "user", "content": "x"}], **more})
    assert {key: made[key] for key in made if key != "messages"} == expected
