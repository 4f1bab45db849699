from __future__ import annotations

import asyncio
from pathlib import Path

import anyio
import orjson
import pytest

from engines.contract import Endpoint
from supervisor.gateway.request_limits import RequestLimits
from tests.fakes.gateway import running_gateway
from tests.fakes.played_engine import Play, PlayedEngine, stream, whole

DATA = Path(__file__).parents[2] / "data" / "gateway"
FRAMES = [frame + b"\n\n" for frame in (DATA / "chat.sse").read_bytes().split(b"\n\n") if frame]
PROGRESS, CONTENT, DONE = FRAMES[:2], FRAMES[2:-1], FRAMES[-1]
SAY_HI = {"model": "demo", "messages": [{"role": "user", "content": "Say hi"}]}
ERROR = b'data: {"error":{"code":500,"message":"Compute error.","type":"server_error"}}\n\n'
QUICK = RequestLimits(first_base=0.5, first_cap=0.5, idle=0.5, verdict=0.1)
BOTH = pytest.mark.parametrize("streamed", [False, True])

# How an engine can end an answer that is not complete, after the given frames.
ENDS = {
    "closes properly, without [DONE]": lambda frames: stream(b"".join(frames)),
    "cuts the connection": lambda frames: stream(b"".join(frames), ending="cut"),
    "cuts the connection within a frame": lambda frames: Play([*frames, CONTENT[1][:20]], ending="cut"),
    "says an error": lambda frames: stream(b"".join([*frames, ERROR])),
}
EACH_END = pytest.mark.parametrize("end", ENDS)


@BOTH
@EACH_END
async def test_an_engine_that_dies_before_content_gives_502(end: str, streamed: bool) -> None:
    """As long as no byte has reached the client the status tells it, and progress reports are no such byte."""
    async with running_gateway(PlayedEngine(ENDS[end](PROGRESS))) as gateway:
        async with gateway.client.post("/v1/chat/completions", json=SAY_HI | {"stream": streamed}) as answer:
            assert answer.status == 502
            assert answer.headers["Retry-After"] == "1"
            assert (await answer.json())["error"]["code"] == "upstream_died"
        assert (await gateway.finished()).outcome == "upstream_died"
        assert gateway.broker.leases[0].abandoned


@EACH_END
async def test_an_engine_that_dies_within_its_answer_ends_the_stream_with_an_error(end: str) -> None:
    """What had come arrives in whole frames, then one error event, then the end; never [DONE]."""
    play = ENDS[end](FRAMES[:4])
    play.before_end = anyio.Event()
    async with running_gateway(PlayedEngine(play)) as gateway:
        async with gateway.client.post("/v1/chat/completions", json=SAY_HI | {"stream": True}) as answer:
            assert answer.status == 200
            got = await answer.content.readuntil(FRAMES[3])
            play.before_end.set()
            got += await answer.read()
        assert got.startswith(b"".join(FRAMES[2:4]))
        last = got.removeprefix(b"".join(FRAMES[2:4]))
        assert last.count(b"\n\n") == 1
        error = orjson.loads(last.removeprefix(b"data: "))["error"]
        assert error["code"] == "upstream_died"
        assert {"message", "type", "code"} <= error.keys()
        event = await gateway.finished()
        assert (event.outcome, event.status) == ("upstream_died", 200)
        assert gateway.broker.leases[0].abandoned


async def test_an_engine_that_dies_within_a_folded_answer_gives_502() -> None:
    """A client that asked for no stream gets no half answer."""
    async with (
        running_gateway(PlayedEngine(stream(b"".join(FRAMES[:4]), ending="cut"))) as gateway,
        gateway.client.post("/v1/chat/completions", json=SAY_HI) as answer,
    ):
        assert answer.status == 502


@BOTH
async def test_the_engines_own_refusal_passes(streamed: bool) -> None:
    """A prompt that is too long is 400 in OpenAI's form, under the code that OpenAI's clients look for."""
    refusal = whole((DATA / "context_exceeded.json").read_bytes(), status=400)
    async with running_gateway(PlayedEngine(refusal)) as gateway:
        async with gateway.client.post("/v1/chat/completions", json=SAY_HI | {"stream": streamed}) as answer:
            assert answer.status == 400
            error = (await answer.json())["error"]
        assert error["code"] == "context_length_exceeded"
        assert error["message"].startswith("request (3010 tokens) exceeds")
        assert (error["n_prompt_tokens"], error["n_ctx"]) == (3010, 2048)
        assert (await gateway.finished()).outcome == "error"
        assert not gateway.broker.leases[0].abandoned


@pytest.mark.parametrize(
    ("body", "status", "seen", "message"),
    [
        (b'{"error":{"code":500,"message":"no mmproj","type":"server_error"}}', 500, 500, "no mmproj"),
        (b'{"error":"just text"}', 422, 422, "just text"),
        (b"<html>", 500, 500, "demo"),
        (b"", 404, 404, "demo"),
        (b"[1]", 400, 400, "demo"),
        (b'{"error":{"message":"Invalid API Key"}}', 401, 502, "key"),
        (b"", 302, 502, "demo"),
    ],
)
async def test_a_strange_refusal_is_still_a_proper_error(body: bytes, status: int, seen: int, message: str) -> None:
    """Whatever an engine answers instead of 200, the client gets an error in OpenAI's form."""
    async with (
        running_gateway(PlayedEngine(whole(body, status=status))) as gateway,
        gateway.client.post("/v1/chat/completions", json=SAY_HI) as answer,
    ):
        assert answer.status == seen
        assert message in (await answer.json())["error"]["message"]


async def test_an_error_in_the_stream_that_is_the_clients_fault_keeps_its_status() -> None:
    """Some builds notice a bad request only after their 200: before the first byte its code still counts."""
    error = b'data: {"error":{"code":400,"message":"bad","type":"invalid_request_error"}}\n\n'
    async with (
        running_gateway(PlayedEngine(stream(PROGRESS[0] + error))) as gateway,
        gateway.client.post("/v1/chat/completions", json=SAY_HI | {"stream": True}) as answer,
    ):
        assert answer.status == 400
        assert (await answer.json())["error"]["message"] == "bad"


@BOTH
@pytest.mark.parametrize("frames", [[], PROGRESS, [*PROGRESS, *CONTENT[:2]]])
async def test_an_engine_that_falls_silent_is_given_up(frames: list[bytes], streamed: bool) -> None:
    """After its time without a byte: 504 with the setting, or the error event where the answer had begun."""
    began = len(frames) > 2
    play = stream(b"".join(frames), ending="hang")
    async with running_gateway(PlayedEngine(play), watchdogs=lambda: QUICK) as gateway:
        async with gateway.client.post("/v1/chat/completions", json=SAY_HI | {"stream": streamed}) as answer:
            assert answer.status == (200 if began and streamed else 504)
            said = await answer.read()
            assert b"upstream_timeout" in said
            assert (b"supervision.request.idle" if began else b"first_base") in said
        lease = gateway.broker.leases[0]
        assert lease.abandoned
        assert lease.looks == [0.5]
        assert len(lease.heard) >= len(frames) // 4
        with anyio.fail_after(5):
            await gateway.engine.left.wait()


async def test_progress_keeps_a_slow_engine_alive() -> None:
    """The idle limit is for silence: a prefill that reports is never cut."""
    pauses = {number: anyio.Event() for number in range(1, 5)}
    chunks = [PROGRESS[0]] * 5 + [*CONTENT, DONE]
    engine = PlayedEngine(Play(chunks, pauses=pauses))
    async with (
        running_gateway(engine, watchdogs=lambda: RequestLimits(first_base=1.0)) as gateway,
        anyio.create_task_group() as tasks,
    ):

        async def let_go() -> None:
            for gate in pauses.values():
                await anyio.sleep(0.3)  # the time itself is the subject: together longer than the limit
                gate.set()

        tasks.start_soon(let_go)
        async with gateway.client.post("/v1/chat/completions", json=SAY_HI | {"stream": True}) as answer:
            assert await answer.read() == b"".join([*CONTENT, DONE])


async def test_an_engine_that_is_not_there_gives_502() -> None:
    """Nothing was started in it, so its slot is not abandoned either."""
    async with running_gateway(PlayedEngine(stream(b""))) as gateway:
        gateway.broker.launch.endpoint = Endpoint(Path("/nowhere/e.sock"))
        async with gateway.client.post("/v1/chat/completions", json=SAY_HI) as answer:
            assert answer.status == 502
            assert (await answer.json())["error"]["code"] == "upstream_unreachable"
        assert not gateway.broker.leases[0].abandoned


@pytest.mark.parametrize("data", [b"data: nonsense\n\n", b"data: [1]\n\n", b'data: {"choices":[4]}\n\n'])
async def test_an_answer_that_can_not_be_folded_gives_502(data: bytes) -> None:
    """Nonsense from an engine is its fault, not ours."""
    async with (
        running_gateway(PlayedEngine(stream(data + DONE))) as gateway,
        gateway.client.post("/v1/chat/completions", json=SAY_HI) as answer,
    ):
        assert answer.status == 502
        assert (await answer.json())["error"]["code"] == "upstream_died"


async def test_an_engine_that_is_cut_before_its_header_is_asked_on_the_next_launch() -> None:
    """A dying engine may still take a connection: nothing was answered, so a fresh launch is asked.

    Prevents that a killed process, whose sockets are closed one by one, turned into a 502.
    """
    dying = Play(ending="cut", headers=False)
    async with running_gateway(PlayedEngine(dying, stream(b"".join(FRAMES)))) as gateway:
        gateway.broker.breaks = True
        async with gateway.client.post("/v1/chat/completions", json=SAY_HI) as answer:
            assert answer.status == 200
        assert len(gateway.engine.heard) == 2
        assert len(gateway.broker.leases) == 2


@BOTH
@pytest.mark.parametrize("frames", [[], PROGRESS], ids=["header", "progress"])
async def test_an_engine_that_dies_before_content_is_asked_on_the_next_launch(
    frames: list[bytes], streamed: bool
) -> None:
    """Header and progress prove nothing: the launch is gone, so the next one answers, and the client sees one answer.

    Prevents the 502 that a request got whose engine had only sent its header.
    """
    dying = stream(b"".join(frames), ending="cut")
    async with running_gateway(PlayedEngine(dying, stream(b"".join(FRAMES)))) as gateway:
        gateway.broker.breaks = True
        async with gateway.client.post("/v1/chat/completions", json=SAY_HI | {"stream": streamed}) as answer:
            assert answer.status == 200
            if streamed:
                assert await answer.read() == b"".join([*CONTENT, DONE])
        assert len(gateway.broker.leases) == 2
        assert all(lease.released for lease in gateway.broker.leases)
        assert (await gateway.finished()).outcome == "ok"


@BOTH
async def test_after_the_first_content_nothing_is_asked_again(streamed: bool) -> None:
    """A client must not get an answer that begins twice."""
    async with running_gateway(PlayedEngine(stream(b"".join(FRAMES[:4]), ending="cut"))) as gateway:
        gateway.broker.breaks = True
        async with gateway.client.post("/v1/chat/completions", json=SAY_HI | {"stream": streamed}) as answer:
            assert b"upstream_died" in await answer.read()
        assert len(gateway.broker.leases) == 1


@BOTH
async def test_a_body_that_was_there_at_two_crashes_is_refused(streamed: bool) -> None:
    """The second crash ends it with 422, and from then on the engine does not hear of it."""
    dying = stream(b"".join(PROGRESS), ending="cut")
    async with running_gateway(PlayedEngine(dying)) as gateway:
        gateway.broker.breaks = True
        for _ in range(2):
            async with gateway.client.post("/v1/chat/completions", json=SAY_HI | {"stream": streamed}) as answer:
                assert answer.status == 422
                error = (await answer.json())["error"]
                assert error["code"] == "request_crashes_engine"
                assert "x-should-retry" not in answer.headers
        assert len(gateway.engine.heard) == 2


async def test_a_client_that_already_reads_progress_is_told_by_an_event() -> None:
    """Its status is out with the progress reports: the refusal is an error event, and no [DONE] follows."""
    asked = SAY_HI | {"stream": True, "return_progress": True}
    async with running_gateway(PlayedEngine(stream(b"".join(PROGRESS), ending="cut"))) as gateway:
        gateway.broker.breaks = True
        async with gateway.client.post("/v1/chat/completions", json=asked) as answer:
            assert answer.status == 200
            said = await answer.read()
        assert said.startswith(b"".join(PROGRESS))
        assert b"request_crashes_engine" in said
        assert b"[DONE]" not in said


async def test_calls_beyond_the_gate_wait_before_the_engine() -> None:
    """An engine never has more calls at once than its gate lets through: the next one waits for one that ends."""
    hold = anyio.Event()
    engine = PlayedEngine(Play([*PROGRESS, *CONTENT, DONE], pauses={0: hold}))
    async with running_gateway(engine) as gateway, anyio.create_task_group() as tasks:
        launch = gateway.broker.launch
        launch.calls = asyncio.Semaphore(2)

        async def ask() -> None:
            async with gateway.client.post("/v1/chat/completions", json=SAY_HI) as answer:
                assert answer.status == 200

        for _ in range(3):
            tasks.start_soon(ask)
        while len(engine.heard) < 2 or len(gateway.broker.leases) < 3:  # noqa: ASYNC110  neither tells of it
            await anyio.sleep(0.01)
        assert launch.calls.locked()
        assert len(engine.heard) == 2
        hold.set()
    assert len(engine.heard) == 3
