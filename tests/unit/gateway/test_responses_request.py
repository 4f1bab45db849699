from __future__ import annotations

from typing import Any

import orjson
import pytest

from supervisor.errors import CallerError
from supervisor.gateway.translate.responses_request import as_stored, chain_messages, items_of, messages_of, to_chat

PNG = "data:image/png;base64,aGk="


def _message(role: str, *content: dict[str, Any] | str) -> dict[str, Any]:
    parts = content[0] if len(content) == 1 and isinstance(content[0], str) else list(content)
    return {"type": "message", "role": role, "content": parts}


def _text(text: str, kind: str = "input_text") -> dict[str, Any]:
    return {"type": kind, "text": text}


def _call(number: int) -> dict[str, Any]:
    return {"type": "function_call", "call_id": f"c{number}", "name": "w", "arguments": "{}"}


def _called(number: int) -> dict[str, Any]:
    return {"id": f"c{number}", "type": "function", "function": {"name": "w", "arguments": "{}"}}


def test_a_text_and_what_stands_around_it() -> None:
    """Instructions come first, then what came before, then the input; the fields that chats have go over."""
    before = [{"role": "user", "content": "earlier"}]
    body = {
        "model": "m",
        "input": "hi",
        "instructions": "Be brief.",
        "max_output_tokens": 5,
        "temperature": 0,
        "stream": True,
        "store": False,
        "metadata": {"a": "b"},
        "min_p": 0.1,
    }
    assert to_chat(body, before) == {
        "model": "m",
        "temperature": 0,
        "stream": True,
        "min_p": 0.1,
        "max_tokens": 5,
        "messages": [{"role": "system", "content": "Be brief."}, *before, {"role": "user", "content": "hi"}],
    }


def test_a_run_of_the_assistants_items_is_one_message() -> None:
    """Reasoning, words and calls grow together; words after a call begin a new turn, reasoning and calls do not.

    Prevents: calls that were merged only into the message right before them, and reasoning that was refused.
    """
    thought = {"type": "reasoning", "summary": [_text("hm", "summary_text"), _text("m", "summary_text")]}
    items = [
        _message("user", "hi"),
        thought,
        _message("assistant", _text("I ", "output_text"), _text("look.", "output_text")),
        _call(1),
        thought,
        _call(2),
        _message("assistant", "Then."),
        {"type": "function_call_output", "call_id": "c1", "output": "sun"},
        {"role": "assistant", "content": "Sunny."},
    ]
    assert messages_of(items_of(items)) == [
        {"role": "user", "content": "hi"},
        {
            "role": "assistant",
            "content": "I look.",
            "reasoning_content": "hmmhmm",
            "tool_calls": [_called(1), _called(2)],
        },
        {"role": "assistant", "content": "Then."},
        {"role": "tool", "tool_call_id": "c1", "content": "sun"},
        {"role": "assistant", "content": "Sunny."},
    ]


def test_images_come_after_text() -> None:
    """Parts of text join with nothing between them; developers speak as the system."""
    items = [
        _message("developer", "Rules."),
        _message("user", _text("a"), _text("b"), {"type": "input_image", "image_url": PNG}),
    ]
    assert messages_of(items) == [
        {"role": "system", "content": "Rules."},
        {"role": "user", "content": [{"type": "text", "text": "ab"}, {"type": "image_url", "image_url": {"url": PNG}}]},
    ]


def test_a_refusal_counts_as_words() -> None:
    """What the model refused earlier is what it said."""
    assert messages_of([_message("assistant", {"type": "refusal", "refusal": "No."})])[0]["content"] == "No."


@pytest.mark.parametrize(
    ("content", "role", "says"),
    [
        ([{"type": "input_image", "image_url": PNG}, _text("x")], "user", "text after an image"),
        ([{"type": "input_image", "image_url": PNG}, {"type": "refusal"}], "user", "a refusal after an image"),
        ([{"type": "input_image", "image_url": PNG}], "assistant", "only a user's"),
        ([{"type": "input_image", "file_id": "f"}], "user", "names a file"),
        ([{"type": "input_image"}], "user", "no `image_url`"),
        ([{"type": "input_image", "image_url": "http://x/y.png"}], "user", "data URL in base64"),
        ([{"type": "input_image", "image_url": "data:;base64,aGk="}], "user", "data URL in base64"),
        ([{"type": "input_image", "image_url": "data:image/png;charset=x;base64,aGk="}], "user", "data URL in base64"),
        ([{"type": "input_file"}], "user", "'input_file'"),
        ([3], "user", "a list of parts"),
    ],
)
def test_content_that_can_not_be_asked(content: Any, role: str, says: str) -> None:
    """Each has a sentence of its own, that says what to do."""
    with pytest.raises(CallerError, match=says):
        messages_of([{"type": "message", "role": role, "content": content}])


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ({"input": 3}, "`input` must be"),
        ({}, "`input` must be"),
        ({"input": [None]}, r"`input\[0\]` must be an object"),
        ({"input": [{"type": "computer_call"}]}, "'computer_call'"),
        ({"input": [{"role": "robot", "content": "x"}]}, "'robot'"),
        ({"input": "x", "background": True}, "`background`"),
        ({"input": "x", "conversation": "c"}, "`conversation`"),
        ({"input": "x", "tools": [{"type": "web_search"}]}, "'web_search'"),
        ({"input": "x", "tools": {"a": 1}}, "`tools` must be"),
        (
            {"input": "x", "tools": [{"type": "function", "name": "w"}], "tool_choice": {"type": "function"}},
            "names no tool",
        ),
    ],
)
def test_requests_that_can_not_be_asked(body: dict[str, Any], says: str) -> None:
    """What a chat can't say is refused by its name."""
    with pytest.raises(CallerError, match=says):
        to_chat(body)


@pytest.mark.parametrize(
    ("choice", "names", "mode"),
    [
        (None, ["v", "w"], "auto"),
        ("required", ["v", "w"], "required"),
        ({"type": "function", "name": "w"}, ["w"], "required"),
        ({"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "v"}]}, ["v"], "auto"),
        ("none", [], None),
    ],
)
def test_tools(choice: Any, names: list[str], mode: str | None) -> None:
    """A named tool is the only one that is offered, and required; with `none` there are none."""
    tools = [{"type": "function", "name": name, "parameters": {"type": "object"}, "strict": True} for name in "vw"]
    chat = to_chat({"input": "x", "tools": tools, "tool_choice": choice})
    assert [tool["function"]["name"] for tool in chat.get("tools", [])] == names
    assert chat.get("tool_choice") == mode


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ({"reasoning": {"effort": "low"}}, {"reasoning_effort": "low"}),
        ({"reasoning": {"effort": "none"}}, {"chat_template_kwargs": {"enable_thinking": False}}),
        ({"text": {"format": {"type": "json_object"}}}, {"response_format": {"type": "json_object"}}),
        ({"text": {"format": {"type": "text"}, "verbosity": "low"}}, {}),
        ({"generation_mode": "mtp", "mtp_depth": 3}, {"generation_mode": "mtp", "mtp_depth": 3}),
        ({"generation_mode": "fast", "mtp_depth": 65}, {}),
        ({"mtp_depth": True}, {}),
    ],
)
def test_wishes(more: dict[str, Any], expected: dict[str, Any]) -> None:
    """Wishes are put as chats put them; those for drafting several tokens are dropped if they make no sense."""
    assert to_chat({"input": "x", **more}) == {"messages": [{"role": "user", "content": "x"}], **expected}


def test_a_schema_for_the_answer() -> None:
    """Name, schema and strictness go over."""
    wanted = {"type": "json_schema", "name": "n", "schema": {"type": "object"}, "strict": True}
    made = to_chat({"input": "x", "text": {"format": wanted}})["response_format"]["json_schema"]
    assert made == {"name": "n", "schema": {"type": "object"}, "strict": True}


def test_a_chain_is_read_back_as_it_was() -> None:
    """Input and output of each record, in order; images byte for byte."""
    first = orjson.dumps([_message("user", _text("see"), {"type": "input_image", "image_url": PNG})])
    said = orjson.dumps([_message("assistant", _text("A cat.", "output_text"))])
    second = orjson.dumps([{"type": "function_call_output", "call_id": "c", "output": [_text("x", "output_text")]}])
    made = chain_messages([(first, said), (second, b"[]")])
    assert [message["role"] for message in made] == ["user", "assistant", "tool"]
    assert made[0]["content"][1]["image_url"]["url"] == PNG


def test_input_items_have_ids_and_parts() -> None:
    """As a client reads them back: a text as a part, each item with an id of its own."""
    items = as_stored(items_of("hi") + items_of([{"role": "assistant", "content": "yes"}]), "resp_7")
    assert [item["content"][0]["type"] for item in items] == ["input_text", "output_text"]
    assert [item["id"] for item in items] == ["msg_7_in0", "msg_7_in1"]
