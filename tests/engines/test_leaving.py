"""A client of the real engine that leaves: the slot is idle as soon as the engine can know."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.engines.conftest import config_for, load
from tests.support.daemon import Daemon, running_daemon_sync
from tests.support.demo import DemoEngine
from tests.wire.asking import LOG_ALL, asking, chat_body, instance
from tests.wire.beside import busy_slots, until

pytestmark = [pytest.mark.engine, pytest.mark.timeout(180)]

# What the daemon promises beyond the batch that can't be cut.
PROMISED_SECONDS = 1.0
PROMPT_WORDS = 1900


@pytest.fixture(scope="module")
def narrow(tmp_path_factory: pytest.TempPathFactory, demo_engine: DemoEngine, demo_model: Path) -> Iterator[Daemon]:
    """A daemon over one real engine with one slot, which only chats: its batch is the daemon's own choice for that."""
    folder = tmp_path_factory.mktemp("narrow")
    with running_daemon_sync(folder, config_for(demo_engine, demo_model, slots=1), env=LOG_ALL) as daemon:
        load(daemon, "chat")
        yield daemon


@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
def test_in_decode(narrow: Daemon, stream: bool) -> None:
    """In mid-answer, streamed or not, the engine's slot is idle within a second, and the next request gets it."""
    pid = instance(narrow, "chat")["pid"]
    run = f"decode-{stream}"
    body = chat_body("chat", "Tell me a long story.", stream=stream, ignore_eos=True, max_tokens=1900)
    with asking(narrow, body, id=f"{run}-leaving") as leaving:
        if stream:
            for _ in range(3):
                leaving.next_text()
        else:
            until(lambda: busy_slots(pid) == 1)
        with asking(narrow, chat_body("chat", max_tokens=1), id=f"{run}-next") as following:
            narrow.wait_for_event("request_queued", request_id=following.id)
            gone = time.monotonic()
            leaving.leave()
            narrow.wait_for_event("request_leased", request_id=following.id, timeout=30)
            assert time.monotonic() - gone <= PROMISED_SECONDS
            assert following.answer().status == 200
    until(lambda: busy_slots(pid) == 0, PROMISED_SECONDS)
    assert instance(narrow, "chat")["leases"] == 0


def test_in_prefill(narrow: Daemon) -> None:
    """While a prompt of two thousand tokens is read, the slot is idle one batch and a second later at the most."""
    argv = instance(narrow, "chat")["plan"]["argv"]
    batch = int(argv[argv.index("--batch-size") + 1])
    body = chat_body("chat", "word " * PROMPT_WORDS, stream=True, return_progress=True, max_tokens=1)
    with asking(narrow, body, id="prefill-leaving") as leaving:
        reports = [leaving.next_event()["prompt_progress"] for _ in range(3)]
        assert reports[-1]["total"] > PROMPT_WORDS
        assert reports[-1]["processed"] < reports[-1]["total"] / 2, "the prompt is too short to be left in its middle"
        # As this machine is at the moment; later batches look back at more tokens and take a little longer.
        one_batch = 1.5 * (reports[-1]["time_ms"] - reports[-2]["time_ms"]) / 1000
        assert reports[-1]["processed"] - reports[-2]["processed"] <= batch
        with asking(narrow, chat_body("chat", max_tokens=1), id="prefill-next") as following:
            narrow.wait_for_event("request_queued", request_id=following.id)
            gone = time.monotonic()
            leaving.leave()
            narrow.wait_for_event("request_leased", request_id=following.id, timeout=120)
            assert time.monotonic() - gone <= one_batch + PROMISED_SECONDS
            assert following.answer().status == 200


def test_in_the_prefill_of_a_whole_answer(narrow: Daemon) -> None:
    """A client that asked for no stream is noticed in the prefill too: its prompt is not read to the end."""
    pid = instance(narrow, "chat")["pid"]
    body = chat_body("chat", "other " * PROMPT_WORDS, max_tokens=1)
    with asking(narrow, body, id="whole-leaving") as leaving:
        until(lambda: busy_slots(pid) == 1)
        leaving.leave()
        assert narrow.wait_for_event("request_finished", request_id=leaving.id)["outcome"] == "client_left"
    until(lambda: busy_slots(pid) == 0, 60)
    until(lambda: instance(narrow, "chat")["leases"] == 0, PROMISED_SECONDS)
