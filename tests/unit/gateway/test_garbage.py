from __future__ import annotations

from typing import Any

import orjson
import pytest

from supervisor.events import InternalError
from tests.fakes.gateway import running_gateway
from tests.fakes.played_engine import PlayedEngine, stream

TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}]
SAY_HI: dict[str, Any] = {"model": "demo", "max_tokens": 9, "messages": [{"role": "user", "content": "Say hi"}]}
ASKED: list[tuple[str, dict[str, Any]]] = [
    ("/v1/chat/completions", SAY_HI),
    ("/v1/chat/completions", SAY_HI | {"tools": TOOLS}),
    ("/v1/messages", SAY_HI),
    ("/v1/responses", {"model": "demo", "input": "Say hi"}),
    ("/api/chat", SAY_HI),
]
DELTA = {"role": "assistant", "content": "hi"}
GARBAGE: dict[str, list[Any]] = {
    "no chunk at all": [],
    "no text": [{"choices": [{"index": 0, "delta": {"content": {"a": 1}}}]}],
    "choices without order": [{"choices": [{"index": 0, "delta": DELTA}, {"index": "1", "delta": DELTA}]}],
    "no message": [{"choices": [{"index": 0, "message": "hi"}]}, {"choices": [{"index": 0, "finish_reason": "stop"}]}],
    "calls without names": [{"choices": [{"index": 0, "delta": {"tool_calls": [{"index": 0, "function": [1]}]}}]}],
    "no time": [{"created": 1e300, "choices": [{"index": 0, "delta": DELTA, "finish_reason": "stop"}]}],
}


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("name", GARBAGE)
async def test_chunks_that_are_no_answer(name: str, streamed: bool) -> None:
    """What an engine sends in the wrong shape is an error of the engine's in each API, and no bug of ours.

    Prevents: an answer without choices was an internal error, with its trace in the log.
    """
    sent = b"".join(b"data: " + orjson.dumps(chunk) + b"\n\n" for chunk in GARBAGE[name]) + b"data: [DONE]\n\n"
    async with running_gateway(PlayedEngine(stream(sent))) as gateway:
        for path, body in ASKED:
            async with gateway.client.post(path, json=body | {"stream": streamed}) as answer:
                assert answer.status in {200, 502}
                await answer.read()
        assert not [record for record in gateway.bus.since(0) if isinstance(record.event, InternalError)]
        assert all(lease.released for lease in gateway.broker.leases)
