from __future__ import annotations

import anyio
import pytest

from supervisor.errors import InstanceError
from supervisor.events import RequestFinished
from supervisor.gateway.ports import ModelCard
from tests.fakes.gateway import running_gateway
from tests.fakes.played_engine import PlayedEngine, stream

CARDS = [
    ModelCard("demo", 1_700_000_000, ("chat",), "ready", aliases=("nice",), context_length=2048),
    ModelCard("org/other", None, ("embeddings",), "stopped"),
    ModelCard("cut", 1, (), "stopped", broken="the file ends early"),
]


async def test_models_are_listed_with_what_can_be_asked_of_them() -> None:
    """OpenAI's four fields, ours beside them; broken models are left out."""
    async with running_gateway(PlayedEngine(stream(b""))) as gateway:
        gateway.cards.extend(CARDS)
        async with gateway.client.get("/v1/models") as answer:
            listing = await answer.json()
        assert listing["object"] == "list"
        assert [row["id"] for row in listing["data"]] == ["demo", "org/other"]
        assert listing["data"][0] == {
            "id": "demo",
            "object": "model",
            "created": 1_700_000_000,
            "owned_by": "enginehouse",
            "aliases": ["nice"],
            "capabilities": ["chat"],
            "context_length": 2048,
            "state": "ready",
        }
        assert listing["data"][1]["context_length"] is None


@pytest.mark.parametrize(
    ("name", "status", "found"),
    [
        ("demo", 200, "demo"),
        ("nice", 200, "demo"),
        ("org/other", 200, "org/other"),
        ("cut", 503, "the file ends early"),
        ("demmo", 404, "Did you mean 'demo'"),
        ("zzz", 404, "GET /v1/models"),
    ],
)
async def test_one_model_is_found_by_id_or_alias(name: str, status: int, found: str) -> None:
    """Slashes belong to the id; a broken one says why; an unknown one names the nearest."""
    async with running_gateway(PlayedEngine(stream(b""))) as gateway:
        gateway.cards.extend(CARDS)
        async with gateway.client.get(f"/v1/models/{name}") as answer:
            assert answer.status == status
            assert found in await answer.text()


async def test_health_tells_life_from_readiness() -> None:
    """/healthz answers as long as the daemon lives; /readyz says why no requests are taken."""
    async with running_gateway(PlayedEngine(stream(b""))) as gateway:
        async with gateway.client.get("/readyz") as answer:
            assert answer.status == 200
        gateway.readiness[0] = (False, "looking for models")
        async with gateway.client.get("/readyz") as answer:
            assert (answer.status, (await answer.json())["reason"]) == (503, "looking for models")
        async with gateway.client.get("/healthz") as answer:
            assert (answer.status, await answer.json()) == (200, {"status": "ok"})
    assert not [record for record in gateway.bus.since(0) if isinstance(record.event, RequestFinished)]


async def test_metrics_keep_their_content_type() -> None:
    """Prometheus reads the format from it."""
    async with running_gateway(PlayedEngine(stream(b""))) as gateway, gateway.client.get("/metrics") as answer:
        assert answer.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
        assert await answer.read() == b"up 1\n"


async def test_the_root_says_where_things_are() -> None:
    """Somebody who opens the address finds the way."""
    async with running_gateway(PlayedEngine(stream(b""))) as gateway, gateway.client.get("/") as answer:
        assert (await answer.json())["openai_base_url"] == "/v1"


async def test_the_status_is_a_json_document() -> None:
    """Paths and the like are written as text."""
    async with running_gateway(PlayedEngine(stream(b""))) as gateway, gateway.client.get("/admin/v1/status") as answer:
        assert await answer.json() == {"version": "0", "path": "/x"}


async def test_models_are_loaded_and_unloaded_by_hand() -> None:
    """The answer is the instance's state; an error has the usual form."""
    async with running_gateway(PlayedEngine(stream(b""))) as gateway:
        async with gateway.client.post("/admin/v1/models/org/other/load") as answer:
            assert await answer.json() == {"model": "org/other", "state": "ready"}
        async with gateway.client.post("/admin/v1/models/demo/unload") as answer:
            assert (await answer.json())["state"] == "stopped"
        assert gateway.control.told == [("load", "org/other"), ("unload", "demo")]
        gateway.control.error = InstanceError("start_failed", "it did not start")
        async with gateway.client.post("/admin/v1/models/demo/load") as answer:
            assert (answer.status, (await answer.json())["error"]["code"]) == (503, "start_failed")


@pytest.mark.parametrize(
    ("headers", "query", "after"),
    [({}, "", "None"), ({"Last-Event-ID": "41"}, "", "41"), ({}, "?after=0", "0"), ({"Last-Event-ID": "x"}, "", "0")],
)
async def test_events_go_on_where_the_reader_was(headers: dict[str, str], query: str, after: str) -> None:
    """The last id that was seen is handed on; one that is none of ours counts as none seen."""
    async with running_gateway(PlayedEngine(stream(b""))) as gateway:
        async with gateway.client.get(f"/admin/v1/events{query}", headers=headers) as answer:
            assert answer.headers["Content-Type"] == "text/event-stream"
            got = await answer.content.readuntil(b"data: " + after.encode() + b"\n\n")
            assert b"id: 7\nevent: asked\n" in got
            assert not gateway.events.closed.is_set()
        answer.close()
        with anyio.fail_after(5):
            await gateway.events.closed.wait()
