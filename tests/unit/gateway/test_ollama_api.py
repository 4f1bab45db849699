from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import orjson
import pytest

from supervisor.errors import AdmissionError
from supervisor.gateway.ports import ModelCard
from tests.fakes.gateway import running_gateway
from tests.fakes.played_engine import PlayedEngine, stream, whole

DATA = Path(__file__).parents[2] / "data" / "gateway"
CHAT = (DATA / "chat.sse").read_bytes()
SAY_HI: dict[str, Any] = {"model": "nice-name", "messages": [{"role": "user", "content": "Say hi"}]}
CARD = ModelCard(
    "demo",
    1_700_000_000,
    ("chat", "embeddings"),
    "stopped",
    aliases=("nice-name",),
    context_length=2048,
    file_bytes=100,
    architecture="llama",
    parameter_count=135_000_000,
    quantization="Q4_1",
)


async def test_a_chat_streams_lines_unless_told() -> None:
    """Lines of JSON, the last one done; the name may carry a tag, and the model stays as long as the request says."""
    async with running_gateway(PlayedEngine(stream(CHAT, 7))) as gateway:
        body = SAY_HI | {"model": "demo:latest", "keep_alive": -1}
        async with gateway.client.post("/api/chat", json=body) as answer:
            assert answer.headers["Content-Type"] == "application/x-ndjson"
            lines = [orjson.loads(line) for line in (await answer.read()).splitlines()]
        assert [line["done"] for line in lines][-2:] == [False, True]
        assert {line["model"] for line in lines} == {"demo"}
        assert gateway.broker.leases[0].request.keep_alive == math.inf
        assert "keep_alive" not in gateway.engine.heard[0].json


@pytest.mark.parametrize(
    ("path", "body", "heard"),
    [
        ("/api/chat", SAY_HI, "/v1/chat/completions"),
        ("/api/generate", {"model": "demo", "prompt": "hi"}, "/v1/chat/completions"),
        ("/api/generate", {"model": "demo", "prompt": "hi", "raw": True}, "/v1/completions"),
    ],
)
async def test_a_whole_answer(path: str, body: dict[str, Any], heard: str) -> None:
    """With `stream: false` one document, in the place where each path has it."""
    recorded = DATA / ("text.sse" if heard == "/v1/completions" else "chat.sse")
    async with running_gateway(PlayedEngine(stream(recorded.read_bytes()))) as gateway:
        async with gateway.client.post(path, json=body | {"stream": False}) as answer:
            document = await answer.json()
        assert document["done"] is True
        assert document["message"]["content"] if path == "/api/chat" else document["response"]
        assert gateway.engine.heard[0].path == heard


async def test_vectors() -> None:
    """Both forms of asking for vectors, in Ollama's shapes."""
    vectors = b'{"model": "demo", "data": [{"embedding": [1, 0]}], "usage": {"prompt_tokens": 3}}'
    async with running_gateway(PlayedEngine(whole(vectors, keep_alive=True))) as gateway:
        async with gateway.client.post("/api/embed", json={"model": "demo", "input": ["a"]}) as answer:
            document = await answer.json()
        assert (document["embeddings"], document["prompt_eval_count"]) == ([[1, 0]], 3)
        async with gateway.client.post("/api/embeddings", json={"model": "demo", "prompt": "a"}) as answer:
            assert await answer.json() == {"embedding": [1, 0]}


@pytest.mark.parametrize("body", [b"no json", b"{}", b'{"data": []}', b'{"data": [{}]}'])
async def test_vectors_that_the_engine_does_not_give(body: bytes) -> None:
    """An engine that answers something else is told of as one that failed."""
    async with (
        running_gateway(PlayedEngine(whole(body))) as gateway,
        gateway.client.post("/api/embed", json={"model": "demo", "input": "a"}) as answer,
    ):
        assert (answer.status, list(await answer.json())) == (502, ["error"])


@pytest.mark.parametrize(
    ("keep_alive", "state", "leases", "reason"),
    [("5m", "stopped", 1, "load"), (0, "ready", 1, "unload"), (0, "stopped", 0, "unload")],
)
async def test_nothing_asked_loads_or_unloads(keep_alive: Any, state: str, leases: int, reason: str) -> None:
    """An empty prompt loads; with `keep_alive: 0` it unloads, and never starts an engine for that."""
    async with running_gateway(PlayedEngine(stream(b""))) as gateway:
        gateway.cards.append(replace(CARD, state=state))
        body = {"model": "nice-name:latest", "keep_alive": keep_alive}
        async with gateway.client.post("/api/generate", json=body) as answer:
            document = await answer.json()
        assert (document["done_reason"], document["response"]) == (reason, "")
        assert len(gateway.broker.leases) == leases
        assert not gateway.engine.heard


async def test_listings() -> None:
    """Tags, one model's facts with what a request may use, and what runs with its bytes."""
    async with running_gateway(PlayedEngine(stream(b""))) as gateway:
        gateway.cards += [CARD, ModelCard("cut", 1, (), "stopped", broken="the file ends early")]
        gateway.cards.append(ModelCard("paint", 1, ("images",), "stopped"))  # nothing here could ask for a picture
        async with gateway.client.get("/api/tags") as answer:
            [row] = (await answer.json())["models"]
        assert (row["name"], row["size"], row["modified_at"]) == ("demo:latest", 100, "2023-11-14T22:13:20Z")
        assert row["details"]["parameter_size"] == "135.0M"
        async with gateway.client.post("/api/show", json={"model": "demo:latest"}) as answer:
            shown = await answer.json()
        assert shown["model_info"]["llama.context_length"] == 2048
        assert shown["capabilities"] == ["completion", "tools", "embedding"]
        async with gateway.client.post("/api/show", json={"name": "nobody"}) as answer:
            assert (answer.status, list(await answer.json())) == (404, ["error"])
        async with gateway.client.get("/api/ps") as answer:
            assert await answer.json() == {"models": []}
        async with gateway.client.get("/api/version") as answer:
            assert set(await answer.json()) == {"version", "enginehouse"}


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("/api/chat", b"{", 400),
        ("/api/chat", b'{"messages": []}', 400),
        ("/api/chat", b'{"model": "nobody", "messages": [{"role": "user", "content": "x"}]}', 404),
        ("/api/generate", b'{"model": "demo", "prompt": 3}', 400),
        ("/api/embed", b'{"model": "demo"}', 400),
        ("/api/pull", b'{"model": "demo"}', 404),
    ],
)
async def test_errors_have_ollamas_form(path: str, body: bytes, status: int) -> None:
    """One text under `error`, and nothing is started for a wrong request."""
    async with running_gateway(PlayedEngine(stream(CHAT))) as gateway:
        async with gateway.client.post(path, data=body) as answer:
            document = await answer.json()
        assert (answer.status, list(document)) == (status, ["error"])
        assert isinstance(document["error"], str)
        assert not gateway.broker.leases


async def test_an_engine_that_dies_ends_the_stream_with_an_error() -> None:
    """One line with the error, and none that is done after it."""
    begun = b"\n\n".join(CHAT.split(b"\n\n")[:5]) + b"\n\n"
    play = stream(begun, ending="cut")
    play.before_end = anyio.Event()
    async with running_gateway(PlayedEngine(play)) as gateway:
        async with gateway.client.post("/api/chat", json=SAY_HI) as answer:
            first = await answer.content.readline()
            play.before_end.set()
            lines = [orjson.loads(line) for line in (first + await answer.read()).splitlines()]
        assert [list(line) for line in lines if "error" in line] == [["error"]]
        assert list(lines[-1]) == ["error"]
        assert not any(line.get("done") for line in lines)


async def test_nothing_is_said_while_a_client_waits() -> None:
    """Ollama's libraries would stumble over a comment: a refusal after early_header still has its status."""
    async with running_gateway(PlayedEngine(stream(CHAT)), early_header=0.0, waiting_interval=0.01) as gateway:
        gateway.broker.hold = anyio.Event()
        gateway.broker.error = AdmissionError("queue_timeout", "too long")
        async with anyio.create_task_group() as tasks:

            async def ask() -> None:
                async with gateway.client.post("/api/chat", json=SAY_HI) as answer:
                    assert (answer.status, await answer.json()) == (503, {"error": "too long"})

            tasks.start_soon(ask)
            await gateway.broker.asked.wait()
            await anyio.wait_all_tasks_blocked()
            gateway.broker.hold.set()


async def test_a_client_that_leaves_gives_its_lease_back() -> None:
    """The engine's connection is cut and the slot abandoned as soon as the client is gone."""
    async with running_gateway(PlayedEngine(stream(CHAT[: CHAT.index(b"data: [DONE]")], ending="hang"))) as gateway:
        async with gateway.client.post("/api/chat", json=SAY_HI) as answer:
            await answer.content.readline()
            answer.close()
        await gateway.engine.left.wait()
        assert (await gateway.finished()).outcome == "client_left"
        assert gateway.broker.leases[0].released
        assert gateway.broker.leases[0].abandoned
