"""An engine that dies under its requests: every client is told, nothing hangs, and a fresh engine takes over."""

from __future__ import annotations

import os
import signal
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.support.daemon import Daemon, daemon_config, running_daemon_sync
from tests.support.fake_engine import fake_build, tiny_model
from tests.wire.asking import CHAT, EMBEDDINGS, LOG_ALL, ask, asking, chat_body, endless, instance, launches, status
from tests.wire.beside import busy_slots, until


def kill(daemon: Daemon, model: str) -> None:
    """SIGKILL the model's engine, as an owner or the kernel would."""
    os.kill(instance(daemon, model)["pid"], signal.SIGKILL)


def config_of(folder: Path, **faults: Any) -> dict[str, Any]:
    """A config of the model ``m``, whose engine is slow enough to be killed in mid-answer."""
    models = {
        "m": {"file": str(tiny_model(folder, **({"chunk_delay": 0.02} | faults))), "serves": ["chat", "embeddings"]}
    }
    return daemon_config(fake_build(folder), models=models)


def test_in_mid_stream(tmp_path: Path) -> None:
    """The stream ends with one error event and no [DONE]; the next request, at once, is served by a fresh launch."""
    with running_daemon_sync(tmp_path, config_of(tmp_path), env=LOG_ALL) as daemon:
        with asking(daemon, endless("m"), id="killed") as request:
            assert request.next_text()
            assert request.response.status == 200
            kill(daemon, "m")
            rest = request.answer().events
            after = ask(daemon, CHAT, chat_body("m"))
        assert rest[-1]["error"]["code"] == "upstream_died"
        assert "[DONE]" not in rest
        assert sum("error" in event for event in rest) == 1
        assert after.status == 200, after.body
        assert instance(daemon, "m")["generation"] == len(launches(daemon, "m")) == 2
        exited = daemon.wait_for_event("launch_exited")
        assert (exited["phase"], exited["signal"], exited["planned"]) == ("ready", 9, False)
        assert daemon.wait_for_event("request_finished", request_id="killed")["outcome"] == "upstream_died"


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_before_the_first_content(tmp_path: Path, stream: bool) -> None:
    """Killed in the prefill, after its header and progress: nothing was said, so the next launch answers, once."""
    with running_daemon_sync(tmp_path, config_of(tmp_path, prefill_delay=30, once=True), env=LOG_ALL) as daemon:
        with asking(daemon, chat_body("m", stream=stream), id="killed") as request:
            daemon.wait_for_event("request_leased", request_id="killed")
            until(lambda: busy_slots(instance(daemon, "m")["pid"]) == 1)
            kill(daemon, "m")
            answer = request.answer()
        assert answer.status == 200, answer.body
        row = instance(daemon, "m")
        assert (row["generation"], row["leases"]) == (2, 0)
        assert not row["last_exit"]["blamed_on_request"]
        assert daemon.wait_for_event("request_finished", request_id="killed")["outcome"] == "ok"


def test_before_the_first_content_with_progress_already_sent(tmp_path: Path) -> None:
    """A client that asked for progress has its 200 and reports by then: still no content, so it is asked again."""
    with running_daemon_sync(tmp_path, config_of(tmp_path, prefill_delay=30, once=True), env=LOG_ALL) as daemon:
        with asking(daemon, chat_body("m", stream=True, return_progress=True), id="killed") as request:
            assert "prompt_progress" in request.next_event()
            kill(daemon, "m")
            events = request.answer().events
        assert events[-1] == "[DONE]"
        assert any(event["choices"][0]["delta"].get("content") for event in events[:-1] if event["choices"])
        assert instance(daemon, "m")["generation"] == 2


def test_several_before_their_first_content_find_the_one_that_kills(tmp_path: Path) -> None:
    """Asked again one at a time, only the poisonous request meets a second crash; the others are answered."""
    config = config_of(tmp_path, poison="arsenic", prefill_delay=0.7)
    config["models"]["m"]["launch"] = {"slots": 4}
    with running_daemon_sync(tmp_path, config, env=LOG_ALL) as daemon, ExitStack() as clients:
        assert ask(daemon, "/admin/v1/models/m/load", b"").status == 200
        texts = ["a", "b", "c", "arsenic"]
        asked = [clients.enter_context(asking(daemon, chat_body("m", text), id=text)) for text in texts[:3]]
        until(lambda: busy_slots(instance(daemon, "m")["pid"]) == 3)
        asked.append(clients.enter_context(asking(daemon, chat_body("m", texts[3]), id=texts[3])))
        answers = {request.id: request.answer() for request in asked}
        assert {text: answer.status for text, answer in answers.items()} == dict(
            zip(texts, [200, 200, 200, 422], strict=True)
        )
        assert answers["arsenic"].error["code"] == "request_crashes_engine"
        assert instance(daemon, "m")["last_exit"]["blamed_on_request"]
        assert len(launches(daemon, "m")) == 2
        blamed = daemon.wait_for_event("crash_blamed_on_request")
        assert blamed["launches"] == sorted(row["launch"] for row in launches(daemon, "m"))


def test_under_many_requests(tmp_path: Path) -> None:
    """All requests of the dead engine end with an error, those that waited are served by the next launch."""
    config = config_of(tmp_path)
    with running_daemon_sync(tmp_path, config, env=LOG_ALL) as daemon, ExitStack() as clients:
        assert ask(daemon, CHAT, chat_body("m")).status == 200
        slots = instance(daemon, "m")["slots"]
        running = [clients.enter_context(asking(daemon, endless("m"), id=f"run-{n}")) for n in range(slots)]
        for request in running:
            request.next_text()
        queued = [clients.enter_context(asking(daemon, chat_body("m"), id=f"wait-{n}")) for n in range(3)]
        for request in queued:
            daemon.wait_for_event("request_queued", request_id=request.id)
        kill(daemon, "m")
        assert [request.answer().events[-1]["error"]["code"] for request in running] == ["upstream_died"] * slots
        answers = [request.answer() for request in queued]
        assert [answer.status for answer in answers] == [200] * 3
        assert all(int(answer.headers["x-enginehouse-load-ms"]) > 0 for answer in answers)
        row = instance(daemon, "m")
        assert (row["generation"], row["leases"]) == (2, 0)
        assert status(daemon)["queue"]["waiting"] == 0


def test_embedding(tmp_path: Path) -> None:
    """An engine that dies under an embedding had said nothing yet: the next launch answers it, once."""
    with running_daemon_sync(tmp_path, config_of(tmp_path, prefill_delay=30, once=True), env=LOG_ALL) as daemon:
        with asking(daemon, {"model": "m", "input": "a"}, id="killed", path=EMBEDDINGS) as request:
            daemon.wait_for_event("request_leased", request_id="killed")
            until(lambda: busy_slots(instance(daemon, "m")["pid"]) == 1)
            kill(daemon, "m")
            answer = request.answer()
        assert answer.status == 200, answer.body
        row = instance(daemon, "m")
        assert (row["generation"], row["leases"]) == (2, 0)


def test_while_idle(tmp_path: Path) -> None:
    """An engine that dies with nobody waiting is not started again until someone asks; that one gets an answer."""
    with running_daemon_sync(tmp_path, config_of(tmp_path), env=LOG_ALL) as daemon:
        assert ask(daemon, CHAT, chat_body("m")).status == 200
        kill(daemon, "m")
        daemon.wait_for_event("instance_changed", new="stopped")
        assert daemon.engines() == []
        assert instance(daemon, "m")["last_exit"]["signal"] == 9
        assert ask(daemon, CHAT, chat_body("m")).status == 200
        assert instance(daemon, "m")["generation"] == 2


def test_right_before_a_request(tmp_path: Path) -> None:
    """A request that comes before the daemon knows of the death is served by the next launch: nothing was said yet."""
    config = {**config_of(tmp_path), "supervision": {"restart": {"initial": "50ms", "max": "50ms", "budget": 20}}}
    with running_daemon_sync(tmp_path, config, env=LOG_ALL) as daemon:
        for generation in range(1, 6):
            answer = ask(daemon, CHAT, chat_body("m"))
            assert answer.status == 200, answer.body
            assert instance(daemon, "m")["generation"] == generation
            kill(daemon, "m")


def test_a_request_that_crashes_it_again_and_again(tmp_path: Path) -> None:
    """After two crashes the body is refused with 422, without a launch; others are served, and no budget is spent."""
    restart = {"restart": {"initial": "50ms", "max": "50ms", "budget": 1}}
    config = {**config_of(tmp_path, poison="arsenic"), "supervision": restart}
    with running_daemon_sync(tmp_path, config) as daemon:
        for stream in (False, True):
            for _ in range(2):
                answer = ask(daemon, CHAT, chat_body("m", "arsenic", stream=stream))
                assert (answer.status, answer.error["code"]) == (422, "request_crashes_engine")
                assert "Retry-After" not in answer.headers
        assert len(launches(daemon, "m")) == 4
        answer = ask(daemon, CHAT, chat_body("m", "something else"))
        assert answer.status == 200, answer.body
        assert instance(daemon, "m")["last_exit"]["blamed_on_request"]


def test_that_crashes_under_every_request(tmp_path: Path) -> None:
    """An engine that dies under whatever it is asked is to blame itself: it is not restarted for ever."""
    models = {"m": {"file": str(tiny_model(tmp_path, die="prefill", signal="SIGSEGV"))}}
    # The build's own strikes are not what this is about.
    limits = {"restart": {"initial": "50ms", "max": "50ms", "budget": 2}, "quarantine": {"strikes": 100}}
    config = daemon_config(fake_build(tmp_path), models=models, supervision=limits)
    with running_daemon_sync(tmp_path, config) as daemon:
        answers = [ask(daemon, CHAT, chat_body("m", f"number {number}")) for number in range(6)]
        codes = [answer.error["code"] for answer in answers]
        assert codes == ["request_crashes_engine"] * 2 + ["upstream_died"] + ["instance_failed"] * 3
        assert [answer.status for answer in answers] == [422, 422, 502, 503, 503, 503]
        assert "signal 11" in answers[-1].error["message"]
        assert len(launches(daemon, "m")) == 7


def test_of_one_model_leaves_the_others_alone(tmp_path: Path) -> None:
    """Another model's stream goes on while an engine dies beside it."""
    models = {name: {"file": str(tiny_model(tmp_path, f"{name}.gguf", chunk_delay=0.02))} for name in ("a", "b")}
    with (
        running_daemon_sync(tmp_path, daemon_config(fake_build(tmp_path), models=models), env=LOG_ALL) as daemon,
        asking(daemon, endless("a"), id="a") as dying,
        asking(daemon, endless("b"), id="b") as living,
    ):
        assert dying.next_text()
        assert living.next_text()
        kill(daemon, "a")
        assert dying.answer().events[-1]["error"]["code"] == "upstream_died"
        for _ in range(5):
            assert living.next_text()
