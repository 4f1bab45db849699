"""The fake llama-server answers in the real one's shapes, as recorded from build b10068.

The recording is edited in two places: embeddings are cut short, and the requests of the tool calls leave out the
examples that made the small model call the tool; the fake calls it because ``tool_choice`` requires it.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.fake_engine import FakeEngine, fake_engine, sse_payloads
from tests.support.shapes import in_turn, shape

_RECORDED = Path(__file__).parents[2] / "data" / "fakes" / "llama_server_b10068.jsonl"
_EXCHANGES = [json.loads(line) for line in _RECORDED.read_text(encoding="utf-8").splitlines()]

# What stands there is up to what the client asked for.
_BY_CLIENT = {"Connection", "Keep-Alive"}


def _name(exchange: dict[str, Any]) -> str:
    wishes = [key for key in exchange["body"] or {} if key not in {"messages", "max_tokens", "temperature"}]
    return "-".join([exchange["method"], exchange["path"], str(exchange["status"]), *wishes])


@pytest.fixture
async def engine(tmp_path: Path) -> AsyncIterator[FakeEngine]:
    """A fake like the real one that was recorded."""
    async with fake_engine(tmp_path, "--embeddings", "--parallel", "2", "--ctx-size", "4096") as started:
        yield started


@pytest.mark.parametrize("exchange", _EXCHANGES, ids=map(_name, _EXCHANGES))
async def test_an_answer_has_the_recordedshape(engine: FakeEngine, exchange: dict[str, Any]) -> None:
    """Status, header names, keys, their order and types are those that the real server sent."""
    if not exchange.get("key", True):
        engine.key = "wrong"
    sent = (
        engine.get(exchange["path"]) if exchange["method"] == "GET" else engine.post(exchange["path"], exchange["body"])
    )
    async with sent as response:
        text = await response.text()
        assert response.status == exchange["status"]
        assert set(response.headers) - _BY_CLIENT == set(exchange["headers"]) - _BY_CLIENT
    if "json" in exchange:
        assert shape(json.loads(text)) == shape(exchange["json"])
        return
    events = sse_payloads(text)
    body = exchange["body"]
    if body.get("n", 1) > 1 or isinstance(body.get("prompt"), list):
        # How the choices of one request mix is up to the moment.
        assert set(in_turn(events)) == set(in_turn(exchange["events"]))
    else:
        assert in_turn(events) == in_turn(exchange["events"])


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
@pytest.mark.parametrize("wishes", [{}, {"logprobs": True, "top_logprobs": 2}, {"max_tokens": 2}, {"tools": True}])
async def test_a_folded_stream_is_the_whole_answer(engine: FakeEngine, path: str, wishes: dict[str, Any]) -> None:
    """Joined by hand, the chunks give the text, the finish reason and the usage of the answer without a stream."""
    function = {"name": "f", "parameters": {"type": "object", "properties": {"n": {"type": "integer"}}}}
    if "tools" in wishes:
        wishes = {"tools": [{"type": "function", "function": function}], "tool_choice": "required"}
    body = {"messages": [{"role": "user", "content": "a b c"}], "prompt": "a b c", "cache_prompt": False, **wishes}
    async with engine.post(path, body) as response:
        whole = await response.json()
    events = await engine.events(path, {**body, "stream_options": {"include_usage": True}})
    assert events.pop() == "[DONE]"
    choices = [event["choices"][0] for event in events if event["choices"]]
    assert choices[-1]["finish_reason"] == whole["choices"][0]["finish_reason"]
    assert events[-1]["usage"] == whole["usage"]
    if path == "/v1/completions":
        assert "".join(choice["text"] for choice in choices) == whole["choices"][0]["text"]
        return
    message = whole["choices"][0]["message"]
    assert "".join(choice["delta"].get("content") or "" for choice in choices) == message["content"]
    calls = [call for choice in choices for call in choice["delta"].get("tool_calls", [])]
    arguments = "".join(call["function"]["arguments"] for call in calls)
    assert arguments == "".join(call["function"]["arguments"] for call in message.get("tool_calls", []))
    entries = [entry for choice in choices for entry in (choice.get("logprobs") or {}).get("content", [])]
    assert entries == (whole["choices"][0].get("logprobs") or {"content": []})["content"]


async def test_the_same_text_embeds_to_the_same_unit_vector(engine: FakeEngine) -> None:
    """Vectors depend on the text alone and have length one, so that tests can compare them."""
    async with engine.post("/v1/embeddings", {"input": ["a", "b", "a"]}) as response:
        vectors = [row["embedding"] for row in (await response.json())["data"]]
    assert vectors[0] == vectors[2] != vectors[1]
    assert sum(value * value for value in vectors[0]) == pytest.approx(1)


async def test_a_prompt_over_the_context_is_refused_before_the_stream(engine: FakeEngine) -> None:
    """Even a stream gets a plain 400 with both numbers."""
    body = {"prompt": "word " * 2500, "stream": True}
    async with engine.post("/v1/completions", body) as response:
        error = (await response.json())["error"]
        assert response.status == 400
    assert (error["type"], error["n_prompt_tokens"], error["n_ctx"]) == ("exceed_context_size_error", 2501, 2048)
