"""A client that leaves frees what it held, in whatever phase of its request it leaves."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.support.daemon import Daemon, daemon_config, running_daemon_sync
from tests.support.fake_engine import fake_build, tiny_model
from tests.wire.asking import (
    CHAT,
    EMBEDDINGS,
    LOG_ALL,
    TEXT,
    Request,
    ask,
    asking,
    chat_body,
    endless,
    instance,
    launches,
    waiting,
)

# What the daemon promises: in decode the slot is idle this soon after its client left.
PROMISED_SECONDS = 1.0
PREFILL_SECONDS = 0.5
EMBED_SECONDS = 1.0


@pytest.fixture(scope="module")
def single(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """A daemon whose engines have one slot each, and a queue for two."""
    folder = tmp_path_factory.mktemp("single")
    one_slot = {"slots": 1}
    models = {
        "decoding": {"file": str(tiny_model(folder, "d.gguf", chunk_delay=0.02)), "launch": one_slot},
        "reading": {
            "file": str(tiny_model(folder, "r.gguf", prefill_delay=PREFILL_SECONDS)),
            "launch": {**one_slot, "ctx_size": 8192},
        },
        "embedding": {
            "file": str(tiny_model(folder, "e.gguf", prefill_delay=EMBED_SECONDS)),
            "serves": ["embeddings"],
            "launch": one_slot,
        },
    }
    broker = {"queue": {"per_caller": 2, "total": 2}}
    config = daemon_config(fake_build(folder), models=models, broker=broker)
    with running_daemon_sync(folder, config, env=LOG_ALL) as daemon:
        for model in models:
            assert ask(daemon, f"/admin/v1/models/{model}/load", b"").status == 200
        yield daemon


def left(daemon: Daemon, id_: str) -> None:
    """Wait until the daemon has seen that the client of this request left, and hold that it says so."""
    assert (
        daemon.wait_for_event("request_finished", request_id=id_, timeout=PROMISED_SECONDS)["outcome"] == "client_left"
    )


def test_in_the_queue(single: Daemon) -> None:
    """Who leaves while queued is out of the queue at once, everyone behind moves up, and the place can be taken."""
    with ExitStack() as clients:

        def queued(id_: str) -> Request:
            request = clients.enter_context(asking(single, chat_body("decoding"), id=id_))
            single.wait_for_event("request_queued", request_id=id_)
            return request

        running = clients.enter_context(asking(single, endless("decoding"), id="q-running"))
        running.next_text()
        leaving, behind = queued("q-leaving"), queued("q-behind")
        assert waiting(single) == [leaving.id, behind.id]
        assert ask(single, CHAT, chat_body("decoding")).status == 429
        leaving.leave()
        left(single, leaving.id)
        assert waiting(single) == [behind.id]
        new = queued("q-new")
        assert waiting(single) == [behind.id, new.id]
        assert running.next_text()
        running.leave()
        assert behind.answer().status == new.answer().status == 200
    assert waiting(single) == []


def test_while_the_model_loads(tmp_path: Path) -> None:
    """Who leaves during the load frees its place at once; a load that nobody waits for is stopped, another goes on."""
    model = tiny_model(tmp_path, load_seconds=1.5)
    config = daemon_config(fake_build(tmp_path), models={"m": {"file": str(model)}})
    with running_daemon_sync(tmp_path, config, env=LOG_ALL) as daemon:
        with asking(daemon, chat_body("m"), id="l-leaving") as leaving:
            daemon.wait_for_event("launch_started")
            with asking(daemon, chat_body("m"), id="l-staying") as staying:
                daemon.wait_for_event("request_queued", request_id=staying.id)
                leaving.leave()
                left(daemon, leaving.id)
                assert waiting(daemon) == [staying.id]
                assert staying.answer().status == 200
        assert (instance(daemon, "m")["generation"], len(launches(daemon, "m"))) == (1, 1)
        assert ask(daemon, "/admin/v1/models/m/unload", b"").status == 200
        with asking(daemon, chat_body("m"), id="l-last") as last:
            daemon.wait_for_event("launch_started", generation=2)
            last.leave()
            left(daemon, last.id)
        daemon.wait_for_event("instance_changed", new="stopped", generation=2)
        assert waiting(daemon) == []
        assert ask(daemon, CHAT, chat_body("m")).status == 200


@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
def test_in_decode(single: Daemon, stream: bool) -> None:
    """Who leaves in mid-answer, streamed or not, frees the engine's slot within a second: the next one gets it."""
    run = f"decode-{stream}"
    with asking(single, {**endless("decoding"), "stream": stream}, id=f"{run}-leaving") as leaving:
        if stream:
            leaving.next_text()
        else:
            single.wait_for_event("request_leased", request_id=leaving.id)
        with asking(single, chat_body("decoding"), id=f"{run}-next") as following:
            single.wait_for_event("request_queued", request_id=following.id)
            gone = time.monotonic()
            leaving.leave()
            single.wait_for_event("request_leased", request_id=following.id, timeout=10)
            assert time.monotonic() - gone <= PROMISED_SECONDS
            left(single, leaving.id)
            assert following.answer().status == 200
    assert instance(single, "decoding")["leases"] == 0


@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
def test_in_prefill(single: Daemon, stream: bool) -> None:
    """Who leaves while the prompt is read frees the slot after the batch at hand, long before the prompt's end."""
    run = f"prefill-{stream}"
    body = chat_body("reading", "word " * 5000, max_tokens=4, stream=stream)
    batch = int(argument(single, "reading", "--batch-size"))
    with asking(single, body, id=f"{run}-leaving") as leaving:
        single.wait_for_event("request_leased", request_id=leaving.id)
        with asking(single, chat_body("reading", max_tokens=1), id=f"{run}-next") as following:
            single.wait_for_event("request_queued", request_id=following.id)
            gone = time.monotonic()
            leaving.leave()
            single.wait_for_event("request_leased", request_id=following.id)
            waited = time.monotonic() - gone
            assert waited <= PREFILL_SECONDS + PROMISED_SECONDS < PREFILL_SECONDS * (5000 // batch) / 2
            left(single, leaving.id)
            assert following.answer().status == 200


def test_in_work_that_engines_do_not_stop(single: Daemon) -> None:
    """llama-server does not notice that the client of an embedding left: its slot is given away when it is idle."""
    body = {"model": "embedding", "input": "a"}
    with asking(single, body, id="embed-leaving", path=EMBEDDINGS) as leaving:
        leased = time.monotonic()
        single.wait_for_event("request_leased", request_id=leaving.id)
        with asking(single, body, id="embed-next", path=EMBEDDINGS) as following:
            single.wait_for_event("request_queued", request_id=following.id)
            leaving.leave()
            left(single, leaving.id)
            assert instance(single, "embedding")["leases"] == 1
            single.wait_for_event("request_leased", request_id=following.id)
            assert time.monotonic() - leased >= EMBED_SECONDS * 0.9
            assert following.answer().status == 200


def test_a_text_completion(single: Daemon) -> None:
    """Text completions are watched like chats."""
    body = {"model": "decoding", "prompt": "a", "stream": True, "ignore_eos": True, "max_tokens": 100_000}
    with asking(single, body, id="text-leaving", path=TEXT) as leaving:
        assert leaving.next_event()
        leaving.leave()
        left(single, leaving.id)
    assert ask(single, TEXT, {"model": "decoding", "prompt": "a"}).status == 200


def argument(daemon: Daemon, model: str, flag: str) -> str:
    """The value of a flag with which the model's engine was started."""
    argv = instance(daemon, model)["plan"]["argv"]
    return str(argv[argv.index(flag) + 1])
