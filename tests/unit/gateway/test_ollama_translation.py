from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.errors import CallerError
from supervisor.gateway.translate.ollama_answer import Lines, in_message, in_response, whole
from supervisor.gateway.translate.ollama_request import (
    chat_of_chat,
    chat_of_generate,
    completion_of_generate,
    spellings,
    tagged,
)
from tests.support.cutting import cut, translated

DATA = Path(__file__).parents[2] / "data" / "gateway"
NAMES = ("chat", "chat_reasoning", "chat_tool_call")
FACTS: dict[str, Any] = {"place": in_message, "thinking": True, "load_seconds": lambda: 1.5}
EVENTS = partial(Lines, **FACTS)
HI = [{"role": "user", "content": "hi"}]


def _recorded(name: str) -> bytes:
    return (DATA / f"{name}.sse").read_bytes()


@pytest.mark.parametrize("name", NAMES)
def test_the_lines_of_recorded_streams(name: str) -> None:
    """A real engine's chunks make these lines, byte for byte; a change of any of them is seen here."""
    assert translated([_recorded(name)], EVENTS) == (DATA / "ollama" / f"{name}.ndjson").read_bytes()


@given(places=st.lists(st.integers(0, 20_000), max_size=30), name=st.sampled_from(NAMES))
def test_any_cut_of_the_bytes_gives_the_same_lines(places: list[int], name: str) -> None:
    """However the engine's bytes arrive, the client gets the same."""
    recorded = _recorded(name)
    assert translated(cut(recorded, places), EVENTS) == translated([recorded], EVENTS)


@pytest.mark.parametrize("name", NAMES)
def test_lines_and_whole_answer_say_the_same(name: str) -> None:
    """The pieces add up to the answer of one without a stream; only the last line is done, and has the counts."""
    lines = [orjson.loads(line) for line in translated([_recorded(name)], EVENTS).splitlines()]
    answer = whole(orjson.loads((DATA / f"{name}.json").read_bytes()), **FACTS)
    assert [line["done"] for line in lines] == [False] * (len(lines) - 1) + [True]
    for key in ("content", "thinking"):
        assert "".join(line["message"].get(key, "") for line in lines) == answer["message"].get(key, "")
    calls = [call for line in lines for call in line["message"].get("tool_calls", [])]
    assert calls == answer["message"].get("tool_calls", [])
    for key in ("done_reason", "prompt_eval_count", "eval_count", "load_duration"):
        assert lines[-1][key] == answer[key]
    assert answer["load_duration"] == 1_500_000_000
    assert answer["total_duration"] == sum(answer[f"{part}_duration"] for part in ("load", "prompt_eval", "eval"))


def test_generate_answers_in_its_own_place() -> None:
    """A text completion's chunks, as a raw prompt gets them, make responses."""
    events = partial(Lines, **{**FACTS, "place": in_response})
    lines = [orjson.loads(line) for line in translated([_recorded("text")], events).splitlines()]
    answer = whole(orjson.loads((DATA / "text.json").read_bytes()), **{**FACTS, "place": in_response})
    assert "".join(line["response"] for line in lines) == answer["response"] != ""
    assert "message" not in lines[-1]


def test_a_chat() -> None:
    """Options get the names of chats, and those that are about the launch are left out; a stream unless told."""
    options = {"num_predict": 5, "temperature": 0, "stop": ["x"], "num_ctx": 9, "num_thread": 3, "seed": None}
    assert chat_of_chat({"model": "m", "messages": HI, "options": options, "keep_alive": 3}) == {
        "model": "m",
        "messages": HI,
        "stream": True,
        "max_tokens": 5,
        "temperature": 0,
        "stop": ["x"],
    }
    assert chat_of_chat({"model": "m", "messages": HI, "stream": False})["stream"] is False
    assert "max_tokens" not in chat_of_chat({"model": "m", "messages": HI, "options": {"num_predict": -1}})


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ({"format": "json"}, {"response_format": {"type": "json_object"}}),
        ({"format": ""}, {}),
        ({"think": False}, {"chat_template_kwargs": {"enable_thinking": False}}),
        ({"think": "high"}, {"chat_template_kwargs": {"enable_thinking": True}, "reasoning_effort": "high"}),
    ],
)
def test_forms_and_thinking(more: dict[str, Any], expected: dict[str, Any]) -> None:
    """What Ollama says of the answer's form and of thinking is said as chats say it."""
    assert chat_of_chat({"model": "m", "messages": HI, **more}) == {
        "model": "m",
        "messages": HI,
        "stream": True,
        **expected,
    }


def test_a_schema_for_the_answer() -> None:
    """A schema is passed on."""
    chat = chat_of_chat({"model": "m", "messages": HI, "format": {"type": "object"}})
    assert chat["response_format"]["json_schema"]["schema"] == {"type": "object"}


def test_results_find_their_calls() -> None:
    """Ollama's calls have no ids: results get those of the calls of their tool, in order."""
    call: Any = {"function": {"name": "weather", "arguments": {"city": "Oslo"}}}
    other: Any = {"function": {"name": "time", "arguments": {}}}
    messages = [
        {"role": "assistant", "content": "", "tool_calls": [call, other, call]},
        {"role": "tool", "tool_name": "time", "content": "noon"},
        {"role": "tool", "tool_name": "weather", "content": "sun"},
        {"role": "tool", "content": "rain"},
    ]
    made = chat_of_chat({"model": "m", "messages": messages})["messages"]
    first, second, third = (given["id"] for given in made[0]["tool_calls"])
    assert [message["tool_call_id"] for message in made[1:]] == [second, first, third]
    assert len({first, second, third}) == 3
    assert made[0]["tool_calls"][0]["function"] == {"name": "weather", "arguments": '{"city":"Oslo"}'}


def test_pictures() -> None:
    """Bare base64 becomes a data URL of the kind that its first bytes tell."""
    made = chat_of_chat({"model": "m", "messages": [{"role": "user", "content": "see", "images": ["iVBORw0", "/9j/"]}]})
    urls = [part["image_url"]["url"] for part in made["messages"][0]["content"][:2]]
    assert urls == ["data:image/png;base64,iVBORw0", "data:image/jpeg;base64,/9j/"]


def test_generate() -> None:
    """A prompt is a chat of one message, with its system before it; a raw one goes to the model as it is."""
    body = {"model": "m", "prompt": "hi", "system": "Be brief."}
    assert chat_of_generate(body)["messages"] == [{"role": "system", "content": "Be brief."}, *HI]
    raw = completion_of_generate({"model": "m", "prompt": "hi", "raw": True})
    assert raw == {"model": "m", "prompt": "hi", "stream": True}


@pytest.mark.parametrize(
    ("more", "param"),
    [
        ({"options": 3}, "options"),
        ({"suffix": "x"}, "suffix"),
        ({"format": 3}, "format"),
        ({"think": 3}, "think"),
        ({"messages": "x"}, "messages"),
        ({"messages": [3]}, "messages[0]"),
        ({"messages": [{"role": "user", "images": "x"}]}, "messages[0].images"),
        ({"messages": [{"role": "assistant", "tool_calls": [3]}]}, "messages[0]"),
    ],
)
def test_what_can_not_be_asked_is_refused_by_name(more: dict[str, Any], param: str) -> None:
    """Nothing is dropped in silence that would change the answer."""
    with pytest.raises(CallerError) as caught:
        chat_of_chat({"model": "m", "messages": HI, **more})
    assert str(caught.value.facts["param"]).startswith(param) or param in caught.value.message


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("smol", ("smol", "smol:latest")),
        ("smol:latest", ("smol:latest", "smol")),
        ("smol:q4", ("smol:q4",)),
        ("host:80/smol", ("host:80/smol", "host:80/smol:latest")),
    ],
)
def test_names(name: str, expected: tuple[str, ...]) -> None:
    """A name means the same with and without the tag `latest`; another tag is part of it."""
    assert spellings(name) == expected
    assert spellings(tagged(name))[0] == tagged(name)
