from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.gateway.translate.anthropic_answer import MessageEvents, Told, message
from tests.support.cutting import cut, translated

DATA = Path(__file__).parents[2] / "data" / "gateway"
NAMES = ("chat", "chat_reasoning", "chat_tool_call")
EVENTS = partial(MessageEvents, thinking=True)


def _recorded(name: str) -> bytes:
    return (DATA / f"{name}.sse").read_bytes()


def _events(sse: bytes) -> list[dict[str, Any]]:
    frames = [frame.split(b"\n", 1) for frame in sse.split(b"\n\n") if frame]
    events = [orjson.loads(data.removeprefix(b"data: ")) for _, data in frames]
    assert [kind.removeprefix(b"event: ").decode() for kind, _ in frames] == [event["type"] for event in events]
    return events


@pytest.mark.parametrize("name", NAMES)
def test_the_events_of_recorded_streams(name: str) -> None:
    """A real engine's chunks make these events, byte for byte; a change of any of them is seen here."""
    assert translated([_recorded(name)], EVENTS) == (DATA / "anthropic" / f"{name}.sse").read_bytes()


@given(places=st.lists(st.integers(0, 20_000), max_size=30), name=st.sampled_from(NAMES))
def test_any_cut_of_the_bytes_gives_the_same_events(places: list[int], name: str) -> None:
    """However the engine's bytes arrive, the client gets the same."""
    recorded = _recorded(name)
    assert translated(cut(recorded, places), EVENTS) == translated([recorded], EVENTS)


@pytest.mark.parametrize("name", NAMES)
def test_events_and_whole_message_say_the_same(name: str) -> None:
    """What a client puts together from the events is the message that one without a stream gets."""
    events = _events(translated([_recorded(name)], EVENTS))
    blocks: list[dict[str, Any]] = []
    for event in events:
        if event["type"] == "content_block_start":
            assert event["index"] == len(blocks)
            blocks.append({**event["content_block"], "json": ""})
        elif event["type"] == "content_block_delta":
            delta = {**event["delta"]}
            kind = delta.pop("type")
            [(key, piece)] = delta.items()
            blocks[-1]["json" if kind == "input_json_delta" else key] += piece
    put = [
        {**block, "input": orjson.loads(arguments)} if block["type"] == "tool_use" else block
        for block in blocks
        for arguments in [block.pop("json")]
    ]
    whole = message(orjson.loads((DATA / f"{name}.json").read_bytes()), thinking=True)
    assert [{**block, "id": None} for block in put] == [{**block, "id": None} for block in whole["content"]]
    [end] = [event for event in events if event["type"] == "message_delta"]
    assert end["delta"]["stop_reason"] == whole["stop_reason"]
    assert end["usage"].keys() <= {"input_tokens", "output_tokens", "cache_read_input_tokens"}
    assert events[0]["message"]["usage"]["input_tokens"] == end["usage"]["input_tokens"]
    assert (events[0]["type"], events[-1]["type"]) == ("message_start", "message_stop")


def test_thinking_is_only_for_who_asked_for_it() -> None:
    """Others get the text alone, whole and streamed."""
    whole = message(orjson.loads((DATA / "chat_reasoning.json").read_bytes()), thinking=False)
    assert [block["type"] for block in whole["content"]] == ["text"]
    events = _events(translated([_recorded("chat_reasoning")], partial(MessageEvents, thinking=False)))
    kinds = [event["content_block"]["type"] for event in events if event["type"] == "content_block_start"]
    assert kinds == ["text"]


@pytest.mark.parametrize(
    ("finish", "expected"),
    [("stop", "end_turn"), ("length", "max_tokens"), ("tool_calls", "tool_use"), ("content_filter", "refusal")],
)
def test_stop_reasons(finish: str, expected: str) -> None:
    """Each reason has its word in Anthropic's API."""
    choice = {"index": 0, "message": {"role": "assistant", "content": "x"}, "finish_reason": finish}
    assert message({"choices": [choice]}, thinking=False)["stop_reason"] == expected
    events = MessageEvents(thinking=False)
    events.feed({"choices": [{"index": 0, "delta": {}, "finish_reason": finish}]})
    assert _events(events.end())[-2]["delta"]["stop_reason"] == expected


def test_cached_tokens_are_counted_apart_and_only_when_there_are_any() -> None:
    """Anthropic's input tokens are those that were not read from a cache."""
    choice = {"index": 0, "message": {"content": "x"}, "finish_reason": "stop"}
    usage = {"prompt_tokens": 10, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 0}}
    assert message({"choices": [choice], "usage": usage}, thinking=False)["usage"] == {
        "input_tokens": 10,
        "output_tokens": 2,
    }
    usage["prompt_tokens_details"] = {"cached_tokens": 9}
    assert message({"choices": [choice], "usage": usage}, thinking=False)["usage"] == {
        "input_tokens": 1,
        "cache_read_input_tokens": 9,
        "output_tokens": 2,
    }


def test_a_mark_on_calls_reaches_the_client() -> None:
    """What is said of a recovered call stands in the message, and in the stream beside the stop reason."""
    mark = {"tool_calls": [{"name": "w", "missing_required": ["city"]}]}
    choice = {"index": 0, "message": {"content": "x"}, "finish_reason": "tool_calls", "enginehouse": mark}
    assert message({"choices": [choice]}, thinking=False)["enginehouse"] == mark
    events = MessageEvents(thinking=False)
    events.feed({"choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls", "enginehouse": mark}]})
    assert _events(events.end())[-2]["enginehouse"] == mark


def test_arguments_that_are_no_object_give_none() -> None:
    """A call whose arguments were cut has an empty input, never a part of them."""
    call = {"id": "a", "type": "function", "function": {"name": "w", "arguments": '{"city": "Os'}}
    choice = {"index": 0, "message": {"content": None, "tool_calls": [call]}, "finish_reason": "length"}
    [block] = message({"choices": [choice]}, thinking=False)["content"]
    assert block == {"type": "tool_use", "id": "a", "name": "w", "input": {}}


@pytest.mark.parametrize(
    ("finish", "reason", "word"), [("stop", "stop_sequence", "##"), ("length", "max_tokens", None)]
)
def test_a_stop_string_is_named(finish: str, reason: str, word: str | None) -> None:
    """The sequence that ended a message stands in it, whole and streamed; one cut by its limit had none."""
    told = Told(stopped_by=lambda: "##")
    choice = {"index": 0, "message": {"role": "assistant", "content": "x"}, "finish_reason": finish}
    whole = message({"choices": [choice]}, thinking=False, told=told)
    assert (whole["stop_reason"], whole["stop_sequence"]) == (reason, word)
    events = MessageEvents(thinking=False, told=told)
    events.feed({"choices": [{"index": 0, "delta": {}, "finish_reason": finish}]})
    assert _events(events.end())[-2]["delta"] == {"stop_reason": reason, "stop_sequence": word}
