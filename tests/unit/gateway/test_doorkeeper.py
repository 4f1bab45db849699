"""The door of a gateway on a real socket."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import anyio
import orjson
import pytest

from supervisor.config.schema import AuthConfig, CallerConfig, Config, ListenConfig
from supervisor.errors import ConfigError
from supervisor.events import RequestFinished
from supervisor.gateway.auth import Need, need_of
from supervisor.gateway.caller import Caller
from supervisor.gateway.doorkeeper import Access, read_access
from supervisor.gateway.ports import ModelCard
from supervisor.gateway.site import Site, site_of
from supervisor.gateway.tokens import Credential, digest_of
from tests.fakes.gateway import RunningGateway, running_gateway
from tests.fakes.played_engine import PlayedEngine, stream

CHAT = (Path(__file__).parents[2] / "data" / "gateway" / "chat.sse").read_bytes()
SAY_HI = {"model": "demo", "messages": [{"role": "user", "content": "Say hi"}]}
NONE: Mapping[str, str] = {}


def credential(caller: Caller) -> Credential:
    """A caller whose token is ``NAME-token``."""
    return Credential(caller, digest_of(f"{caller.name}-token"))


def access_of(*callers: Caller, **listen: Any) -> Access:
    """These callers, and the rules of a `listen` section."""
    return Access(site_of(ListenConfig(**listen)), tuple(map(credential, callers)))


USER = Caller("user", frozenset({"use"}))
ADMIN = Caller("admin", frozenset({"admin"}))
BOTH = Caller("both", frozenset({"use", "admin"}))
LIMITED = Caller("limited", frozenset({"use"}), models=frozenset({"nice-name"}))
ALL = access_of(USER, ADMIN, BOTH, LIMITED)


def bearer(name: str) -> dict[str, str]:
    """The header of a caller."""
    return {"Authorization": f"Bearer {name}-token"}


async def asked(
    gateway: RunningGateway, method: str, path: str, headers: Mapping[str, str] = NONE, body: object = None
) -> tuple[int, str | None]:
    """Status, and the code of the error if there is one."""
    async with gateway.client.request(method, path, headers=headers, json=body) as answer:
        data = await answer.read()
        if answer.status < 400:
            return answer.status, None
        assert answer.headers["x-request-id"]
        return answer.status, orjson.loads(data)["error"]["code"]


async def chat(gateway: RunningGateway, headers: Mapping[str, str] = NONE, **body: Any) -> tuple[int, str | None]:
    """One chat."""
    return await asked(gateway, "POST", "/v1/chat/completions", headers, SAY_HI | body)


REQUESTS: list[tuple[str, str, object, set[str]]] = [
    ("GET", "/healthz", None, {"", "wrong", "user", "admin", "both", "limited"}),
    ("GET", "/readyz", None, {"", "wrong", "user", "admin", "both", "limited"}),
    ("GET", "/", None, {"", "wrong", "user", "admin", "both", "limited"}),
    ("GET", "/status_page/app.js", None, {"", "wrong", "user", "admin", "both", "limited"}),
    ("GET", "/admin/v1/history", None, {"admin", "both"}),
    ("GET", "/metrics", None, {"user", "admin", "both"}),
    ("GET", "/v1/models", None, {"user", "both", "limited"}),
    ("POST", "/v1/chat/completions", SAY_HI, {"user", "both", "limited"}),
    ("GET", "/admin/v1/status", None, {"admin", "both"}),
    ("GET", "/admin/v1/plan?model=demo", None, {"admin", "both"}),
    ("POST", "/admin/v1/reload", None, {"admin", "both"}),
    ("POST", "/admin/v1/models/a/b/load", None, {"admin", "both"}),
]


def _id(value: object) -> str:
    """The same in every process, which a set's own order is not: processes that share the tests compare their names."""
    return str(sorted(value) if isinstance(value, set) else value)[:30]


@pytest.mark.parametrize(("method", "path", "body", "allowed"), REQUESTS, ids=_id)
async def test_who_may_what(method: str, path: str, body: object, allowed: set[str]) -> None:
    """Without a token or with a wrong one 401, with too small a role 403."""
    async with running_gateway(PlayedEngine(stream(CHAT)), access=ALL) as gateway:
        for name in ("", "wrong", "user", "admin", "both", "limited"):
            got = await asked(gateway, method, path, bearer(name) if name else {}, body)
            if name in allowed:
                assert got == (200, None), name
            elif name in {"", "wrong"}:
                assert got == (401, "unauthorized"), name
            else:
                assert got == (403, "forbidden"), name


@pytest.mark.parametrize(
    "target",
    [
        "/admin/v1/status",
        "/%61dmin/v1/status",
        "/%61%64%6d%69%6e/v1/status",
        "//admin/v1/status",
        "/admin//v1/status",
        "/admin%2Fv1/status",
        "/v1/../admin/v1/status",
        "/v1/%2e%2e/admin/v1/status",
        "/healthz/../admin/v1/status",
        "/ADMIN/v1/status",
        "/admin/v1/status/",
        "/admin/v1/status?x=/healthz",
        "/admin/v1/status#/healthz",
        "http://localhost/admin/v1/status",
        "http://localhost/healthz/../admin/v1/status",
    ],
)
@pytest.mark.parametrize("method", ["GET", "HEAD"])
async def test_a_path_can_not_be_spelled_past_its_role(method: str, target: str) -> None:
    """What a route needs is asked of the route that is served, not of the text of the path."""
    async with running_gateway(PlayedEngine(stream(CHAT)), access=ALL) as gateway:
        reader, writer = await asyncio.open_connection("127.0.0.1", int(gateway.url.rsplit(":", 1)[1]))
        for token, right in (("user-token", {b"403", b"404", b"405"}), ("", {b"401"})):
            key = f"x-api-key: {token}\r\n" if token else ""
            writer.write(f"{method} {target} HTTP/1.1\r\nHost: localhost\r\n{key}\r\n".encode())
            head = await reader.readuntil(b"\r\n\r\n")
            assert head.split()[1] in right
            if method == "GET":
                length = next(line for line in head.split(b"\r\n") if line.lower().startswith(b"content-length"))
                await reader.readexactly(int(length.split()[1]))
        writer.close()
        await writer.wait_closed()


async def test_every_route_was_thought_about() -> None:
    """A new one is for admins alone until `auth.py` says otherwise; this list is what it says."""
    async with running_gateway(PlayedEngine(stream(CHAT))) as gateway:
        routes = {resource.canonical for resource in gateway.app.router.resources()}
    free = {route for route in routes if need_of(route) is Need.NOTHING}
    assert free == {"/healthz", "/readyz"}
    assert all(need_of(route) is Need.ADMIN for route in routes if route.startswith("/admin"))
    rest = {route for route in routes if need_of(route) is Need.ADMIN and not route.startswith("/admin")}
    assert rest == set()


@pytest.mark.parametrize("path", ["/nothing", "/v1/nothing", "/admin/nothing"])
async def test_only_callers_hear_what_there_is(path: str) -> None:
    """An unknown path and a wrong method look like any other without a token."""
    async with running_gateway(PlayedEngine(stream(CHAT)), access=ALL) as gateway:
        assert await asked(gateway, "GET", path) == (401, "unauthorized")
        assert await asked(gateway, "GET", path, bearer("user")) == (404, "not_found")
        assert await asked(gateway, "DELETE", "/v1/models") == (401, "unauthorized")
        assert await asked(gateway, "DELETE", "/v1/models", bearer("user")) == (405, "method_not_allowed")


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Authorization": "Bearer user-token"}, 200),
        ({"Authorization": "bearer  user-token"}, 200),
        ({"x-api-key": "user-token"}, 200),
        ({"X-API-Key": "user-token", "Authorization": "Bearer unused"}, 200),
        ({"Authorization": "Basic user-token"}, 401),
        ({"Authorization": "user-token"}, 401),
        ({"Authorization": "Bearer user-toke"}, 401),
        ({"Authorization": "Bearer user-token2"}, 401),
        ({"x-api-key": "USER-TOKEN"}, 401),
        ({"x-api-key": ""}, 401),
        ({"Cookie": "Authorization=user-token"}, 401),
    ],
)
async def test_where_tokens_are_read(headers: dict[str, str], status: int) -> None:
    """In either of the two headers; a client that fills both with different things is served by the right one."""
    async with running_gateway(PlayedEngine(stream(CHAT)), access=ALL) as gateway:
        assert (await chat(gateway, headers))[0] == status
        assert (await asked(gateway, "GET", "/v1/models?api_key=user-token"))[0] == 401


async def test_a_refusal_says_how_to_send_a_token() -> None:
    """With the challenge that HTTP asks for, and in the API's own form."""
    async with running_gateway(PlayedEngine(stream(CHAT)), access=ALL) as gateway:
        async with gateway.client.get("/v1/models") as answer:
            assert answer.headers["WWW-Authenticate"] == 'Bearer realm="enginehouse"'
            error = (await answer.json())["error"]
            assert "x-api-key" in error["message"]
            assert error["type"] == "invalid_request_error"
        async with gateway.client.get("/v1/models", headers=bearer("wrong")) as answer:
            assert 'error="invalid_token"' in answer.headers["WWW-Authenticate"]
            assert "wrong-token" not in await answer.text()
        async with gateway.client.get("/admin/v1/status", headers=bearer("user")) as answer:
            assert "WWW-Authenticate" not in answer.headers
            assert "the role admin" in (await answer.json())["error"]["message"]


async def test_nothing_is_read_or_started_for_a_stranger() -> None:
    """The refusal comes before the body: a large one is not even waited for."""
    async with running_gateway(PlayedEngine(stream(CHAT)), access=ALL) as gateway:
        reader, writer = await asyncio.open_connection("127.0.0.1", int(gateway.url.rsplit(":", 1)[1]))
        writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 30000000\r\n\r\n")
        assert (await reader.readline()).startswith(b"HTTP/1.1 401 ")
        writer.close()
        await writer.wait_closed()
        assert gateway.router.asked == []
        assert gateway.broker.leases == []


async def test_wrong_tokens_wait_longer_each_time_and_good_ones_never() -> None:
    """Only the answers to wrong tokens are held back; no token at all is no guess."""
    async with running_gateway(PlayedEngine(stream(CHAT)), access=ALL) as gateway:
        for _ in range(3):
            assert (await chat(gateway, bearer("wrong")))[0] == 401
        assert gateway.delays == pytest.approx([0.1, 0.2, 0.4])
        assert (await chat(gateway))[0] == 401
        assert (await chat(gateway, bearer("user")))[0] == 200
        assert await asked(gateway, "GET", "/admin/v1/status", bearer("user")) == (403, "forbidden")
        assert len(gateway.delays) == 3


async def test_a_good_caller_is_served_while_a_wrong_token_waits() -> None:
    """The wait holds nothing but its own answer, also from the same address."""
    async with running_gateway(PlayedEngine(stream(CHAT)), access=ALL) as gateway, anyio.create_task_group() as tasks:
        gateway.hold_delays = anyio.Event()
        statuses: list[int] = []

        async def guess() -> None:
            statuses.append((await chat(gateway, bearer("wrong")))[0])

        for _ in range(20):
            tasks.start_soon(guess)
        with anyio.fail_after(10):
            while len(gateway.delays) < 20:
                await anyio.wait_all_tasks_blocked()
        assert (await chat(gateway, bearer("user")))[0] == 200
        assert statuses == []
        gateway.hold_delays.set()
    assert statuses == [401] * 20


async def test_the_caller_is_who_the_queue_and_the_events_name() -> None:
    """A refused one is known by its address alone."""
    async with running_gateway(PlayedEngine(stream(CHAT)), access=ALL) as gateway:
        await chat(gateway, bearer("user"))
        assert gateway.broker.leases[0].request.caller == "user"
        await chat(gateway, bearer("wrong"))
        await asked(gateway, "GET", "/metrics", bearer("wrong"))
    ended = [record.event for record in gateway.bus.since(0) if isinstance(record.event, RequestFinished)]
    assert [(event.caller, event.status) for event in ended] == [("user", 200), ("127.0.0.1", 401), ("127.0.0.1", 401)]


async def test_without_callers_nobody_needs_a_token() -> None:
    """Whatever a client sends as a key; and it may do everything."""
    async with running_gateway(PlayedEngine(stream(CHAT)), access=access_of()) as gateway:
        assert (await chat(gateway, {"Authorization": "Bearer unused"}))[0] == 200
        assert await asked(gateway, "POST", "/admin/v1/models/demo/load") == (200, None)
        assert gateway.broker.leases[0].request.caller == "127.0.0.1"


@pytest.mark.parametrize(("proxies", "caller"), [((), "127.0.0.1"), (("127.0.0.0/8",), "203.0.113.7")])
async def test_a_trusted_proxy_says_who_asks(proxies: tuple[str, ...], caller: str) -> None:
    """Where no token does; anybody else may write into the header what they like."""
    access = access_of(trusted_proxies=proxies)
    async with running_gateway(PlayedEngine(stream(CHAT)), access=access) as gateway:
        await chat(gateway, {"X-Forwarded-For": "6.6.6.6, 203.0.113.7"})
        assert gateway.broker.leases[0].request.caller == caller


async def test_callers_are_replaced_while_requests_run() -> None:
    """Who is inside stays; from then on the new tokens count, and the first callers make tokens necessary."""
    async with running_gateway(PlayedEngine(stream(CHAT)), access=access_of()) as gateway:
        gateway.broker.hold = anyio.Event()
        statuses: list[int] = []

        async def slow() -> None:
            statuses.append((await chat(gateway))[0])

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(slow)
            await gateway.broker.asked.wait()
            gateway.door.use(access_of(USER))
            gateway.broker.hold.set()
        assert statuses == [200]
        assert (await chat(gateway))[0] == 401
        assert (await chat(gateway, bearer("user")))[0] == 200
        gateway.door.use(access_of(BOTH))
        assert (await chat(gateway, bearer("user")))[0] == 401


CARDS = [
    ModelCard("demo", 1, ("chat",), "ready", aliases=("nice-name",)),
    ModelCard("demos", 1, ("chat",), "stopped"),
    ModelCard("cut", 1, (), "stopped", broken="the file ends early"),
]


async def test_a_caller_sees_only_its_models() -> None:
    """By alias or by id. Others are not listed, and asked for they are as unknown as those that don't exist."""
    async with running_gateway(PlayedEngine(stream(CHAT)), access=ALL) as gateway:
        gateway.cards.extend(CARDS)
        for name, ids in (("user", ["demo", "demos"]), ("limited", ["demo"])):
            async with gateway.client.get("/v1/models", headers=bearer(name)) as answer:
                assert [row["id"] for row in (await answer.json())["data"]] == ids
        limited = bearer("limited")
        assert await asked(gateway, "GET", "/v1/models/nice-name", limited) == (200, None)
        messages = set()
        for unseen in ("demos", "cut", "gone!"):
            async with gateway.client.get(f"/v1/models/{unseen}", headers=limited) as answer:
                assert answer.status == 404
                messages.add((await answer.json())["error"]["message"].replace(unseen, "X"))
        assert len({message for message in messages if "mean" not in message}) == 1
        assert not [message for message in messages if "demos" in message or "ends early" in message]


async def test_a_model_of_others_can_not_be_used() -> None:
    """404 as for a name that doesn't exist; by its id and by its alias the own one can."""
    other = Caller("other", frozenset({"use"}), models=frozenset({"something-else"}))
    async with running_gateway(PlayedEngine(stream(CHAT)), access=access_of(other, LIMITED)) as gateway:
        assert await chat(gateway, bearer("other")) == (404, "model_not_found")
        assert gateway.broker.leases == []
        assert await chat(gateway, bearer("limited")) == (200, None)
        assert await chat(gateway, bearer("limited"), model="nice-name") == (200, None)


async def test_a_caller_runs_so_many_at_once_and_no_more() -> None:
    """Waiting ones count; one more is told to come back; others are not touched; and the place is free again."""
    two = Caller("two", frozenset({"use"}), max_concurrent=2)
    async with running_gateway(PlayedEngine(stream(CHAT)), access=access_of(two, USER)) as gateway:
        gateway.broker.hold = anyio.Event()
        statuses: list[int] = []

        async def ask(name: str) -> None:
            statuses.append((await chat(gateway, bearer(name)))[0])

        async with anyio.create_task_group() as tasks:
            for name in ("two", "two", "user", "user", "user"):
                tasks.start_soon(ask, name)
            with anyio.fail_after(10):
                while gateway.broker.waiting < 5:
                    await anyio.wait_all_tasks_blocked()
            async with gateway.client.post("/v1/chat/completions", json=SAY_HI, headers=bearer("two")) as answer:
                assert answer.status == 429
                assert answer.headers["Retry-After"] == "1"
                error = (await answer.json())["error"]
                assert error["code"] == "caller_busy"
                assert "max_concurrent allows 2" in error["message"]
            assert await asked(gateway, "GET", "/v1/models", bearer("two")) == (200, None)
            gateway.broker.hold.set()
        assert statuses == [200] * 5
        assert await chat(gateway, bearer("two")) == (200, None)
        assert gateway.gate.running == 0


async def test_a_failed_request_gives_its_place_back() -> None:
    """Whatever it fails by; else a caller would lock itself out."""
    one = Caller("one", frozenset({"use"}), max_concurrent=1)
    async with running_gateway(PlayedEngine(stream(CHAT)), access=access_of(one)) as gateway:
        for _ in range(3):
            assert await chat(gateway, bearer("one"), model="gone") == (404, "model_not_found")
            assert await chat(gateway, bearer("one"), messages=[]) == (400, "invalid_request")
        with anyio.move_on_after(0.1):
            gateway.broker.hold = anyio.Event()
            await chat(gateway, bearer("one"))
        gateway.broker.hold = None
        with anyio.fail_after(10):
            await gateway.broker.ended.wait()
            while gateway.gate.running:
                await anyio.wait_all_tasks_blocked()
        assert await chat(gateway, bearer("one")) == (200, None)


@pytest.mark.parametrize("host", ["evil.example", "localhost.evil.example:8080"])
async def test_wrong_hosts_reach_nothing_but_health(host: str) -> None:
    """DNS rebinding; a probe of an orchestrator may ask by any name."""
    async with running_gateway(PlayedEngine(stream(CHAT)), access=access_of()) as gateway:
        for method, path in (("GET", "/v1/models"), ("GET", "/"), ("GET", "/admin/v1/status"), ("GET", "/nothing")):
            assert await asked(gateway, method, path, {"Host": host}) == (403, "wrong_host")
        assert await chat(gateway, {"Host": host}) == (403, "wrong_host")
        for path in ("/healthz", "/readyz"):
            assert await asked(gateway, "GET", path, {"Host": host}) == (200, None)


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/admin/v1/models/demo/unload", "/admin/v1/reload"])
@pytest.mark.parametrize(
    "headers", [{"Origin": "https://evil.example"}, {"Origin": "null"}, {"Sec-Fetch-Site": "cross-site"}]
)
async def test_pages_of_others_change_nothing(path: str, headers: dict[str, str]) -> None:
    """With or without a token: a page must not use what the browser's user may."""
    for access in (access_of(), access_of(BOTH)):
        async with running_gateway(PlayedEngine(stream(CHAT)), access=access) as gateway:
            asking = {**headers, **bearer("both")}
            assert await asked(gateway, "POST", path, asking, SAY_HI) == (403, "cross_origin")
            assert gateway.control.told == []
            assert gateway.broker.leases == []


async def test_our_own_page_may() -> None:
    """The browser says the address that the page came from, which is the one that is asked."""
    async with running_gateway(PlayedEngine(stream(CHAT)), access=access_of()) as gateway:
        headers = {"Origin": gateway.url, "Sec-Fetch-Site": "same-origin"}
        assert await chat(gateway, headers) == (200, None)


async def test_a_named_page_asks_first_then_sends_and_reads() -> None:
    """The preflight needs no token; answers, streams and refusals carry the header that lets the page read them."""
    page = "https://chat.example.org"
    access = access_of(USER, cors_origins=(page,))
    asks = {"Origin": page, "Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization"}
    async with running_gateway(PlayedEngine(stream(CHAT)), access=access) as gateway:
        async with gateway.client.options("/v1/chat/completions", headers=asks) as answer:
            assert answer.status == 204
            assert answer.headers["Access-Control-Allow-Origin"] == page
            assert answer.headers["Access-Control-Allow-Headers"] == "authorization"
        for body in (SAY_HI, SAY_HI | {"stream": True}, {"model": "gone"}):
            headers = {"Origin": page, "Sec-Fetch-Site": "cross-site", **bearer("user")}
            async with gateway.client.post("/v1/chat/completions", json=body, headers=headers) as answer:
                await answer.read()
                assert answer.status == (200 if "messages" in body else 400)
                assert answer.headers.getall("Access-Control-Allow-Origin") == [page]
        async with gateway.client.get("/v1/models", headers={"Origin": page}) as answer:
            assert (answer.status, answer.headers["Access-Control-Allow-Origin"]) == (401, page)
        other = {**asks, "Origin": "https://evil.example"}
        async with gateway.client.options("/v1/chat/completions", headers=other) as answer:
            assert answer.status == 401
            assert not [name for name in answer.headers if name.lower().startswith("access-control")]


async def test_headers_that_are_too_long_are_refused() -> None:
    """Nothing of theirs is kept, and the daemon goes on."""
    async with running_gateway(PlayedEngine(stream(CHAT)), access=ALL) as gateway:
        async with gateway.client.get("/v1/models", headers={"x-api-key": "k" * 9000}) as answer:
            assert answer.status == 400
        async with gateway.client.get("/v1/models?" + "q" * 9000, headers=bearer("user")) as answer:
            assert answer.status == 400
        assert await asked(gateway, "GET", "/v1/models", bearer("user")) == (200, None)


async def test_the_longest_body_is_a_setting() -> None:
    """One byte more is a 413 that says the limit."""
    async with running_gateway(PlayedEngine(stream(CHAT)), body_limit=2048) as gateway:
        headers = {"Content-Type": "application/json"}
        body = orjson.dumps(SAY_HI)
        for size, status in ((2048, 200), (2049, 413)):
            sent = body + b" " * (size - len(body))
            async with gateway.client.post("/v1/chat/completions", data=sent, headers=headers) as answer:
                assert answer.status == status
                assert status == 200 or "2.0 KiB" in (await answer.json())["error"]["message"]


def test_the_access_of_a_config(tmp_path: Path) -> None:
    """Rules and callers; every token is told to the redactor."""
    (tmp_path / "t").write_text("0123456789abcdef")
    callers = (CallerConfig(name="a", token_file=tmp_path / "t"),)
    hidden: list[str] = []
    access = read_access(Config(auth=AuthConfig(callers=callers)), hidden.append)
    assert [credential.caller.name for credential in access.credentials] == ["a"]
    assert access.site.names == frozenset({"localhost", "127.0.0.1", "::1"})
    assert hidden == ["0123456789abcdef"]


def test_a_reload_never_opens_an_address_that_others_reach() -> None:
    """Prevents: a file with loopback and no callers is good; with the address of the start it would let everybody in.

    The address changes at a restart only, the callers at once: the mixture is judged anew.
    """
    mixture = Config(listen=ListenConfig(host="0.0.0.0"), auth=AuthConfig())
    with pytest.raises(ConfigError) as caught:
        read_access(mixture, lambda _token: None)
    assert caught.value.code == "config_invalid"
    assert "auth.callers" in caught.value.message
    assert read_access(Config(listen=ListenConfig(host="0.0.0.0"), auth=AuthConfig(open=True)), print) == Access(Site())


async def test_a_request_without_http_host_is_none_of_a_browser() -> None:
    """HTTP/1.0 without a Host is refused, except for health, which simple probes ask that way."""
    async with running_gateway(PlayedEngine(stream(CHAT)), access=access_of()) as gateway:
        for path, status in ((b"/v1/models", b"403"), (b"/healthz", b"200")):
            reader, writer = await asyncio.open_connection("127.0.0.1", int(gateway.url.rsplit(":", 1)[1]))
            writer.write(b"GET " + path + b" HTTP/1.0\r\n\r\n")
            assert (await reader.readline()).split()[1] == status
            writer.close()
            await writer.wait_closed()
