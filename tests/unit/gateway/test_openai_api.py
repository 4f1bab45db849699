from __future__ import annotations

import asyncio
import gzip
import io
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import orjson
import pytest

from engines.contract import Capability
from supervisor.errors import AdmissionError, InstanceError
from supervisor.events import InternalError
from supervisor.gateway.doorkeeper import Access
from supervisor.gateway.site import Site
from tests.fakes.gateway import KEY, running_gateway
from tests.fakes.played_engine import Play, PlayedEngine, stream, whole

DATA = Path(__file__).parents[2] / "data" / "gateway"
CHAT = (DATA / "chat.sse").read_bytes()
SAY_HI = {"model": "nice-name", "messages": [{"role": "user", "content": "Say hi"}]}


def _without_progress(sse: bytes) -> bytes:
    frames = [frame + b"\n\n" for frame in sse.split(b"\n\n") if frame]
    return b"".join(frame for frame in frames if b"prompt_progress" not in frame)


@pytest.mark.parametrize("size", [None, 1, 7, 100, 100_000])
async def test_a_streamed_chat_passes_byte_for_byte(size: int | None) -> None:
    """However the engine's bytes are cut, the client gets its frames unchanged, progress apart."""
    async with running_gateway(PlayedEngine(stream(CHAT, size))) as gateway:
        async with gateway.client.post("/v1/chat/completions", json=SAY_HI | {"stream": True}) as answer:
            assert answer.status == 200
            assert answer.headers["Content-Type"] == "text/event-stream"
            assert await answer.read() == _without_progress(CHAT)
        assert (await gateway.finished()).outcome == "ok"
        lease = gateway.broker.leases[0]
        assert (lease.released, lease.abandoned) == (True, False)


async def test_who_asks_for_progress_gets_it() -> None:
    """`return_progress` from the client lets the engine's reports through."""
    async with running_gateway(PlayedEngine(stream(CHAT))) as gateway:
        body = SAY_HI | {"stream": True, "return_progress": True}
        async with gateway.client.post("/v1/chat/completions", json=body) as answer:
            assert await answer.read() == CHAT


@pytest.mark.parametrize(
    ("path", "name", "body"),
    [
        ("/v1/chat/completions", "chat", SAY_HI),
        ("/v1/chat/completions", "chat_tool_call", SAY_HI | {"stream": False}),
        ("/v1/completions", "text_two_prompts", {"model": "demo", "prompt": ["a", "b"], "stream": None}),
    ],
)
async def test_an_answer_that_is_not_streamed_is_folded(path: str, name: str, body: dict[str, Any]) -> None:
    """The engine is asked for a stream all the same, and the client gets one JSON document."""
    async with running_gateway(PlayedEngine(stream((DATA / f"{name}.sse").read_bytes(), 50))) as gateway:
        async with gateway.client.post(path, json=body) as answer:
            assert answer.status == 200
            assert answer.headers["Content-Type"] == "application/json"
            folded = await answer.json()
        expected = orjson.loads((DATA / f"{name}.json").read_bytes())
        assert folded["usage"].items() >= expected["usage"].items()
        assert folded["usage"]["server_queue_ms"] == 12.0
        assert folded["usage"]["server_load_owner"] is True
        assert folded["usage"]["time_to_first_token_ms"] > 0
        assert [c["finish_reason"] for c in folded["choices"]] == [c["finish_reason"] for c in expected["choices"]]
        assert gateway.engine.heard[0].json["stream"] is True
        assert not gateway.broker.leases[0].abandoned


async def test_what_the_engine_can_not_stream_is_asked_whole() -> None:
    """A body that the engine refuses to stream is sent as it came, and its whole answer is the client's."""
    answer_body = {"object": "chat.completion", "choices": [], "model": "demo"}
    async with running_gateway(PlayedEngine(whole(orjson.dumps(answer_body)))) as gateway:
        async with gateway.client.post("/v1/chat/completions", json=SAY_HI | {"unstreamable": True}) as answer:
            assert await answer.json() == answer_body
        assert "return_progress" not in gateway.engine.heard[0].json


async def test_nonsense_asked_whole_is_a_bad_gateway() -> None:
    """An engine's answer that is no JSON object is the engine's fault, not ours: 502."""
    async with (
        running_gateway(PlayedEngine(whole(b"oops"))) as gateway,
        gateway.client.post("/v1/chat/completions", json=SAY_HI | {"unstreamable": True}) as answer,
    ):
        assert answer.status == 502


async def test_a_requests_keep_alive_goes_with_its_lease() -> None:
    """What a request says of the time after it reaches the broker, not the engine."""
    async with running_gateway(PlayedEngine(stream(CHAT))) as gateway:
        async with gateway.client.post("/v1/chat/completions", json=SAY_HI | {"keep_alive": "5m"}) as answer:
            assert answer.status == 200
        assert gateway.broker.leases[0].request.keep_alive == 300.0
        assert "keep_alive" not in gateway.engine.heard[0].json


async def test_embeddings_pass_as_they_are() -> None:
    """Nothing is read or changed in an embedding; the next one may go over the same connection."""
    body = b'{"object":"list","data":[{"embedding":[0.1]}],"model":"demo"}'
    async with running_gateway(PlayedEngine(whole(body, keep_alive=True))) as gateway:
        for _ in range(2):
            async with gateway.client.post("/v1/embeddings", json={"model": "demo", "input": "hi"}) as answer:
                assert await answer.read() == body
        assert gateway.router.asked[0] == ("demo", Capability.EMBEDDINGS)
        assert gateway.engine.connections == 1
        assert gateway.engine.heard[0].headers["connection"] == "keep-alive"
        assert "stream" not in gateway.engine.heard[0].json
        assert not gateway.broker.leases[0].abandoned


@pytest.mark.parametrize("at_once", [False, True])
async def test_a_streams_connection_is_not_used_again(at_once: bool) -> None:
    """Prevents: llama-server closes after a stream though it announces keep-alive, so reuse races with its close."""
    play = replace(stream(CHAT), at_once=at_once, stays_open=True)
    async with running_gateway(PlayedEngine(play)) as gateway:
        for number in range(1, 11):
            async with gateway.client.post("/v1/chat/completions", json=SAY_HI) as answer:
                assert answer.status == 200
            assert gateway.engine.connections == number


async def test_only_what_an_engine_needs_is_sent_to_it() -> None:
    """The model's id, the engine's key; neither the client's token nor its cookies nor its name for the model."""
    headers = {"Authorization": "Bearer client-secret", "Cookie": "a=b", "X-Api-Key": "k", "Origin": "http://page"}
    access = Access(Site(origins=frozenset({"http://page"})))
    async with running_gateway(PlayedEngine(stream(CHAT)), access=access) as gateway:
        async with gateway.client.post("/v1/chat/completions", json=SAY_HI, headers=headers) as answer:
            await answer.read()
        heard = gateway.engine.heard[0]
        assert heard.json["model"] == "demo"
        assert heard.headers["authorization"] == f"Bearer {KEY}"
        assert heard.headers["accept-encoding"] == "identity"
        assert not {"cookie", "x-api-key", "origin"} & set(heard.headers)


async def test_headers_say_who_served_and_what_the_wait_was_for() -> None:
    """Instance, queue and load times, request id; nothing of the engine's own headers."""
    async with running_gateway(PlayedEngine(stream(CHAT))) as gateway:
        launch = gateway.broker.launch
        launch.plan = replace(launch.plan, degraded=("slots", "ctx_size"))
        for body in (SAY_HI, SAY_HI | {"stream": True}):
            async with gateway.client.post(
                "/v1/chat/completions", json=body, headers={"x-request-id": "my-id.1"}
            ) as answer:
                await answer.read()
            assert answer.headers["x-request-id"] == "my-id.1"
            assert answer.headers["x-enginehouse-instance"] == "demo-1"
            assert answer.headers["x-enginehouse-queue-ms"] == "12"
            assert answer.headers["x-enginehouse-load-ms"] == "500"
            assert answer.headers["x-enginehouse-degraded"] == "slots,ctx_size"
            assert answer.headers["Server"] == "enginehouse"
            assert "Access-Control-Allow-Origin" not in answer.headers


@pytest.mark.parametrize("asked", ["", "a" * 129, "two words", "ä", "a/b"])
async def test_an_odd_request_id_is_replaced(asked: str) -> None:
    """Ids go into logs and headers: only harmless ones are kept."""
    async with (
        running_gateway(PlayedEngine(stream(CHAT))) as gateway,
        gateway.client.get("/v1/models", headers={"x-request-id": asked}) as answer,
    ):
        assert answer.headers["x-request-id"].startswith("req-")


async def test_the_end_is_told_as_an_event() -> None:
    """One event per request, with the model's id, the caller and both times."""
    async with running_gateway(PlayedEngine(stream(CHAT))) as gateway:
        async with gateway.client.post("/v1/chat/completions", json=SAY_HI | {"stream": True}) as answer:
            await answer.read()
        event = await gateway.finished()
        assert (event.method, event.path, event.model) == ("POST", "/v1/chat/completions", "demo")
        assert (event.caller, event.status, event.outcome) == ("127.0.0.1", 200, "ok")
        assert event.first_byte_seconds is not None
        assert 0 < event.first_byte_seconds <= event.seconds


@pytest.mark.parametrize(
    ("path", "body", "status", "code", "said"),
    [
        ("/v1/chat/completions", b'{"model": "demo",', 400, "invalid_json", "column 18"),
        ("/v1/chat/completions", b"", 400, "invalid_json", "not valid JSON"),
        ("/v1/chat/completions", b'{"a":"\xff"}', 400, "invalid_json", "not valid JSON"),
        ("/v1/chat/completions", b"[1]", 400, "invalid_request", "not a list"),
        ("/v1/chat/completions", b"{}", 400, "model_missing", "/v1/models"),
        ("/v1/chat/completions", b'{"model": 4}', 400, "model_missing", "/v1/models"),
        (
            "/v1/chat/completions",
            b'{"model": "demmo", "messages": [{"role": "user"}]}',
            404,
            "model_not_found",
            "'demo'",
        ),
        ("/v1/chat/completions", b'{"model": "demo"}', 400, "invalid_request", "messages"),
        ("/v1/chat/completions", b'{"model": "demo", "messages": []}', 400, "invalid_request", "messages"),
        ("/v1/chat/completions", b'{"model": "demo", "messages": ["a"]}', 400, "invalid_request", "messages[0]"),
        ("/v1/chat/completions", b'{"model": "demo", "stream": "yes"}', 400, "invalid_request", "stream"),
        ("/v1/completions", b'{"model": "demo"}', 400, "invalid_request", "prompt"),
        ("/v1/embeddings", b'{"model": "demo", "input": 4}', 400, "invalid_request", "a number"),
    ],
)
async def test_a_wrong_body_is_refused_before_anything_starts(
    path: str, body: bytes, status: int, code: str, said: str
) -> None:
    """Each mistake has its code, and a sentence that says where; no lease is asked for."""
    async with running_gateway(PlayedEngine(stream(CHAT))) as gateway:
        async with gateway.client.post(path, data=body) as answer:
            assert answer.status == status
            error = (await answer.json())["error"]
        assert error["code"] == code
        assert said in error["message"]
        assert not gateway.broker.asked.is_set()
        assert (await gateway.finished()).outcome == "error"


@pytest.mark.parametrize("packed", [False, True])
async def test_a_body_over_the_limit_is_refused(packed: bool) -> None:
    """The limit holds for the size after decompression: a small gzip can't blow up inside."""
    body = orjson.dumps(SAY_HI | {"pad": "x" * 200_000})
    headers = {"Content-Encoding": "gzip"} if packed else {}
    sent = gzip.compress(body) if packed else body
    assert len(sent) < 100_000 or not packed
    async with running_gateway(PlayedEngine(stream(CHAT)), body_limit=100_000) as gateway:
        async with gateway.client.post("/v1/chat/completions", data=sent, headers=headers) as answer:
            assert answer.status == 413
            error = (await answer.json())["error"]
        assert error["code"] == "body_too_large"
        assert "97.7 KiB" in error["message"]


async def test_a_packed_body_is_read() -> None:
    """Clients may send gzip; one that is damaged is refused."""
    async with running_gateway(PlayedEngine(stream(CHAT))) as gateway:
        packed = gzip.compress(orjson.dumps(SAY_HI))
        for data, status in ((packed, 200), (packed[:12] + b"xxxxxx" + packed[18:], 400)):
            async with gateway.client.post(
                "/v1/chat/completions", data=data, headers={"Content-Encoding": "gzip"}
            ) as answer:
                assert answer.status == status


async def test_a_large_body_is_passed_on() -> None:
    """Megabytes are parsed and encoded off the loop, and arrive whole."""
    body = {"model": "demo", "messages": [{"role": "user", "content": "word " * 600_000}]}
    async with running_gateway(PlayedEngine(stream(CHAT))) as gateway:
        sent = io.BytesIO(orjson.dumps(body))
        async with gateway.client.post("/v1/chat/completions", data=sent) as answer:
            assert answer.status == 200
        assert gateway.engine.heard[0].json["messages"] == body["messages"]


async def test_a_denial_before_the_first_byte_is_an_http_error() -> None:
    """A full queue is 429 with Retry-After, for a streamed request too."""
    async with running_gateway(PlayedEngine(stream(CHAT))) as gateway:
        gateway.broker.error = AdmissionError("queue_full", "64 requests wait", retry_after=3.0)
        async with gateway.client.post("/v1/chat/completions", json=SAY_HI | {"stream": True}) as answer:
            assert (answer.status, answer.headers["Retry-After"]) == (429, "3")
            assert (await answer.json())["error"]["type"] == "rate_limit_error"
        assert (await gateway.finished()).outcome == "error"


async def test_a_bug_is_told_to_the_log_and_not_to_the_client() -> None:
    """An exception that nobody expected gives 500 with the request's id; its text and trace go into an event."""
    async with running_gateway(PlayedEngine(stream(CHAT))) as gateway:
        gateway.broker.error = RuntimeError("secret detail")
        async with gateway.client.post("/v1/chat/completions", json=SAY_HI | {"stream": True}) as answer:
            assert answer.status == 500
            text = await answer.text()
        assert "secret" not in text
        assert answer.headers["x-request-id"] in text
        event = await gateway.heard(InternalError)
        assert event.error == "RuntimeError: secret detail"
        assert "Traceback" in event.traceback


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/nothing", 404, "not_found"),
        ("GET", "/v1/chat/completions", 405, "method_not_allowed"),
        ("OPTIONS", "/v1/chat/completions", 405, "method_not_allowed"),
        ("DELETE", "/v1/models/demo", 405, "method_not_allowed"),
    ],
)
async def test_wrong_addresses_are_refused_in_the_apis_form(method: str, path: str, status: int, code: str) -> None:
    """404 and 405 are JSON errors like all others; 405 says what is allowed."""
    async with running_gateway(PlayedEngine(stream(CHAT))) as gateway:
        async with gateway.client.request(method, path) as answer:
            assert answer.status == status
            assert (await answer.json())["error"]["code"] == code
            assert ("Allow" in answer.headers) == (status == 405)
        async with gateway.client.head(path if status == 404 else "/v1/models") as answer:
            assert answer.status == (404 if status == 404 else 200)


async def test_a_long_wait_is_told_and_its_denial_is_an_event() -> None:
    """After `early_header` a stream begins with comments; a denial then arrives as an error event, without [DONE]."""
    async with running_gateway(PlayedEngine(stream(CHAT)), early_header=0.0, waiting_interval=0.01) as gateway:
        hold = gateway.broker.hold = anyio.Event()
        gateway.broker.error = InstanceError("start_failed", "the engine did not start")
        async with gateway.client.post("/v1/chat/completions", json=SAY_HI | {"stream": True}) as answer:
            assert answer.status == 200
            assert await answer.content.readline() == b": waiting\n"
            hold.set()
            rest = await answer.read()
        last = [line for line in rest.split(b"\n") if line.startswith(b"data:")]
        assert len(last) == 1
        assert orjson.loads(last[0][6:])["error"]["code"] == "start_failed"


async def test_a_wait_that_ends_well_goes_on_as_a_stream() -> None:
    """Comments, the last of which say what came too late to be a header, then the answer; SDKs skip the comments."""
    async with running_gateway(PlayedEngine(stream(CHAT)), early_header=0.0, waiting_interval=0.01) as gateway:
        hold = gateway.broker.hold = anyio.Event()
        async with gateway.client.post("/v1/chat/completions", json=SAY_HI | {"stream": True}) as answer:
            assert await answer.content.readline() == b": waiting\n"
            hold.set()
            rest = await answer.read()
        late, _, said = rest.removeprefix(b"\n").replace(b": waiting\n\n", b"").partition(b"\n\n")
        assert b": x-enginehouse-instance: demo-1" in late.split(b"\n")
        assert all(line.startswith(b": x-enginehouse-") for line in late.split(b"\n"))
        assert said == _without_progress(CHAT)


async def test_nothing_is_sent_before_the_wait_is_long() -> None:
    """No header leaves before the lease: the status is still open."""
    async with running_gateway(PlayedEngine(stream(CHAT))) as gateway:
        hold = gateway.broker.hold = anyio.Event()
        gateway.broker.error = AdmissionError("queue_timeout", "waited")
        reader, writer = await asyncio.open_connection("127.0.0.1", int(gateway.url.rsplit(":", 1)[1]))
        body = orjson.dumps(SAY_HI | {"stream": True})
        writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        await gateway.broker.asked.wait()
        hold.set()
        assert (await reader.readline()).startswith(b"HTTP/1.1 503")
        writer.close()
        await writer.wait_closed()


async def test_a_brief_answer_is_asked_for_whole() -> None:
    """And told as the engine told it, with its figures; the next goes over the same connection."""
    brief = SAY_HI | {"wholly": True, "max_tokens": 4}
    said = {"object": "chat.completion", "choices": [{"index": 0}], "timings": {"prompt_n": 3, "cache_n": 1}}
    async with running_gateway(PlayedEngine(whole(orjson.dumps(said), keep_alive=True))) as gateway:
        for _ in range(2):
            async with gateway.client.post("/v1/chat/completions", json=brief) as answer:
                assert (await answer.json())["choices"] == said["choices"]
        assert gateway.engine.heard[0].json["whole"] is True
        assert "stream" not in gateway.engine.heard[0].json
        assert gateway.engine.connections == 1
        assert (await gateway.finished()).prompt_tokens == 4


@pytest.mark.parametrize(("words", "reports"), [("Say hi", False), ("Say hi " * 200, True)])
async def test_a_short_prompt_is_streamed_without_reports(words: str, *, reports: bool) -> None:
    """What it had of the prompt is told at the end; the client gets the stream as ever."""
    async with running_gateway(PlayedEngine(stream(CHAT))) as gateway:
        body = SAY_HI | {"stream": True, "messages": [{"role": "user", "content": words}]}
        async with gateway.client.post("/v1/chat/completions", json=body) as answer:
            assert await answer.read() == _without_progress(CHAT)
        assert gateway.engine.heard[0].json["return_progress"] is reports


async def test_a_connection_that_was_closed_meanwhile_costs_no_request() -> None:
    """Prevents: an idle connection that the engine had just closed made the next request fail with 502."""
    body = b'{"object":"list","data":[],"model":"demo"}'
    closes = Play([], headers=False, ending="cut")
    plays = (whole(body, keep_alive=True), closes, whole(body, keep_alive=True))
    async with running_gateway(PlayedEngine(*plays)) as gateway:
        for _ in range(2):
            async with gateway.client.post("/v1/embeddings", json={"model": "demo", "input": "hi"}) as answer:
                assert answer.status == 200
        assert gateway.engine.connections == 2
        assert len(gateway.engine.heard) == 3
        assert not any(lease.abandoned for lease in gateway.broker.leases)
