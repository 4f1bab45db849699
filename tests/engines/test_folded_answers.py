"""What a client gets that asked for no stream is what the engine itself would have answered.

The daemon asks engines for streams and folds them, unless the answer is to be of 16 tokens at most. Both engines run
on the same arguments with the same weights at temperature 0 and without a prompt cache, so their answers are the same
to the last digit.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.engines.by_hand import EngineByHand
from tests.support.daemon import Daemon
from tests.wire.asking import CHAT, EMBEDDINGS, TEXT, ask, said

pytestmark = [pytest.mark.engine, pytest.mark.timeout(120)]

FIXED = {"model": "smol", "temperature": 0, "seed": 7, "cache_prompt": False}
COLOURS = said("Name three colours.")
TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "Get the weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "enum": ["Oslo", "Rome"]}},
            "required": ["city"],
        },
    },
}
SCHEMA = {
    "type": "object",
    "properties": {"colour": {"type": "string", "enum": ["red", "blue"]}},
    "required": ["colour"],
}

CHATS: dict[str, dict[str, Any]] = {
    "plain": {"max_tokens": 20},
    "brief": {"max_tokens": 12},
    "system prompt": {"messages": [{"role": "system", "content": "Answer in French."}, *COLOURS], "max_tokens": 18},
    "ended by itself": {"messages": said("Say only: yes"), "max_tokens": 80},
    "ended by a stop string": {"max_tokens": 40, "stop": ["."]},
    "one token": {"max_tokens": 1},
    "no token": {"max_tokens": 0},
    "logprobs": {"max_tokens": 6, "logprobs": True, "top_logprobs": 3},
    "two choices": {"max_tokens": 8, "n": 2},
    "two different choices": {"max_tokens": 8, "n": 2, "temperature": 0.8},
    "two choices with logprobs": {"max_tokens": 4, "n": 2, "logprobs": True, "top_logprobs": 2},
    "sampled": {"max_tokens": 18, "temperature": 0.9, "top_p": 0.9, "seed": 42},
    "tool call": {"max_tokens": 60, "tools": [TOOL], "tool_choice": "required"},
    "tools not called": {"max_tokens": 8, "tools": [TOOL]},
    "logprobs with tools": {"max_tokens": 4, "tools": [TOOL], "logprobs": True, "top_logprobs": 1},
    "JSON by schema": {
        "max_tokens": 40,
        "response_format": {"type": "json_schema", "json_schema": {"name": "colour", "schema": SCHEMA}},
    },
    "letters of several tokens": {"messages": said("Repeat: 😀😀 naïve 日本"), "max_tokens": 24, "logprobs": True},
    "prefilled answer": {
        "messages": [*COLOURS, {"role": "assistant", "content": "The three colours are"}],
        "max_tokens": 18,
    },
    "prefilled brief answer": {
        "messages": [*COLOURS, {"role": "assistant", "content": "The three colours are"}],
        "max_tokens": 8,
    },
    "timings per token": {"max_tokens": 17, "timings_per_token": True},
    "token numbers": {"max_tokens": 17, "return_tokens": True},
    "options for streams": {"max_tokens": 17, "stream_options": {"include_usage": True}},
    "not streamed, said so": {"max_tokens": 4, "stream": False},
}
TEXTS: dict[str, dict[str, Any]] = {
    "plain": {"max_tokens": 18},
    "brief": {"max_tokens": 8},
    "logprobs": {"max_tokens": 4, "logprobs": 3},
    "echo": {"max_tokens": 17, "echo": True},
    "brief echo": {"max_tokens": 4, "echo": True},
    "echo with logprobs": {"max_tokens": 4, "echo": True, "logprobs": 2},
    "two choices": {"max_tokens": 6, "n": 2},
    "two prompts": {"prompt": ["The capital of France is", "One two three"], "max_tokens": 6},
    "two prompts with two choices": {"prompt": ["The capital of France is", "One two"], "max_tokens": 4, "n": 2},
    "two prompts with logprobs": {"prompt": ["The capital of France is", "One two"], "max_tokens": 3, "logprobs": 1},
    "prompt in tokens": {"prompt": [1, 2, 3, 400], "max_tokens": 4},
    "long stop string": {"prompt": "One, two, three,", "max_tokens": 20, "stop": ["five, six"]},
    "long stop string with logprobs": {
        "prompt": "One, two, three,",
        "max_tokens": 20,
        "stop": ["five, six"],
        "logprobs": 1,
    },
    "half a letter": {"prompt": "😀😀😀😀😀😀", "max_tokens": 2, "logprobs": 1},
    "no token": {"max_tokens": 0},
}


# What is said in `usage` of the time that a request took: the engine says nothing of it there.
OURS = {
    "time_to_first_token_ms",
    "prefill_tokens_per_second",
    "decode_tokens_per_second",
    "server_queue_ms",
    "server_load_wait_ms",
    "server_load_owner",
}


@pytest.mark.parametrize("name", CHATS)
def test_chat(real: Daemon, by_hand: EngineByHand, name: str) -> None:
    """A folded chat equals the engine's own answer in everything but ids, times and speeds."""
    assert_same(real, by_hand, CHAT, {**FIXED, "messages": COLOURS, **CHATS[name]})


@pytest.mark.parametrize("name", TEXTS)
def test_text(real: Daemon, by_hand: EngineByHand, name: str) -> None:
    """A folded text completion equals the engine's own answer in everything but ids, times and speeds."""
    assert_same(real, by_hand, TEXT, {**FIXED, "prompt": "The capital of France is", **TEXTS[name]})


@pytest.mark.parametrize("form", ["float", "base64"])
def test_embeddings(real: Daemon, by_hand: EngineByHand, form: str) -> None:
    """Embeddings are passed on as the engine gave them, in both forms."""
    assert_same(real, by_hand, EMBEDDINGS, {"model": "smol", "input": ["hello", "world"], "encoding_format": form})


@pytest.mark.parametrize(
    "more",
    [{}, {"stream_options": {"include_usage": True}}, {"logprobs": True}, {"tools": [TOOL], "tool_choice": "required"}],
)
def test_stream(real: Daemon, by_hand: EngineByHand, more: dict[str, Any]) -> None:
    """A stream has the engine's own chunks, one for one: what the daemon asked for beyond its client is taken out."""
    body = {**FIXED, "messages": COLOURS, "max_tokens": 12, **more}
    own = by_hand.stream(CHAT, body)
    given = ask(real, CHAT, {**body, "stream": True}).events
    assert [comparable(event) for event in given] == [comparable(event) for event in own]
    assert given[-1] == "[DONE]"


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (CHAT, {"messages": COLOURS, "temperature": "hot"}),
        (CHAT, {"messages": said("word " * 9000)}),
        (TEXT, {"prompt": {"a": 1}}),
        (TEXT, {"prompt": "a", "grammar": "root ::= ("}),
    ],
    ids=["wrong type", "too long", "no prompt", "bad grammar"],
)
def test_refusals(real: Daemon, by_hand: EngineByHand, path: str, body: dict[str, Any]) -> None:
    """What the engine refuses keeps its status and its words; only the code is OpenAI's."""
    status, own = by_hand.ask(path, {**FIXED, **body})
    given = ask(real, path, {**FIXED, **body})
    assert given.status == status == 400
    assert given.error["message"] == own["error"]["message"]
    assert given.error["type"] == own["error"]["type"]


def assert_same(daemon: Daemon, engine: EngineByHand, path: str, body: dict[str, Any]) -> None:
    """Ask both, and hold that their answers are the same."""
    status, own = engine.ask(path, body)
    given = ask(daemon, path, body)
    assert status == 200, own
    assert given.status == 200, given.body
    assert comparable(given.json) == comparable(own)


def comparable(value: Any) -> Any:
    """The value without ids and times; of timings only which there are."""
    if isinstance(value, list):
        return [comparable(part) for part in value]
    if not isinstance(value, dict):
        return value
    left_out = {"id", "created", "timings", *OURS}
    kept = {key: comparable(part) for key, part in value.items() if key not in left_out}
    if "timings" in value:
        kept["timings"] = sorted(value["timings"])
    if "id" in value:
        kept["id"] = type(value["id"]).__name__
    return kept
