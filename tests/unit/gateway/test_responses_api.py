from __future__ import annotations

import io
import threading
from pathlib import Path
from typing import Any

import anyio
import orjson
import pytest

from supervisor.errors import AdmissionError
from supervisor.gateway.translate.responses_request import chain_messages
from tests.fakes.gateway import running_gateway
from tests.fakes.played_engine import PlayedEngine, stream, whole

DATA = Path(__file__).parents[2] / "data" / "gateway"
CHAT = (DATA / "chat.sse").read_bytes()
PATH = "/v1/responses"
SAY_HI: dict[str, Any] = {"model": "nice-name", "input": "Say hi"}
UNENDING = CHAT[: CHAT.index(b"data: [DONE]")]


def _events(sse: bytes) -> list[dict[str, Any]]:
    return [orjson.loads(frame.split(b"data: ", 1)[1]) for frame in sse.split(b"\n\n") if b"data: " in frame]


async def test_a_chain() -> None:
    """The second response goes on from the first: its engine hears the whole conversation."""
    async with running_gateway(PlayedEngine(stream(CHAT))) as gateway:
        async with gateway.client.post(PATH, json=SAY_HI) as answer:
            first = await answer.json()
        text = first["output"][0]["content"][0]["text"]
        body = {"model": "demo", "input": "More", "previous_response_id": first["id"], "stream": True}
        async with gateway.client.post(PATH, json=body) as answer:
            events = _events(await answer.read())
        assert [message["content"] for message in gateway.engine.heard[1].json["messages"]] == ["Say hi", text, "More"]
        assert events[-1]["type"] == "response.incomplete"  # the recorded one was cut by its limit
        assert events[-1]["response"]["previous_response_id"] == first["id"]
        second = events[0]["response"]["id"]
        async with gateway.client.get(f"{PATH}/{second}") as answer:
            assert await answer.json() == events[-1]["response"]
        async with gateway.client.get(f"{PATH}/{second}/input_items") as answer:
            items = await answer.json()
        assert [item["content"][0]["text"] for item in items["data"]] == ["More"]
        assert (items["first_id"], items["has_more"]) == (items["last_id"], False)
        async with gateway.client.delete(f"{PATH}/{second}") as answer:
            assert (await answer.json())["deleted"] is True
        async with gateway.client.get(f"{PATH}/{second}") as answer:
            assert (answer.status, (await answer.json())["error"]["code"]) == (404, "response_not_found")


async def test_a_long_chain_is_read_and_written_off_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a short request goes on from may be megabytes: the loop is not held up by them.

    Prevents: only a request's own length decided whether its chain was read and its chat written in a thread.
    """
    threads = []
    real = chain_messages

    def noted(records: Any) -> Any:
        threads.append(threading.current_thread() is threading.main_thread())
        return real(records)

    monkeypatch.setattr("supervisor.gateway.responses_api.chain_messages", noted)
    long = "word " * 300_000
    async with running_gateway(PlayedEngine(stream(CHAT))) as gateway:
        asked: dict[str, Any] = {"model": "demo", "input": long}
        for _ in range(2):
            sent_bytes = io.BytesIO(orjson.dumps(asked))
            async with gateway.client.post(PATH, data=sent_bytes) as answer:
                assert answer.status == 200
                asked = {"model": "demo", "input": "More", "previous_response_id": (await answer.json())["id"]}
        assert gateway.engine.heard[1].json["messages"][0]["content"] == long
    assert threads == [False]


async def test_who_wants_nothing_stored_gets_nothing_stored() -> None:
    """With `store: false` the response can't be named again."""
    async with running_gateway(PlayedEngine(stream(CHAT))) as gateway:
        async with gateway.client.post(PATH, json=SAY_HI | {"store": False}) as answer:
            known = (await answer.json())["id"]
        async with gateway.client.post(PATH, json=SAY_HI | {"previous_response_id": known}) as answer:
            assert answer.status == 404
            assert known in (await answer.json())["error"]["message"]
        assert len(gateway.broker.leases) == 1


async def test_the_input_items_come_in_pages() -> None:
    """Newest first unless asked otherwise, so many at once, after a named one."""
    given = [{"role": "user", "content": str(number)} for number in range(3)]
    async with running_gateway(PlayedEngine(stream(CHAT))) as gateway:
        async with gateway.client.post(PATH, json=SAY_HI | {"input": given}) as answer:
            known = (await answer.json())["id"]
        seen = []
        page: dict[str, Any] = {}
        for query in ("?limit=2", "?order=asc&limit=1", "?limit=x"):
            async with gateway.client.get(f"{PATH}/{known}/input_items{query}") as answer:
                page = await answer.json()
            seen.append(([item["content"][0]["text"] for item in page["data"]], page["has_more"]))
        assert seen == [(["2", "1"], True), (["0"], True), (["2", "1", "0"], False)]
        async with gateway.client.get(f"{PATH}/{known}/input_items?after={page['data'][1]['id']}") as answer:
            assert [item["content"][0]["text"] for item in (await answer.json())["data"]] == ["0"]


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"{", 400),
        (b'{"model": "demo"}', 400),
        (b'{"model": "demo", "input": []}', 400),
        (b'{"model": "nobody", "input": "x"}', 404),
        (b'{"model": "demo", "input": "x", "previous_response_id": 3}', 400),
        (b'{"model": "demo", "input": "x", "previous_response_id": "resp_none"}', 404),
    ],
)
async def test_wrong_requests_start_nothing(body: bytes, status: int) -> None:
    """What is wrong is said in OpenAI's form, and no lease is asked for."""
    async with running_gateway(PlayedEngine(stream(CHAT))) as gateway:
        async with gateway.client.post(PATH, data=body) as answer:
            assert answer.status == status
            assert {"message", "type", "code", "param"} <= (await answer.json())["error"].keys()
        assert not gateway.broker.leases


async def test_an_engine_that_dies_fails_the_response() -> None:
    """One last event, response.failed; nothing is kept of it."""
    begun = b"\n\n".join(CHAT.split(b"\n\n")[:5]) + b"\n\n"
    play = stream(begun, ending="cut")
    play.before_end = anyio.Event()
    async with running_gateway(PlayedEngine(play)) as gateway:
        async with gateway.client.post(PATH, json=SAY_HI | {"stream": True}) as answer:
            first = await answer.content.readuntil(b"\n\n")
            play.before_end.set()
            events = _events(first + await answer.read())
        assert [event["type"] for event in events].count("response.failed") == 1
        assert events[-1]["response"]["error"]["code"] == "upstream_died"
        assert not any(event["type"] == "response.completed" for event in events)
        async with gateway.client.get(f"{PATH}/{events[0]['response']['id']}") as answer:
            assert answer.status == 404


async def test_a_refusal_after_the_wait_is_an_error_event() -> None:
    """Who waits hears comments; a response that never began ends with an error alone."""
    async with running_gateway(PlayedEngine(stream(CHAT)), early_header=0.01, waiting_interval=0.01) as gateway:
        gateway.broker.hold = anyio.Event()
        gateway.broker.error = AdmissionError("queue_timeout", "too long")
        async with gateway.client.post(PATH, json=SAY_HI | {"stream": True}) as answer:
            assert (await answer.content.readuntil(b"\n\n")).startswith(b":")
            gateway.broker.hold.set()
            [event] = _events(await answer.read())
        assert (event["type"], event["code"]) == ("error", "queue_timeout")


async def test_one_that_is_being_made_is_never_unknown() -> None:
    """Naming it meanwhile waits, then says to ask again: 503, with Retry-After."""
    async with running_gateway(PlayedEngine(stream(UNENDING, ending="hang"))) as gateway:
        async with gateway.client.post(PATH, json=SAY_HI | {"stream": True}) as answer:
            created = _events(await answer.content.readuntil(b"\n\n"))[0]
            async with gateway.client.get(f"{PATH}/{created['response']['id']}") as other:
                assert (other.status, other.headers["Retry-After"]) == (503, "2")
            answer.close()
        await gateway.engine.left.wait()


async def test_cancel() -> None:
    """One that is being made is cut, and its stream ends as failed; one that is complete is given as it is."""
    async with running_gateway(PlayedEngine(stream(UNENDING, ending="hang"), stream(CHAT))) as gateway:
        async with gateway.client.post(PATH, json=SAY_HI | {"stream": True}) as answer:
            first = await answer.content.readuntil(b"\n\n")
            known = _events(first)[0]["response"]["id"]
            async with gateway.client.post(f"{PATH}/{known}/cancel") as other:
                assert (await other.json())["status"] == "cancelled"
            events = _events(await answer.read())
        assert events[-1]["response"]["error"]["code"] == "response_cancelled"
        assert gateway.broker.leases[0].abandoned
        async with gateway.client.post(PATH, json=SAY_HI) as answer:
            complete = await answer.json()
        async with gateway.client.post(f"{PATH}/{complete['id']}/cancel") as answer:
            assert await answer.json() == complete


async def test_a_client_that_leaves_gives_its_lease_back() -> None:
    """The engine's connection is cut and the slot abandoned as soon as the client is gone; nothing is kept."""
    async with running_gateway(PlayedEngine(stream(UNENDING, ending="hang"))) as gateway:
        async with gateway.client.post(PATH, json=SAY_HI | {"stream": True}) as answer:
            known = _events(await answer.content.readuntil(b"\n\n"))[0]["response"]["id"]
            answer.close()
        await gateway.engine.left.wait()
        assert (await gateway.finished()).outcome == "client_left"
        assert gateway.broker.leases[0].released
        assert gateway.broker.leases[0].abandoned
        async with gateway.client.get(f"{PATH}/{known}") as answer:
            assert answer.status == 404


async def test_tokens_are_counted_by_the_engine() -> None:
    """The engine applies its template and counts, under one lease."""
    plays = [whole(b'{"prompt": "<hi>"}', keep_alive=True), whole(b'{"tokens": [1, 2, 3]}', keep_alive=True)]
    async with (
        running_gateway(PlayedEngine(*plays)) as gateway,
        gateway.client.post(f"{PATH}/input_tokens", json=SAY_HI) as answer,
    ):
        assert await answer.json() == {"object": "response.input_tokens", "input_tokens": 3}
