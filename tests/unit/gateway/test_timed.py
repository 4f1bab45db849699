from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import pytest

from supervisor.gateway.translate.passing import PassThrough
from supervisor.gateway.translate.sse import SseSplitter, data_of
from supervisor.gateway.translate.timed import Timed
from tests.fakes.gateway import running_gateway
from tests.fakes.played_engine import PlayedEngine, stream

DATA = Path(__file__).parents[2] / "data" / "gateway"


def _timing(timings: Any) -> dict[str, Any]:
    return {"time_to_first_token_ms": timings["prompt_ms"]} if timings else {}


def _timed() -> Timed:
    return Timed(PassThrough(lambda _data: False, keep_progress=False, side_by_side=False), _timing)


@pytest.mark.parametrize("name", ["chat", "text"])
def test_only_the_usage_is_added_to(name: str) -> None:
    """Every other frame of a recorded stream passes byte for byte, and the counts stay as they are."""
    frames = SseSplitter().feed((DATA / f"{name}.sse").read_bytes())
    given = [(frame, _timed().pick([frame])) for frame in frames]
    changed = [(before, after) for before, after in given if before != after]
    assert len(changed) == 1
    [(before, after)] = changed
    old, new = (orjson.loads(data_of(frame) or b"") for frame in (before, after))
    timed = new["usage"].pop("time_to_first_token_ms")
    assert timed == old["timings"]["prompt_ms"]
    assert new == old


@pytest.mark.parametrize(
    "frame",
    [
        b'data: {"choices":[{"delta":{"content":"\\"usage\\":{"}}]}\n\n',
        b'data: {"usage":{"a":\n\n',
        b'data: {"usage":null,"x":{"usage":{}}}\n\n',
        b'data: [{"usage":{}}]\n\n',
        b': "usage":{}\n\n',
    ],
)
def test_what_is_no_usage_passes_as_it_is(frame: bytes) -> None:
    """A text about usage, one inside something else, and what can't be read."""
    picker = _timed()
    picker.pick([b'data: {"choices":[{"delta":{"content":"x"}}]}\n\n'])
    assert picker.pick([frame]) == frame


async def test_streams_of_both_kinds_have_their_timings() -> None:
    """A chat that asks for usage, with and without tools, and a text completion; one that does not ask gets none."""
    tool = {"type": "function", "function": {"name": "f"}}
    chat: dict[str, Any] = {"model": "demo", "messages": [{"role": "user", "content": "x"}], "stream": True}
    with_usage = chat | {"stream_options": {"include_usage": True}}
    plays = [stream((DATA / f"{name}.sse").read_bytes()) for name in ("chat", "chat", "text", "chat")]
    async with running_gateway(PlayedEngine(*plays)) as gateway:

        async def usage(path: str, body: dict[str, Any]) -> list[dict[str, Any]]:
            async with gateway.client.post(path, json=body) as answer:
                frames = SseSplitter().feed(await answer.read())
            documents = [orjson.loads(data) for frame in frames if (data := data_of(frame)) not in {None, b"[DONE]"}]
            return [document["usage"] for document in documents if document.get("usage")]

        path = "/v1/chat/completions"
        [plain], [tools] = await usage(path, with_usage), await usage(path, with_usage | {"tools": [tool]})
        [text] = await usage("/v1/completions", {"model": "demo", "prompt": "x", "stream": True})
        [unasked] = await usage(path, chat)
    for found in (plain, tools, text):
        assert found["time_to_first_token_ms"] > 0
        assert found["prefill_tokens_per_second"] > 0
        assert found["decode_tokens_per_second"] > 0
        assert (found["server_queue_ms"], found["server_load_wait_ms"]) == (12.0, 500.0)
        assert found["server_load_owner"] is True
    assert "server_queue_ms" not in unasked
