from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import pytest

from supervisor.events import InternalError
from tests.fakes.gateway import RunningGateway, running_gateway
from tests.fakes.played_engine import PlayedEngine, stream

CHAT = (Path(__file__).parents[2] / "data" / "gateway" / "chat.sse").read_bytes()
SAY_HI: dict[str, Any] = {"model": "demo", "max_tokens": 9, "messages": [{"role": "user", "content": "Say hi"}]}
RESPONSE: dict[str, Any] = {"model": "demo", "input": "Say hi"}
NAMED = [{"type": "function", "name": "f"}]
DEEP: Any = orjson.loads(b"[" * 400 + b"]" * 400)
ODD: list[tuple[str, dict[str, Any]]] = [
    ("/v1/messages", SAY_HI | {"thinking": {"type": ["enabled"]}}),
    ("/v1/messages", SAY_HI | {"tools": [{"name": "f", "type": {}}]}),
    ("/v1/messages", SAY_HI | {"tools": [{"name": "f"}], "tool_choice": {"type": []}}),
    ("/v1/messages/count_tokens", SAY_HI | {"thinking": {"type": {}}}),
    ("/v1/messages", SAY_HI | {"messages": [{"role": "assistant", "content": [{"type": "tool_use", "input": DEEP}]}]}),
    ("/v1/responses", RESPONSE | {"input": [{"type": ["message"]}]}),
    ("/v1/responses", RESPONSE | {"input": [{"role": {}, "content": "a"}]}),
    ("/v1/responses/input_tokens", RESPONSE | {"input": [{"role": "user", "content": [{"type": []}]}]}),
    ("/v1/responses", RESPONSE | {"tools": NAMED, "tool_choice": {"type": "function", "name": []}}),
    ("/api/chat", SAY_HI | {"messages": [{"role": "assistant", "tool_calls": 5}]}),
    ("/v1/chat/completions", SAY_HI | {"messages": [{"role": "user", "content": [{"image_url": DEEP}, {"file": 1}]}]}),
    ("/v1/embeddings", {"model": "demo", "input": "a", "messages": [1]}),
    ("/v1/completions", {"model": "demo", "prompt": "a", "messages": 5}),
]


def _no_bug(gateway: RunningGateway) -> None:
    assert not [record for record in gateway.bus.since(0) if isinstance(record.event, InternalError)]


@pytest.mark.parametrize(("path", "body"), ODD)
async def test_fields_of_a_kind_that_they_can_not_have(path: str, body: dict[str, Any]) -> None:
    """A list where a word is due is the client's error, or the engine's to judge: never a bug in the log.

    Prevents: a type that can't be looked up in a set was an internal error.
    """
    async with running_gateway(PlayedEngine(stream(CHAT))) as gateway:
        async with gateway.client.post(path, json=body) as answer:
            assert answer.status in {200, 400}
        _no_bug(gateway)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/messages", SAY_HI | {"n": 2, "return_progress": True, "prompt": "x"}),
        ("/v1/responses", RESPONSE | {"n": 2, "return_progress": True, "prompt": None}),
    ],
)
async def test_what_only_a_chat_has(path: str, body: dict[str, Any]) -> None:
    """Several choices and progress have no place in other APIs' answers; a prompt makes no text completion of them.

    Prevents: the words of two choices stood mixed in one message, and a message began before its engine's content.
    """
    async with running_gateway(PlayedEngine(stream(CHAT))) as gateway:
        async with gateway.client.post(path, json=body | {"stream": True}) as answer:
            assert answer.status == 200
            said = await answer.read()
        assert said.count(b"event: message_start") + said.count(b"event: response.created") == 1
        [heard] = gateway.engine.heard
        assert heard.path == "/v1/chat/completions"
        assert "n" not in heard.json
        _no_bug(gateway)
