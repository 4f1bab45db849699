"""Starts of engines as clients and owners meet them: shared, failing, hopeless."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import openai
import pytest

from tests.support.daemon import daemon_config, running_daemon_sync
from tests.support.fake_engine import FakeBuild, fake_build, tiny_model
from tests.wire.asking import (
    CHAT,
    EMBEDDINGS,
    LOG_ALL,
    ask,
    asking,
    chat_body,
    instance,
    launches,
    said,
    sdk,
    status,
    waiting,
)

QUICK_RESTARTS = {"restart": {"initial": "50ms", "max": "50ms", "budget": 2}, "stop": {"grace": "1s"}}


def test_first_requests_share_one_start(tmp_path: Path) -> None:
    """Requests that come while a model loads wait for that load: one launch, and each is told how long it waited."""
    model = tiny_model(tmp_path, load_seconds=1.0)
    models = {"m": {"file": str(model), "serves": ["chat", "embeddings"], "launch": {"slots": 2}}}
    with running_daemon_sync(tmp_path, daemon_config(fake_build(tmp_path), models=models), env=LOG_ALL) as daemon:
        with ThreadPoolExecutor(6) as pool:
            asked = [pool.submit(ask, daemon, CHAT, chat_body("m", stream=number % 2 == 0)) for number in range(5)]
            asked.append(pool.submit(ask, daemon, EMBEDDINGS, {"model": "m", "input": "a"}))
            answers = [future.result() for future in asked]
        assert [answer.status for answer in answers] == [200] * 6
        loads = [int(answer.headers["x-enginehouse-load-ms"]) for answer in answers]
        assert min(loads) > 0
        assert max(loads) >= 900
        assert (len(launches(daemon, "m")), instance(daemon, "m")["generation"]) == (1, 1)
        assert len(daemon.engines()) == 1
        after = ask(daemon, CHAT, chat_body("m"))
        assert after.headers["x-enginehouse-load-ms"] == "0"


def test_a_wish_by_hand_and_requests_share_one_start(tmp_path: Path) -> None:
    """A load by hand while a request loads the model waits for the same launch."""
    models = {"m": {"file": str(tiny_model(tmp_path, load_seconds=0.5))}}
    with running_daemon_sync(tmp_path, daemon_config(fake_build(tmp_path), models=models)) as daemon:
        with asking(daemon, chat_body("m"), id="first") as first:
            daemon.wait_for_event("launch_started")
            loaded = ask(daemon, "/admin/v1/models/m/load", b"")
            assert (loaded.status, loaded.json["state"]) == (200, "ready")
            assert first.answer().status == 200
        assert len(launches(daemon, "m")) == 1


def test_two_models_load_at_once(tmp_path: Path) -> None:
    """The load of one model does not hold up another's."""
    slow = {"file": str(tiny_model(tmp_path, "slow.gguf", load_seconds=30))}
    models = {"slow": slow, "quick": {"file": str(tiny_model(tmp_path, "quick.gguf"))}}
    supervision = {"stop": {"grace": "1s"}}
    config = daemon_config(fake_build(tmp_path), models=models, supervision=supervision)
    with running_daemon_sync(tmp_path, config) as daemon, asking(daemon, chat_body("slow"), id="waits"):
        daemon.wait_for_event("launch_started", model="slow")
        assert ask(daemon, CHAT, chat_body("quick")).status == 200
        assert instance(daemon, "slow")["state"] == "starting"


def with_build(folder: Path, build: FakeBuild, **sections: object) -> dict[str, object]:
    """A config of one model on this build."""
    return daemon_config(build, models={"m": {"file": str(tiny_model(folder))}}, **sections)


def test_engine_that_this_cpu_cannot_run(tmp_path: Path) -> None:
    """SIGILL at the start is a 503 with the reason; the same start is not tried again for each request."""
    config = with_build(tmp_path, fake_build(tmp_path, die="start", signal="SIGILL"))
    with running_daemon_sync(tmp_path, config) as daemon:
        answers = [ask(daemon, CHAT, chat_body("m")) for _ in range(3)]
        for answer in answers:
            assert (answer.status, answer.error["code"]) == (503, "build_unusable")
            assert "CPU" in answer.error["message"]
            assert answer.headers["x-should-retry"] == "false"
        assert len(launches(daemon, "m")) == 1
        row = instance(daemon, "m")
        assert (row["state"], row["last_exit"]["signal"]) == ("failed", 4)
        assert row["last_exit"]["kind"] == "INCOMPATIBLE_CPU"
        assert ask(daemon, "/readyz").status == 200


def test_an_sdk_is_not_kept_waiting_for_a_hopeless_start(tmp_path: Path) -> None:
    """An SDK with its usual two retries obeys Retry-After blindly: what no retry can help must not ask for one."""
    config = with_build(tmp_path, fake_build(tmp_path, die="start", signal="SIGILL"))
    with running_daemon_sync(tmp_path, config) as daemon, sdk(daemon, retries=2, timeout=20) as client:
        answer = ask(daemon, CHAT, chat_body("m"))
        assert answer.status == 503
        assert answer.headers.get("x-should-retry") == "false", answer.headers.get("Retry-After")
        began = time.monotonic()
        with pytest.raises(openai.APIStatusError):
            client.chat.completions.create(model="m", messages=said("a"))
        assert time.monotonic() - began < 5


def test_build_that_does_not_even_tell_its_version(tmp_path: Path) -> None:
    """A build that dies of SIGILL whatever it is asked is listed with the reason and never launched."""
    config = with_build(tmp_path, fake_build(tmp_path, die="exec", signal="SIGILL"))
    with running_daemon_sync(tmp_path, config) as daemon:
        reason = daemon.wait_for_event("build_unusable")["reason"]
        answer = ask(daemon, CHAT, chat_body("m"), timeout=5)
        assert (answer.status, answer.error["code"]) == (503, "build_unusable")
        assert reason in answer.error["message"]
        assert answer.headers["x-should-retry"] == "false"
        assert [build["reason"] for build in status(daemon)["builds"]] == [reason]
        assert launches(daemon, "m") == []


def test_the_next_build_takes_over(tmp_path: Path) -> None:
    """A build that can't run here is passed over for the next in order; the plan says why."""
    bad = fake_build(tmp_path, "bad", die="exec", signal="SIGILL")
    models = {"m": {"file": str(tiny_model(tmp_path))}}
    config = daemon_config(bad, fake_build(tmp_path, "good"), models=models)
    with running_daemon_sync(tmp_path, config) as daemon:
        assert ask(daemon, CHAT, chat_body("m")).status == 200
        plan = instance(daemon, "m")["plan"]
        assert plan["build"] == "good"
        assert "bad:" in next(row["reason"] for row in plan["rationale"] if row["choice"] == "build")


def test_a_model_that_does_not_fit(tmp_path: Path) -> None:
    """A model that needs more memory than there may be used is refused with the arithmetic, at once."""
    models = {"m": {"file": str(tiny_model(tmp_path)), "launch": {"ctx_size": 2048}}}
    host = {"memory": "64KiB", "reserve": {"memory": 0}}
    with running_daemon_sync(tmp_path, daemon_config(fake_build(tmp_path), models=models, host=host)) as daemon:
        answer = ask(daemon, CHAT, chat_body("m"), timeout=5)
        assert (answer.status, answer.error["code"]) == (400, "does_not_fit")
        assert "64.0 KiB" in answer.error["message"]
        assert launches(daemon, "m") == []


def test_start_that_fails_once(tmp_path: Path) -> None:
    """An engine that dies in its first load is started again; the client only waits longer."""
    models = {"m": {"file": str(tiny_model(tmp_path, die="load", signal="SIGKILL", once=True))}}
    config = daemon_config(fake_build(tmp_path), models=models, supervision=QUICK_RESTARTS)
    with running_daemon_sync(tmp_path, config) as daemon:
        assert ask(daemon, CHAT, chat_body("m")).status == 200
        assert instance(daemon, "m")["generation"] == len(launches(daemon, "m")) == 2


def test_start_that_always_fails(tmp_path: Path) -> None:
    """Every waiter is refused with the reason when the tries are used up; a load by hand tries as often again."""
    config = with_build(tmp_path, fake_build(tmp_path, die="load", exit=3), supervision=QUICK_RESTARTS)
    with running_daemon_sync(tmp_path, config, env=LOG_ALL) as daemon:
        with ThreadPoolExecutor(3) as pool:
            answers = list(pool.map(lambda _: ask(daemon, CHAT, chat_body("m")), range(3)))
        assert {(answer.status, answer.error["code"]) for answer in answers} == {(503, "start_failed")}
        assert len(launches(daemon, "m")) == 3
        assert waiting(daemon) == []
        again = ask(daemon, CHAT, chat_body("m"))
        assert (again.status, len(launches(daemon, "m"))) == (503, 3)
        by_hand = ask(daemon, "/admin/v1/models/m/load", b"")
        assert by_hand.status == 503
        assert len(launches(daemon, "m")) == 6


def test_unload_during_a_load(tmp_path: Path) -> None:
    """Who waits for a model that is unloaded by hand hears so at once, and the next request starts it again."""
    models = {"m": {"file": str(tiny_model(tmp_path, load_seconds=1.0))}}
    config = daemon_config(fake_build(tmp_path), models=models, supervision=QUICK_RESTARTS)
    with running_daemon_sync(tmp_path, config, env=LOG_ALL) as daemon:
        with asking(daemon, chat_body("m"), id="waits") as first:
            daemon.wait_for_event("launch_started")
            assert ask(daemon, "/admin/v1/models/m/unload", b"").status == 200
            answer = first.answer()
            assert answer.status in {200, 503}
        assert ask(daemon, CHAT, chat_body("m")).status == 200


def test_zero_config(tmp_path: Path) -> None:
    """Without a config the models of the data folder and the llama-server on PATH are found."""
    tiny_model(tmp_path / ".local/share/enginehouse", "found.gguf")
    build = fake_build(tmp_path, "on-path")
    with running_daemon_sync(tmp_path, None, env={"PATH": f"{build.executable.parent}:/usr/bin:/bin"}) as daemon:
        assert [row["id"] for row in ask(daemon, "/v1/models").json["data"]] == ["found"]
        daemon.wait_for_event("build_found", executable=str(build.executable))
