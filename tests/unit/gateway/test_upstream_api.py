from __future__ import annotations

import hashlib
from typing import Any

import aiohttp
import anyio
import anyio.lowlevel
import pytest

from supervisor.gateway.caller import Caller
from supervisor.gateway.doorkeeper import Access
from supervisor.gateway.request_limits import RequestLimits
from supervisor.gateway.site import Site
from supervisor.gateway.tokens import Credential
from tests.fakes.gateway import running_gateway
from tests.fakes.played_engine import Play, PlayedEngine, stream, whole

CHAT = {"model": "demo", "max_tokens": 1, "messages": [{"role": "user", "content": "hi"}]}
RANKED = b'{"results": [{"index": 0, "relevance_score": 0.5}]}'


@pytest.mark.parametrize("model", ["demo", "nice-name"])
async def test_an_engines_own_path(model: str) -> None:
    """The engine hears path, query and body as they came, with its own key, under a lease that is given back."""
    async with running_gateway(PlayedEngine(whole(b'{"tokens": [1]}'))) as gateway:
        url = f"/upstream/{model}/tokenize?a=b"
        async with gateway.client.post(url, json={"content": "x"}, headers={"Authorization": "Bearer mine"}) as answer:
            assert (answer.status, await answer.json()) == (200, {"tokens": [1]})
            assert answer.headers["x-enginehouse-instance"] == "demo-1"
        [heard] = gateway.engine.heard
        assert (heard.method, heard.path, heard.json) == ("POST", "/tokenize?a=b", {"content": "x"})
        assert "mine" not in str(heard.headers)
        assert [(lease.released, lease.abandoned) for lease in gateway.broker.leases] == [(True, False)]


async def test_an_answer_keeps_its_status_and_form() -> None:
    """What the engine says of a wrong request reaches the client as it is."""
    play = Play([b"broken"], status=404, content_type="text/plain")
    async with (
        running_gateway(PlayedEngine(play)) as gateway,
        gateway.client.get("/upstream/demo/metrics") as answer,
    ):
        assert (answer.status, answer.content_type, await answer.read()) == (404, "text/plain", b"broken")


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/upstream/demo", 404),
        ("/upstream/demo/", 404),
        ("/upstream/nobody/props", 404),
        ("/upstream/demo/a/..%2f..%2fprops", 404),
    ],
)
async def test_paths_that_are_none(path: str, status: int) -> None:
    """Neither an unknown model nor a path that leads out of the engine starts anything."""
    async with running_gateway(PlayedEngine(whole(b"{}"))) as gateway:
        async with gateway.client.get(path) as answer:
            assert answer.status == status
        assert not gateway.broker.leases


@pytest.mark.parametrize(
    "body",
    [
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://x/y"}}]}]},
        {"prompt": {"prompt_string": "x", "multimodal_data": ["http://x/y"]}},
        {"deep": [{"image_url": "file:///etc/passwd"}]},
        {
            "messages": [
                {"role": "user", "content": [{"type": "image", "source": {"type": "url", "url": "http://x/y"}}]}
            ]
        },
    ],
)
async def test_no_engine_is_made_to_fetch_anything(body: dict[str, Any]) -> None:
    """Wherever in the body it stands, and whichever path is asked."""
    async with running_gateway(PlayedEngine(whole(b"{}"))) as gateway:
        async with gateway.client.post("/upstream/demo/apply-template", json=body) as answer:
            assert (answer.status, (await answer.json())["error"]["code"]) == (400, "url_refused")
        assert not gateway.broker.leases


async def test_what_engines_read_and_nobody_here_can() -> None:
    """Neither a byte order mark before the JSON carries a URL past the check, nor depth, nor the look of a form."""
    body = b'{"messages": [{"role": "user", "content": [{"image_url": {"url": "http://x/y"}}]}]}'
    deep = b'{"a": ' * 900 + b'{"image_url": ' + b"[" * 100 + b'"http://x/y"' + b"]" * 100 + b"}" * 901
    async with running_gateway(PlayedEngine(whole(b"{}"))) as gateway:
        cases = [
            (b"\xef\xbb\xbf" + body, "application/json", "invalid_json"),
            (deep, "application/json", "url_refused"),
            (body, "Multipart/Form-Data", "url_refused"),
        ]
        for sent, kind, code in cases:
            headers = {"Content-Type": kind}
            async with gateway.client.post("/upstream/demo/v1/chat/completions", data=sent, headers=headers) as answer:
                assert (answer.status, (await answer.json())["error"]["code"]) == (400, code)
        assert not gateway.broker.leases


@pytest.mark.parametrize("path", ["tools", "tools/x", "cors-proxy?url=http://x/", "/cors-proxy", "models/load", "MCP"])
async def test_what_opens_doors_is_for_nobody(path: str) -> None:
    """Neither for admins: no such path of an engine is asked, and no engine started."""
    async with running_gateway(PlayedEngine(whole(b"{}"))) as gateway:
        async with gateway.client.post(f"/upstream/demo/{path}", json={}) as answer:
            assert (answer.status, (await answer.json())["error"]["code"]) == (403, "forbidden")
        assert not gateway.broker.leases


async def test_calls_pass_the_launchs_gate_and_stand_in_the_callers_lane() -> None:
    """An engine's own paths, and counts of tokens, take a place of its gate, in the lane that was asked for."""
    plays = [whole(b'{"prompt": "p"}'), whole(b'{"tokens": [1, 2]}')]
    headers = {"x-enginehouse-priority": "background"}
    asked = [
        ("/upstream/demo/apply-template", {"messages": []}, {"prompt": "p"}),
        ("/v1/messages/count_tokens", CHAT, {"input_tokens": 2}),
    ]
    async with running_gateway(PlayedEngine(plays[0], *plays)) as gateway:
        gate = gateway.broker.launch.calls
        for path, body, expected in asked:
            for _ in range(3):
                await gate.acquire()
            async with anyio.create_task_group() as tasks:

                async def ask(path: str = path, body: Any = body, expected: Any = expected) -> None:
                    async with gateway.client.post(path, json=body, headers=headers) as answer:
                        assert await answer.json() == expected

                heard = len(gateway.engine.heard)
                leased = len(gateway.broker.leases)
                tasks.start_soon(ask)
                while len(gateway.broker.leases) == leased:
                    await anyio.lowlevel.checkpoint()
                for _ in range(20):
                    await anyio.lowlevel.checkpoint()
                assert len(gateway.engine.heard) == heard
                for _ in range(3):
                    gate.release()
        assert [lease.request.lane for lease in gateway.broker.leases] == ["background", "background"]
        assert all(lease.released and not lease.abandoned for lease in gateway.broker.leases)


async def test_a_count_of_tokens_is_asked_again_on_the_next_launch() -> None:
    """The engine that dies under it is replaced, and the client does not notice."""
    plays = [Play(ending="cut", headers=False), whole(b'{"prompt": "p"}'), whole(b'{"tokens": [1]}')]
    async with running_gateway(PlayedEngine(*plays)) as gateway:
        gateway.broker.breaks = True
        async with gateway.client.post("/v1/messages/count_tokens", json=CHAT) as answer:
            assert (answer.status, await answer.json()) == (200, {"input_tokens": 1})


async def test_an_engine_that_dies_within_its_answer() -> None:
    """The client sees that its answer is cut, and no second answer in the middle of the first."""
    go_on = anyio.Event()
    play = Play([b"first"], ending="cut", before_end=go_on)
    async with running_gateway(PlayedEngine(play)) as gateway:
        async with gateway.client.post("/upstream/demo/infill", json={}) as answer:
            assert await answer.content.readany() == b"first"
            go_on.set()
            with pytest.raises(aiohttp.ClientPayloadError):
                await answer.read()
        assert (await gateway.finished()).outcome == "upstream_died"
        assert gateway.broker.leases[0].abandoned


async def test_an_engine_that_is_silent() -> None:
    """The limits of every request hold for an engine's own paths."""
    limits = RequestLimits(first_base=0.05, first_cap=0.05, idle=0.05, verdict=0.05)
    async with running_gateway(PlayedEngine(Play(headers=False, ending="hang")), watchdogs=lambda: limits) as gateway:
        async with gateway.client.post("/upstream/demo/tokenize", json={}) as answer:
            assert (answer.status, (await answer.json())["error"]["code"]) == (504, "upstream_timeout")
        assert gateway.broker.leases[0].looks
        assert gateway.broker.leases[0].abandoned


@pytest.mark.parametrize(
    ("method", "path", "roles", "status"),
    [
        ("GET", "props", {"use"}, 200),
        ("POST", "props", {"use"}, 403),
        ("POST", "slots/0?action=erase", {"use"}, 403),
        ("POST", "slots/0?action=erase", {"use", "admin"}, 200),
        ("GET", "props", {"admin"}, 403),
    ],
)
async def test_the_rest_is_for_admins(method: str, path: str, roles: Any, status: int) -> None:
    """Only what can do no harm is for everybody who may use models."""
    access = Access(
        Site(), (Credential(Caller("c", frozenset(roles)), hashlib.sha256(b"a-token-of-some-length").digest()),)
    )
    async with running_gateway(PlayedEngine(whole(b"{}")), access=access) as gateway:
        headers = {"Authorization": "Bearer a-token-of-some-length"}
        async with gateway.client.request(method, f"/upstream/demo/{path}", headers=headers) as answer:
            assert answer.status == status


async def test_a_client_that_leaves_gives_its_lease_back() -> None:
    """In mid-answer the engine's connection is cut and the slot abandoned."""
    async with running_gateway(PlayedEngine(stream(b"data: 1\n\n", ending="hang"))) as gateway:
        async with gateway.client.post("/upstream/demo/infill", json={}) as answer:
            await answer.content.readuntil(b"\n\n")
            answer.close()
        await gateway.engine.left.wait()
        assert (await gateway.finished()).outcome == "client_left"
        assert gateway.broker.leases[0].abandoned


@pytest.mark.parametrize("path", ["/v1/rerank", "/v1/reranking"])
async def test_ranking(path: str) -> None:
    """Both names lead to the engine's one; its answer is the client's; what is wrong starts nothing."""
    async with running_gateway(PlayedEngine(whole(RANKED))) as gateway:
        async with gateway.client.post(path, json={"model": "demo", "query": "q", "documents": ["a"]}) as answer:
            assert await answer.read() == RANKED
        assert gateway.engine.heard[0].path == "/v1/rerank"
        for body in ({"model": "demo", "query": "q"}, {"model": "demo", "documents": ["a"]}):
            async with gateway.client.post(path, json=body) as answer:
                assert answer.status == 400
        assert len(gateway.broker.leases) == 1
    await anyio.lowlevel.checkpoint()
