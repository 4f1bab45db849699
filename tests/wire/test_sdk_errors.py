"""What goes wrong reaches an application as the openai SDK's own typed errors, with a reason that helps."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import openai
import pytest

from tests.support.daemon import Daemon, daemon_config, running_daemon_sync
from tests.support.fake_engine import fake_build, tiny_model
from tests.wire.asking import (
    LOG_ALL,
    ask,
    asking,
    async_sdk,
    endless,
    instance,
    launches,
    said,
    sdk,
    unloaded_after,
    waiting,
)


@pytest.fixture(scope="module")
def narrow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """A daemon with a short queue and little patience, over one engine with one slot."""
    folder = tmp_path_factory.mktemp("narrow")
    models = {"m": {"file": str(tiny_model(folder, chunk_delay=0.02)), "launch": {"slots": 1}}}
    broker = {"queue": {"per_caller": 2, "total": 2, "max_wait": "1s"}}
    config = daemon_config(fake_build(folder), models=models, broker=broker)
    with running_daemon_sync(folder, config, env=LOG_ALL) as daemon:
        assert ask(daemon, "/admin/v1/models/m/load", b"").status == 200
        yield daemon


def test_unknown_model(shared: Daemon) -> None:
    """A name that no model has is a NotFoundError that names the nearest one, whatever was asked."""
    with sdk(shared) as client:
        calls: list[Any] = [
            lambda: client.chat.completions.create(model="quik", messages=said("a")),
            lambda: client.chat.completions.create(model="quik", messages=said("a"), stream=True),
            lambda: client.completions.create(model="quik", prompt="a"),
            lambda: client.embeddings.create(model="quik", input="a"),
            lambda: client.models.retrieve("quik"),
        ]
        for call in calls:
            with pytest.raises(openai.NotFoundError) as caught:
                call()
            assert caught.value.code == "model_not_found"
            assert "'quick'" in caught.value.message


async def test_unknown_model_async(shared: Daemon) -> None:
    """The async client gets a NotFoundError as well."""
    async with async_sdk(shared) as client:
        with pytest.raises(openai.NotFoundError):
            await client.chat.completions.create(model="nothing", messages=said("a"))


@pytest.mark.parametrize("stream", [False, True])
def test_bad_body(shared: Daemon, stream: bool) -> None:
    """A body that can't be right is a BadRequestError that names the parameter; a stream is not begun for it."""
    with sdk(shared) as client, pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model="quick", messages=[], stream=stream)
    assert (caught.value.code, caught.value.param) == ("invalid_request", "messages")


def test_what_the_engine_refuses(shared: Daemon) -> None:
    """The engine's refusal of a request too long for it keeps its status and words, under OpenAI's code for it."""
    with sdk(shared) as client, pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model="quick", messages=said("word " * 70_000))
    assert caught.value.code == "context_length_exceeded"
    assert "exceeds the available context size" in caught.value.message


def test_what_the_model_does_not_serve(shared: Daemon) -> None:
    """Embeddings of a model that only chats are a BadRequestError, before any engine is asked."""
    with sdk(shared) as client, pytest.raises(openai.BadRequestError) as caught:
        client.embeddings.create(model="chat-only", input="a")
    assert caught.value.code == "capability_not_served"
    assert "serves chat" in caught.value.message


def test_url_for_an_image(shared: Daemon) -> None:
    """An image that would have to be fetched is a BadRequestError."""
    content: Any = [{"type": "image_url", "image_url": {"url": "https://example.com/a.png"}}]
    with sdk(shared) as client, pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model="quick", messages=[{"role": "user", "content": content}])
    assert caught.value.code == "url_refused"


def test_queue_full(narrow: Daemon) -> None:
    """Beyond the queue's limit a request is a RateLimitError at once, with a Retry-After of at most a minute."""
    with ExitStack() as clients, sdk(narrow) as client:
        running = clients.enter_context(asking(narrow, endless("m"), id="full-running"))
        running.next_text()
        for id_ in ("full-second", "full-third"):
            clients.enter_context(asking(narrow, endless("m"), id=id_))
            narrow.wait_for_event("request_queued", request_id=id_)
        with pytest.raises(openai.RateLimitError) as caught:
            client.chat.completions.create(model="m", messages=said("a"))
    assert caught.value.code == "queue_full"
    assert "2 requests wait" in caught.value.message
    assert 1 <= int(caught.value.response.headers["retry-after"]) <= 60


def test_waited_too_long(narrow: Daemon) -> None:
    """A request that gets no slot within the longest wait is a 503 that says for how long it waited."""
    with asking(narrow, endless("m"), id="slot-holder") as running, sdk(narrow) as client:
        running.next_text()
        began = time.monotonic()
        with pytest.raises(openai.InternalServerError) as caught:
            client.chat.completions.create(model="m", messages=said("a"))
        assert time.monotonic() - began >= 0.9
    assert (caught.value.status_code, caught.value.code) == (503, "queue_timeout")
    assert "waited 1 s" in caught.value.message
    assert int(caught.value.response.headers["retry-after"]) <= 60
    assert waiting(narrow) == []


def test_the_clients_own_time_out(narrow: Daemon) -> None:
    """When the SDK's time-out strikes, the request leaves no trace: its slot serves the next one."""
    with sdk(narrow, timeout=0.5) as client, pytest.raises(openai.APITimeoutError):
        client.chat.completions.create(
            model="m",
            messages=said("a"),
            max_tokens=100_000,
            extra_body={"ignore_eos": True},
            extra_headers={"x-request-id": "impatient"},
        )
    assert narrow.wait_for_event("request_finished", request_id="impatient", timeout=5)["outcome"] == "client_left"
    with sdk(narrow) as client:
        assert client.chat.completions.create(model="m", messages=said("a")).choices[0].message.content


async def test_a_cancelled_task_frees_its_slot(narrow: Daemon) -> None:
    """An application that stops reading its stream half-way gets the next answer from the same single slot."""
    body: Any = {"model": "m", "messages": said("a"), "max_tokens": 100_000, "extra_body": {"ignore_eos": True}}
    async with async_sdk(narrow) as client:
        async with await client.chat.completions.create(**body, stream=True) as stream:
            async for chunk in stream:
                if chunk.choices[0].delta.content:
                    break
        answer = await client.chat.completions.create(model="m", messages=said("a"))
    assert answer.choices[0].message.content == "You said: a"


def test_start_failure(shared: Daemon) -> None:
    """A model whose engine exits while it loads is a 503 with the reason, after the configured tries and no more."""
    with sdk(shared) as client, pytest.raises(openai.APIStatusError) as caught:
        client.chat.completions.create(model="never-ready", messages=said("a"))
    assert (caught.value.status_code, caught.value.code) == (503, "start_failed")
    assert "never-ready did not start (exit code 1)" in caught.value.message
    assert int(caught.value.response.headers["retry-after"]) <= 60
    assert len(launches(shared, "never-ready")) == 2
    row = instance(shared, "never-ready")
    assert (row["state"], row["last_exit"]["phase"], row["last_exit"]["code"]) == ("failed", "starting", 1)


def test_start_that_stands_still(tmp_path: Path) -> None:
    """A load without any progress is given up after the stall time-out, with a 504 that says so."""
    models = {"stuck": {"file": str(tiny_model(tmp_path, hang="load", load_log=False))}}
    supervision = {"readiness": {"stall_timeout": "1s"}, "restart": {"budget": 0}, "stop": {"grace": "1s"}}
    config = daemon_config(fake_build(tmp_path), models=models, supervision=supervision)
    with running_daemon_sync(tmp_path, config) as daemon, sdk(daemon) as client:
        with pytest.raises(openai.APIStatusError) as caught:
            client.chat.completions.create(model="stuck", messages=said("a"))
        assert (caught.value.status_code, caught.value.code) == (504, "start_stalled")
        assert daemon.engines() == []


@pytest.mark.parametrize("model", ["failing", "cutting"])
def test_error_in_mid_stream(shared: Daemon, model: str) -> None:
    """A stream that the engine ends with an error, or just cuts, raises APIError after the pieces that came."""
    pieces: list[str] = []

    def read(client: openai.OpenAI) -> None:
        with client.chat.completions.create(model=model, messages=said("a b c"), stream=True) as stream:
            pieces.extend(chunk.choices[0].delta.content or "" for chunk in stream)

    with sdk(shared) as client, pytest.raises(openai.APIError) as caught:
        read(client)
    assert "".join(pieces) == "You said:"
    assert not isinstance(caught.value, openai.APIStatusError)
    assert f"The engine of {model}" in caught.value.message


async def test_error_in_mid_stream_async(shared: Daemon) -> None:
    """The async client raises APIError as well."""
    async with async_sdk(shared) as client:
        stream = await client.chat.completions.create(model="cutting", messages=said("a b c"), stream=True)
        async with stream:
            with pytest.raises(openai.APIError):
                [chunk async for chunk in stream]


@pytest.mark.parametrize("model", ["failing", "cutting"])
def test_error_in_an_answer_that_is_not_streamed(shared: Daemon, model: str) -> None:
    """Half an answer is none: a client that asked for no stream gets a 502, and may ask again after a moment."""
    with sdk(shared) as client, pytest.raises(openai.InternalServerError) as caught:
        client.chat.completions.create(model=model, messages=said("a b c"))
    assert (caught.value.status_code, caught.value.code) == (502, "upstream_died")
    assert caught.value.response.headers["retry-after"] == "1"


def test_retries_of_the_sdk_reach_a_fresh_engine(shared: Daemon) -> None:
    """An SDK with retries, as it comes, does not notice an engine that dies under its first try."""
    with sdk(shared, retries=2) as client, unloaded_after(shared, "dying-once"):
        answer = client.chat.completions.create(model="dying-once", messages=said("a"))
        assert answer.choices[0].message.content == "You said: a"
        assert instance(shared, "dying-once")["generation"] == 2
