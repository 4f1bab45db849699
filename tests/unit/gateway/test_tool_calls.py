from __future__ import annotations

from itertools import count, pairwise
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.gateway.translate.passing import PassThrough
from supervisor.gateway.translate.sse import SseSplitter, data_of
from supervisor.gateway.translate.tool_calls import CallWatch, recover_whole, watches_calls
from supervisor.gateway.translate.watched import Watched

DATA = Path(__file__).parents[2] / "data" / "gateway"
TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
                "required": ["city"],
            },
        },
    }
]
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Oslo", "days": "3"}}\n</tool_call>'


def _ids() -> Any:
    numbers = count(1)
    return lambda: f"call_{next(numbers)}"


def _chunk(delta: dict[str, Any], finish: str | None = None, index: int = 0, **more: Any) -> dict[str, Any]:
    choice = {"index": index, "delta": delta, "finish_reason": finish}
    return {"id": "c", "object": "chat.completion.chunk", "model": "m", "choices": [choice], **more}


def _answer(message: dict[str, Any], finish: str = "stop") -> dict[str, Any]:
    return {"object": "chat.completion", "choices": [{"index": 0, "message": message, "finish_reason": finish}]}


def _watched(chunks: list[dict[str, Any]]) -> list[dict[str, Any]]:
    watch = CallWatch(TOOLS, _ids())
    return [one for chunk in chunks for one in (watch.see(chunk) or [chunk])]


def test_a_call_in_the_text_follows_it_before_the_end() -> None:
    """The text passed as it came; then the call comes as a chunk of its own, typed, and the end says tool_calls."""
    texts = [_chunk({"content": part}) for part in ("Sure. ", CALL[:20], CALL[20:])]
    seen = _watched([*texts, _chunk({}, "stop", timings={"predicted_n": 3})])
    assert seen[:3] == texts
    assert seen[3]["choices"][0] == {
        "index": 0,
        "finish_reason": None,
        "delta": {
            "tool_calls": [
                {
                    "index": 0,
                    "id": "call_1",
                    "type": "function",
                    "function": {"name": "weather", "arguments": '{"city":"Oslo","days":3}'},
                }
            ]
        },
    }
    assert "timings" not in seen[3]
    last = seen[4]["choices"][0]
    assert (last["finish_reason"], seen[4]["timings"]) == ("tool_calls", {"predicted_n": 3})
    assert last["enginehouse"]["tool_calls"] == [
        {"name": "weather", "provenance": "native", "complete": True, "id": "call_1"}
    ]


def test_text_without_a_call_passes_untouched() -> None:
    """An answer that only speaks of a tool is not changed, in no chunk."""
    watch = CallWatch(TOOLS)
    assert all(watch.see(chunk) is None for chunk in (_chunk({"content": "Use weather()? No."}), _chunk({}, "stop")))


def test_a_call_that_was_cut_is_not_given() -> None:
    """An answer that ended inside a call must not have it run: the end stays as it was, and the mark tells."""
    seen = _watched([_chunk({"content": CALL[:50]}), _chunk({}, "length")])
    assert len(seen) == 2
    end = seen[1]["choices"][0]
    assert end["finish_reason"] == "length"
    assert end["enginehouse"]["tool_calls"][0]["complete"] is False


def test_a_call_that_lacks_arguments_is_marked() -> None:
    """The client can tell which required properties a recovered call does not have."""
    seen = _watched([_chunk({"content": CALL.replace('"city": "Oslo", ', "")}), _chunk({}, "stop")])
    [mark] = seen[-1]["choices"][0]["enginehouse"]["tool_calls"]
    assert mark["missing_required"] == ["city"]


def test_a_call_of_the_engine_is_not_looked_for_again() -> None:
    """What the engine parsed stands: the text beside it is not searched, and only what lacks something is marked."""
    head = {"index": 0, "id": "x", "type": "function", "function": {"name": "weather", "arguments": '{"da'}}
    rest = {"index": 0, "function": {"arguments": 'ys": 1}'}}
    chunks = [_chunk({"content": CALL}), _chunk({"tool_calls": [head]}), _chunk({"tool_calls": [rest]})]
    seen = _watched([*chunks, _chunk({}, "tool_calls")])
    assert seen[:3] == chunks
    assert seen[3]["choices"][0]["enginehouse"] == {
        "tool_calls": [{"index": 0, "name": "weather", "missing_required": ["city"]}]
    }


def test_choices_are_told_apart() -> None:
    """With several choices, the call belongs to the one whose text held it."""
    seen = _watched(
        [_chunk({"content": "no"}), _chunk({"content": CALL}, index=1), _chunk({}, "stop"), _chunk({}, "stop", 1)]
    )
    ends = {chunk["choices"][0]["index"]: chunk["choices"][0]["finish_reason"] for chunk in seen}
    assert ends == {0: "stop", 1: "tool_calls"}


def test_a_whole_answer_gets_its_calls_and_loses_their_text() -> None:
    """The message has the calls, what is left of the text, and the finish reason of calls."""
    [choice] = recover_whole(_answer({"role": "assistant", "content": f"Sure. {CALL}"}), TOOLS, _ids())["choices"]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["content"].strip() == "Sure."
    assert orjson.loads(choice["message"]["tool_calls"][0]["function"]["arguments"]) == {"city": "Oslo", "days": 3}


@pytest.mark.parametrize(
    "message",
    [
        {"role": "assistant", "content": "Nothing to do."},
        {"role": "assistant", "content": None},
        {"role": "assistant", "content": "", "reasoning_content": CALL},
    ],
)
def test_a_whole_answer_without_calls_stays(message: dict[str, Any]) -> None:
    """Text without calls stays as it is, and reasoning is never searched: what was considered is not called."""
    assert recover_whole(_answer(message), TOOLS) == _answer(message)


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({}, False),
        ({"tools": []}, False),
        ({"tools": TOOLS}, True),
        ({"tools": TOOLS, "tool_choice": "none"}, False),
        ({"tools": TOOLS, "parse_tool_calls": False}, False),
    ],
)
def test_only_who_offers_tools_gets_calls(body: dict[str, Any], expected: bool) -> None:
    """Without tools, or where the client forbids calls, text stays text."""
    assert watches_calls(body) is expected


@given(cuts=st.lists(st.integers(0, 4000), max_size=40), name=st.sampled_from(["chat", "chat_tool_call", "text_call"]))
def test_any_cut_of_the_bytes_gives_the_same(cuts: list[int], name: str) -> None:
    """However the engine's bytes arrive, the client gets the same bytes; recorded streams pass unchanged."""
    if name == "text_call":
        frames = [_chunk({"content": letter}) for letter in CALL] + [_chunk({}, "stop")]
        recorded = b"".join(b"data: " + orjson.dumps(one) + b"\n\n" for one in frames) + b"data: [DONE]\n\n"
    else:
        recorded = (DATA / f"{name}.sse").read_bytes()
    whole = _picked([recorded])
    edges = [0, *sorted(cut % len(recorded) for cut in cuts), len(recorded)]
    assert _picked([recorded[start:end] for start, end in pairwise(edges)]) == whole
    if name != "text_call":
        frames_in = SseSplitter().feed(recorded)
        assert whole == b"".join(frame for frame in frames_in if b"prompt_progress" not in frame)


def _picked(pieces: list[bytes]) -> bytes:
    passing = PassThrough(lambda data: b'"prompt_progress":' in data, keep_progress=False, side_by_side=False)
    watched = Watched(passing, CallWatch(TOOLS, _ids()))
    splitter = SseSplitter()
    return b"".join(watched.pick(splitter.feed(piece)) for piece in pieces)


@pytest.mark.parametrize("data", [b"no json", b"[1]", b'{"choices": 3}', b'{"choices": [7]}'])
def test_what_is_no_chunk_ends_the_answer(data: bytes) -> None:
    """An engine that sends something else is told of as one that failed; nothing is raised."""
    passing = PassThrough(lambda _: False, keep_progress=False, side_by_side=False)
    watched = Watched(passing, CallWatch(TOOLS))
    assert watched.pick([b"data: " + data + b"\n\n", b"data: {}\n\n"]) == b""
    assert watched.error is not None
    assert data_of(b"data: " + watched.error + b"\n\n") is not None
