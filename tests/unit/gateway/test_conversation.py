from __future__ import annotations

import asyncio
import logging

import anyio
import orjson
import pytest

from supervisor.events import RequestUnreadable
from tests.fakes.gateway import PATIENCE_SECONDS, running_gateway
from tests.fakes.played_engine import PlayedEngine, stream

SECRET = b"sk-very-secret"
HEAD = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\n"
UNREADABLE = {
    "garbage": b"\x16\x03\x01\x02\x00\x01\x00\r\n\r\n",
    "no request line": b"hello there\r\n\r\n",
    "an unknown protocol": b"GET / SMTP/9\r\n\r\n",
    "a first line that is too long": b"GET /" + b"x" * 10_000 + b" HTTP/1.1\r\n\r\n",
    "a header that is too long": HEAD + b"Authorization: Bearer " + SECRET * 1000 + b"\r\n\r\n",
    "a header without a name": HEAD + b": " + SECRET + b"\r\n\r\n",
    "two lengths": HEAD + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\n",
    "a length that is none": HEAD + b"Content-Length: many\r\n\r\n",
    "a broken transfer encoding": HEAD + b"Transfer-Encoding: chunked, chunked\r\n\r\n",
}


async def _say(url: str, data: bytes) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", int(url.rsplit(":", 1)[1]))
    writer.write(data)
    try:
        with anyio.fail_after(PATIENCE_SECONDS):
            return await reader.read()
    finally:
        writer.close()
        await writer.wait_closed()


@pytest.mark.parametrize("name", UNREADABLE)
async def test_what_is_no_request_is_refused_in_our_own_form(name: str, caplog: pytest.LogCaptureFixture) -> None:
    """A 400 in JSON, then the end; one event that says why, no traceback, and nothing of what was sent.

    Prevents: plain text from the library, and twenty lines in the log for each port scan.
    """
    with caplog.at_level(logging.DEBUG):
        async with running_gateway(PlayedEngine(stream(b""))) as gateway:
            head, _, body = (await _say(gateway.url, UNREADABLE[name])).partition(b"\r\n\r\n")
            event = await gateway.heard(RequestUnreadable)
    assert head.startswith((b"HTTP/1.1 400 ", b"HTTP/1.0 400 "))
    assert b"application/json" in head
    error = orjson.loads(body)["error"]
    assert (error["code"], error["type"]) == ("invalid_request", "invalid_request_error")
    assert event.reason in error["message"]
    assert event.request_id.encode() in head
    assert event.caller == "127.0.0.1"
    assert SECRET not in body
    assert [record for record in caplog.records if record.exc_info and record.levelno > logging.DEBUG] == []


@pytest.mark.parametrize("encoding", ["zzz", "br", "gzip"])
async def test_a_body_that_can_not_be_decoded_is_a_bad_request(encoding: str) -> None:
    """Whether the encoding is unknown or the bytes are none of it, the client hears it in our form."""
    async with running_gateway(PlayedEngine(stream(b""))) as gateway:
        headers = {"Content-Encoding": encoding, "Content-Type": "application/json"}
        async with gateway.client.post("/v1/chat/completions", data=b"\xff{}", headers=headers) as answer:
            assert answer.status == 400
            assert (await answer.json())["error"]["code"] in {"invalid_request", "invalid_json"}


async def test_only_what_can_not_be_read_closes_the_connection() -> None:
    """A request, another one, then garbage: two answers, a refusal, the end."""
    async with running_gateway(PlayedEngine(stream(b""))) as gateway:
        reader, writer = await asyncio.open_connection("127.0.0.1", int(gateway.url.rsplit(":", 1)[1]))
        for _ in range(2):
            writer.write(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
            assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200 OK")
            await reader.readuntil(b"}")
        writer.write(UNREADABLE["no request line"])
        assert b" 400 Bad Request" in await reader.read()
        writer.close()
        await writer.wait_closed()
