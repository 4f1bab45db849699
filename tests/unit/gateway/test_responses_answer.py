from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.gateway.exchange import Waits
from supervisor.gateway.translate.responses_answer import ResponseEvents
from supervisor.gateway.translate.usage import timing_fields
from tests.support.cutting import cut, translated

DATA = Path(__file__).parents[2] / "data" / "gateway"
NAMES = ("chat", "chat_reasoning", "chat_tool_call")


def _new(body: dict[str, Any] | None = None) -> ResponseEvents:
    waits = Waits(0.5, 2.0, load_owner=True)
    return ResponseEvents("resp_7", 1_700_000_000, body or {}, lambda timings: timing_fields(timings, waits))


def _recorded(name: str) -> bytes:
    return (DATA / f"{name}.sse").read_bytes()


def _streamed(pieces: list[bytes]) -> bytes:
    events = _new()
    return translated(pieces, lambda: events) + events.last()


def _parsed(sse: bytes) -> list[dict[str, Any]]:
    frames = [frame.split(b"\n", 1) for frame in sse.split(b"\n\n") if frame]
    events = [orjson.loads(data.removeprefix(b"data: ")) for _, data in frames]
    assert [kind.removeprefix(b"event: ").decode() for kind, _ in frames] == [event["type"] for event in events]
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    return events


@pytest.mark.parametrize("name", NAMES)
def test_the_events_of_recorded_streams(name: str) -> None:
    """A real engine's chunks make these events, byte for byte; a change of any of them is seen here."""
    assert _streamed([_recorded(name)]) == (DATA / "responses" / f"{name}.sse").read_bytes()


@given(places=st.lists(st.integers(0, 20_000), max_size=30), name=st.sampled_from(NAMES))
def test_any_cut_of_the_bytes_gives_the_same_events(places: list[int], name: str) -> None:
    """However the engine's bytes arrive, the client gets the same."""
    recorded = _recorded(name)
    assert _streamed(cut(recorded, places)) == _streamed([recorded])


@pytest.mark.parametrize("name", NAMES)
def test_events_and_whole_response_say_the_same(name: str) -> None:
    """Items are added, grow and are done in order, and the last event holds what one without a stream gets."""
    events = _parsed(_streamed([_recorded(name)]))
    assert [event["type"] for event in events[:2]] == ["response.created", "response.in_progress"]
    done = [event["item"] for event in events if event["type"] == "response.output_item.done"]
    response = events[-1]["response"]
    assert done == response["output"]
    whole = _new().whole(orjson.loads((DATA / f"{name}.json").read_bytes()))
    for item, other in zip(response["output"], whole["output"], strict=True):
        assert {**item, "call_id": None} == {**other, "call_id": None}
    assert (response["status"], response["usage"].keys()) == (whole["status"], whole["usage"].keys())
    grown = [event["delta"] for event in events if event["type"].endswith(".delta")]
    assert "".join(grown) == "".join(_text(item) for item in done)


def _text(item: dict[str, Any]) -> str:
    if item["type"] == "reasoning":
        return str(item["summary"][0]["text"])
    return str(item["arguments"] if item["type"] == "function_call" else item["content"][0]["text"])


def test_an_answer_that_its_limit_cut() -> None:
    """The response is incomplete and says why, and so does its last item."""
    events = _new()
    events.feed({"choices": [{"delta": {"content": "x"}, "finish_reason": None}]})
    events.feed({"choices": [{"delta": {}, "finish_reason": "length"}]})
    events.end()
    [last] = [orjson.loads(events.last().split(b"data: ")[1])]
    assert last["type"] == "response.incomplete"
    assert last["response"]["incomplete_details"] == {"reason": "max_output_tokens"}
    assert last["response"]["output"][0]["status"] == "incomplete"


def test_usage() -> None:
    """Cached tokens only when there are any; what the time went into stands beside the counts."""
    usage: dict[str, Any] = {"prompt_tokens": 10, "completion_tokens": 2}
    timings = {"prompt_ms": 20.0, "prompt_per_second": 500.0, "predicted_per_second": 0}
    answer = {"choices": [{"message": {"content": "x"}, "finish_reason": "stop"}], "usage": usage, "timings": timings}
    assert _new().whole(answer)["usage"] == {
        "input_tokens": 10,
        "input_tokens_details": {},
        "output_tokens": 2,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": 12,
        "time_to_first_token_ms": 20.0,
        "prefill_tokens_per_second": 500.0,
        "server_queue_ms": 500.0,
        "server_load_wait_ms": 2000.0,
        "server_load_owner": True,
    }
    usage["prompt_tokens_details"] = {"cached_tokens": 9}
    assert _new().whole(answer)["usage"]["input_tokens_details"] == {"cached_tokens": 9}


def test_a_response_repeats_its_request() -> None:
    """Clients read back what they asked for."""
    response = _new({"instructions": "Be brief.", "metadata": {"a": "b"}, "store": False}).whole(
        {"choices": [{"message": {"content": "x"}, "finish_reason": "stop"}], "model": "demo"}
    )
    assert (response["instructions"], response["metadata"], response["store"]) == ("Be brief.", {"a": "b"}, False)
    assert (response["id"], response["model"], response["object"]) == ("resp_7", "demo", "response")


def test_a_failure() -> None:
    """Before the first event it is an error alone; after it the response has failed, and keeps what it had."""
    events = _new()
    assert orjson.loads(events.failed("queue_timeout", "late").split(b"data: ")[1]) == {
        "type": "error",
        "sequence_number": 0,
        "code": "queue_timeout",
        "message": "late",
        "param": None,
    }
    events.feed({"choices": [{"delta": {"content": "x"}}]})
    failed = orjson.loads(events.failed("upstream_died", "gone").split(b"data: ")[1])
    assert (failed["type"], failed["response"]["status"]) == ("response.failed", "failed")
    assert failed["response"]["error"] == {"code": "upstream_died", "message": "gone"}
