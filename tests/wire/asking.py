"""How the wire tests ask: with the real openai SDK, and by hand where a client must misbehave."""

from __future__ import annotations

import http.client
import json
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import openai

# Loads its parts when they are first used, which takes too long inside an event loop that is being watched.
import openai.resources.chat
import openai.resources.completions
import openai.resources.embeddings
import openai.resources.models

from tests.support.daemon import Daemon

CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"
EMBEDDINGS = "/v1/embeddings"
# Queues and leases are told at debug level.
LOG_ALL = {"ENGINEHOUSE_LOG_LEVEL": "debug"}
LONGEST_ANSWER = 45.0


@contextmanager
def sdk(daemon: Daemon, *, retries: int = 0, **options: Any) -> Iterator[openai.OpenAI]:
    """The SDK as an application would make it, but without retries unless a test is about them."""
    base_url = f"{daemon.base_url}/v1"
    with openai.OpenAI(base_url=base_url, api_key="none", max_retries=retries, **options) as client:
        yield client


@asynccontextmanager
async def async_sdk(daemon: Daemon, *, retries: int = 0, **options: Any) -> AsyncIterator[openai.AsyncOpenAI]:
    """The same for async applications."""
    base_url = f"{daemon.base_url}/v1"
    async with openai.AsyncOpenAI(base_url=base_url, api_key="none", max_retries=retries, **options) as client:
        yield client


def said(text: str) -> list[Any]:
    """A conversation of one message, as the SDK and the wire take it."""
    return [{"role": "user", "content": text}]


def chat_body(model: str, text: str = "hello", **more: Any) -> dict[str, Any]:
    """The body of a chat."""
    return {"model": model, "messages": said(text), **more}


def endless(model: str, **more: Any) -> dict[str, Any]:
    """The body of a chat that a fake engine does not end within a test."""
    return chat_body(model, stream=True, ignore_eos=True, max_tokens=100_000, **more)


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole HTTP answer."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        """The body, parsed."""
        return json.loads(self.body)

    @property
    def error(self) -> dict[str, Any]:
        """The error in the body, which must be OpenAI's form."""
        error: dict[str, Any] = self.json["error"]
        assert {"message", "type", "param", "code"} <= error.keys()
        return error

    @property
    def events(self) -> list[Any]:
        """The events of an event stream, parsed; ``[DONE]`` as it is."""
        return [_payload(line) for line in self.body.decode().splitlines() if line.startswith("data: ")]


class Request:
    """A request that was sent; its client reads the answer when it likes, or leaves.

    Attributes:
        id: its request id, as the daemon's log names it.
    """

    def __init__(self, daemon: Daemon, path: str, body: Any, *, id: str) -> None:  # noqa: A002  as elsewhere
        self.id = id
        self._connection = connect(daemon)
        headers = {"Content-Type": "application/json", "x-request-id": id}
        payload = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        self._connection.request("POST", path, payload, headers)
        self._response: http.client.HTTPResponse | None = None

    @property
    def response(self) -> http.client.HTTPResponse:
        """Status and headers; waits for them."""
        if self._response is None:
            self._response = self._connection.getresponse()
        return self._response

    def answer(self) -> Answer:
        """The whole answer, or what is left of it."""
        response = self.response
        return Answer(response.status, dict(response.headers.items()), response.read())

    def next_event(self) -> Any:
        """The next event of a stream, parsed; ``[DONE]`` as it is. None at the end of the stream."""
        for line in self.response:
            if line.startswith(b"data: "):
                return _payload(line.decode())
        return None

    def next_text(self) -> str:
        """The next piece of text of a streamed chat.

        Raises:
            AssertionError: the stream ended.
        """
        while (event := self.next_event()) is not None:
            delta = event["choices"][0]["delta"] if "choices" in event else {}
            if delta.get("content"):
                return str(delta["content"])
        raise AssertionError("the stream ended without more text")

    def leave(self) -> None:
        """Close the connection; safe to call twice."""
        if self._response is not None:
            self._response.close()
        self._connection.close()


@contextmanager
def asking(daemon: Daemon, body: Any, *, id: str, path: str = CHAT) -> Iterator[Request]:  # noqa: A002  as elsewhere
    """A request whose client leaves at the latest when the block ends."""
    request = Request(daemon, path, body, id=id)
    try:
        yield request
    finally:
        request.leave()


def ask(
    daemon: Daemon,
    path: str,
    body: Any = None,
    *,
    headers: Mapping[str, str] | None = None,
    timeout: float = LONGEST_ANSWER,
) -> Answer:
    """Ask once and read the whole answer; bytes are posted as they are, None makes it a GET."""
    connection = connect(daemon, timeout)
    payload = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
    try:
        sent = {"Content-Type": "application/json", **(headers or {})}
        connection.request("GET" if body is None else "POST", path, payload, sent)
        response = connection.getresponse()
        return Answer(response.status, dict(response.headers.items()), response.read())
    finally:
        connection.close()


@contextmanager
def unloaded_after(daemon: Daemon, model: str) -> Iterator[None]:
    """Stop the model's engine when the block ends, so that the test leaves none behind."""
    try:
        yield
    finally:
        assert ask(daemon, f"/admin/v1/models/{model}/unload", b"").status == 200


def status(daemon: Daemon) -> dict[str, Any]:
    """The document of ``/admin/v1/status``."""
    answer = ask(daemon, "/admin/v1/status")
    assert answer.status == 200
    document: dict[str, Any] = answer.json
    return document


def instance(daemon: Daemon, model: str) -> dict[str, Any]:
    """The model's row of the status."""
    rows = [row for row in status(daemon)["instances"] if row["model"] == model]
    assert len(rows) == 1, rows
    row: dict[str, Any] = rows[0]
    return row


def waiting(daemon: Daemon) -> list[str]:
    """Ids of the requests in the queue, first to last."""
    return [ticket["request_id"] for ticket in status(daemon)["queue"]["tickets"]]


def launches(daemon: Daemon, model: str) -> list[dict[str, Any]]:
    """Every launch of the model that the log tells of."""
    return [row for row in daemon.records if row.get("event") == "launch_started" and row.get("model") == model]


def connect(daemon: Daemon, timeout: float = LONGEST_ANSWER) -> http.client.HTTPConnection:
    """A connection of one's own, for requests that no client library would send."""
    return http.client.HTTPConnection(urlsplit(daemon.base_url).netloc, timeout=timeout)


def _payload(line: str) -> Any:
    data = line.removeprefix("data: ").strip()
    return data if data == "[DONE]" else json.loads(data)
