from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
import orjson
import pytest

from supervisor.errors import AdmissionError, ModelError
from tests.fakes.gateway import running_gateway
from tests.fakes.played_engine import PlayedEngine, stream, whole

DATA = Path(__file__).parents[2] / "data" / "gateway"
CHAT = (DATA / "chat.sse").read_bytes()
PATH = "/v1/messages"
SAY_HI: dict[str, Any] = {"model": "nice-name", "max_tokens": 20, "messages": [{"role": "user", "content": "Say hi"}]}


async def test_a_message_is_asked_as_a_chat() -> None:
    """The engine hears a streamed chat, and the client gets one message, with its id under Anthropic's name for it."""
    async with running_gateway(PlayedEngine(stream(CHAT, 50))) as gateway:
        async with gateway.client.post(PATH, json=SAY_HI, headers={"anthropic-version": "2023-06-01"}) as answer:
            assert answer.status == 200
            document = await answer.json()
            assert answer.headers["request-id"] == answer.headers["x-request-id"]
        assert (document["type"], document["role"], document["model"]) == ("message", "assistant", "demo")
        assert document["content"][0]["type"] == "text"
        [heard] = gateway.engine.heard
        assert (heard.path, heard.json["stream"], heard.json["max_tokens"]) == ("/v1/chat/completions", True, 20)
        assert (await gateway.finished()).outcome == "ok"


async def test_a_streamed_message() -> None:
    """The engine is asked for usage too, and the client gets Anthropic's events and nothing else."""
    async with running_gateway(PlayedEngine(stream(CHAT, 7))) as gateway:
        async with gateway.client.post(PATH, json=SAY_HI | {"stream": True}) as answer:
            assert answer.headers["Content-Type"] == "text/event-stream"
            events = (await answer.read()).split(b"\n\n")
        golden = (DATA / "anthropic" / "chat.sse").read_bytes().split(b"\n\n")
        assert [*events[:-3], *events[-2:]] == [*golden[:-3], *golden[-2:]]
        usage = orjson.loads(events[-3].split(b"data: ")[1])["usage"]
        counted = orjson.loads(golden[-3].split(b"data: ")[1])["usage"]
        assert usage.items() >= counted.items()
        # What the time went into stands beside the counts: the engine's figures, and what the lease waited for.
        timed = {"time_to_first_token_ms", "prefill_tokens_per_second", "decode_tokens_per_second"}
        assert usage.keys() - counted.keys() >= timed | {"server_queue_ms", "server_load_wait_ms", "server_load_owner"}
        assert gateway.engine.heard[0].json["stream_options"] == {"include_usage": True}
        assert not gateway.broker.leases[0].abandoned


@pytest.mark.parametrize(
    ("error", "status", "kind"),
    [
        (AdmissionError("queue_full", "full"), 529, "overloaded_error"),
        (ModelError("model_not_found", "no such"), 404, "not_found_error"),
        (AdmissionError("queue_timeout", "too long"), 503, "overloaded_error"),
    ],
)
async def test_errors_have_anthropics_form(error: Exception, status: int, kind: str) -> None:
    """A refusal reaches Anthropic's clients under the type and the status that they know."""
    async with running_gateway(PlayedEngine(stream(CHAT))) as gateway:
        gateway.broker.error = error
        async with gateway.client.post(PATH, json=SAY_HI | {"stream": True}) as answer:
            document = await answer.json()
            assert (answer.status, document["type"], document["error"]["type"]) == (status, "error", kind)
            assert document["request_id"] == answer.headers["x-request-id"]


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        (PATH, b"{", 400),
        (PATH, b'{"model": "nice-name", "messages": []}', 400),
        (PATH, b'{"model": "nobody", "messages": [{"role": "user", "content": "x"}]}', 404),
        (PATH + "/count_tokens", b'{"messages": []}', 400),
        (PATH + "/batches", b"{}", 404),
    ],
)
async def test_wrong_requests_start_nothing(path: str, body: bytes, status: int) -> None:
    """What is wrong with the request is said in Anthropic's form, and no lease is asked for."""
    async with running_gateway(PlayedEngine(stream(CHAT))) as gateway:
        async with gateway.client.post(path, data=body) as answer:
            assert (answer.status, (await answer.json())["type"]) == (status, "error")
        assert not gateway.broker.leases


@pytest.mark.parametrize("ending", ["close", "cut"])
async def test_an_engine_that_dies_ends_the_stream_with_an_error(ending: Any) -> None:
    """After the first event comes one error event, and no sign of success after it."""
    begun = b"\n\n".join(CHAT.split(b"\n\n")[:5]) + b"\n\n"
    sent = anyio.Event()
    play = stream(begun, ending=ending)
    play.before_end = sent
    async with running_gateway(PlayedEngine(play)) as gateway:
        async with gateway.client.post(PATH, json=SAY_HI | {"stream": True}) as answer:
            first = await answer.content.readuntil(b"\n\n")
            sent.set()
            events = (first + await answer.read()).split(b"\n\n")
        assert events[0].startswith(b"event: message_start")
        assert [event.split(b"\n")[0] for event in events if b"error" in event] == [b"event: error"]
        assert orjson.loads(events[-2].split(b"data: ")[1])["error"]["type"] == "api_error"
        assert b"message_stop" not in b"".join(events)
        assert (await gateway.finished()).outcome == "upstream_died"


async def test_an_error_of_the_engine_ends_the_stream() -> None:
    """An error frame of the engine's becomes Anthropic's error event."""
    sse = CHAT.split(b"data: [DONE]")[0] + b'error: {"code": 500, "message": "broke"}\n\n'
    async with running_gateway(PlayedEngine(stream(sse))) as gateway:
        async with gateway.client.post(PATH, json=SAY_HI | {"stream": True}) as answer:
            text = await answer.text()
        assert text.count("event: error") == 1
        assert "broke" in text
        assert "message_stop" not in text


async def test_who_waits_gets_pings() -> None:
    """After early_header the client hears pings, which Anthropic's libraries skip; a refusal then is an event."""
    async with running_gateway(PlayedEngine(stream(CHAT)), early_header=0.01, waiting_interval=0.01) as gateway:
        gateway.broker.hold = anyio.Event()
        gateway.broker.error = AdmissionError("queue_timeout", "too long")
        async with gateway.client.post(PATH, json=SAY_HI | {"stream": True}) as answer:
            assert await answer.content.readuntil(b"\n\n") == b'event: ping\ndata: {"type": "ping"}\n\n'
            gateway.broker.hold.set()
            *_, last = (await answer.read()).strip().split(b"\n\n")
        assert last.startswith(b"event: error\n")
        assert b"overloaded_error" in last


async def test_a_client_that_leaves_gives_its_lease_back() -> None:
    """The engine's connection is cut and the slot abandoned as soon as the client is gone."""
    async with running_gateway(PlayedEngine(stream(CHAT[: CHAT.index(b"data: [DONE]")], ending="hang"))) as gateway:
        async with gateway.client.post(PATH, json=SAY_HI | {"stream": True}) as answer:
            await answer.content.readuntil(b"\n\n")
            answer.close()
        await gateway.engine.left.wait()
        assert (await gateway.finished()).outcome == "client_left"
        assert gateway.broker.leases[0].released
        assert gateway.broker.leases[0].abandoned


async def test_tokens_are_counted_by_the_engine() -> None:
    """The engine applies its template and counts, under one lease."""
    plays = [whole(b'{"prompt": "<hi>"}', keep_alive=True), whole(b'{"tokens": [1, 2, 3]}', keep_alive=True)]
    async with running_gateway(PlayedEngine(*plays)) as gateway:
        async with gateway.client.post(PATH + "/count_tokens", json=SAY_HI) as answer:
            assert await answer.json() == {"input_tokens": 3}
        template, tokenize = gateway.engine.heard
        assert (template.path, template.json["messages"]) == ("/apply-template", SAY_HI["messages"])
        assert (tokenize.path, tokenize.json["content"]) == ("/tokenize", "<hi>")
        assert [lease.released for lease in gateway.broker.leases] == [True]


@pytest.mark.parametrize("body", [b"[]", b"no json", b'{"prompt": 3}'])
async def test_a_count_that_the_engine_does_not_give(body: bytes) -> None:
    """An engine that answers something else is told of as one that failed."""
    async with running_gateway(PlayedEngine(whole(body))) as gateway:
        async with gateway.client.post(PATH + "/count_tokens", json=SAY_HI) as answer:
            assert answer.status == 502
        assert [lease.released for lease in gateway.broker.leases] == [True]
