"""Builds that can't run here are left alone from their first crash on, while the request that met them is answered."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.daemon import Daemon, daemon_config, running_daemon_sync
from tests.support.fake_engine import FakeBuild, fake_build, tiny_model
from tests.wire.asking import CHAT, LOG_ALL, ask, chat_body, instance, launches, status

SIGILL = {"die": "load", "signal": "SIGILL"}


def script(folder: Path, name: str, text: str) -> FakeBuild:
    """A build that is a shell script of one line."""
    home = folder / f"build-{name}"
    home.mkdir()
    executable = home / "llama-server"
    executable.write_text(f"#!/bin/sh\n{text}\n")
    executable.chmod(0o755)
    return FakeBuild(name, executable)


def config_of(folder: Path, *builds: FakeBuild, **more: Any) -> dict[str, Any]:
    """These builds, in this order, and the model ``m``; ``more`` replaces sections."""
    models = {"m": {"file": str(tiny_model(folder)), **more.pop("model", {})}}
    return daemon_config(*builds, models=models, **more)


def build(daemon: Daemon, name: str) -> dict[str, Any]:
    """The build's row of the status."""
    [row] = [row for row in status(daemon)["builds"] if row["name"] == name]
    return dict(row)


def served_by(daemon: Daemon, model: str = "m") -> str:
    """The build that a request is answered with."""
    answer = ask(daemon, CHAT, chat_body(model))
    assert answer.status == 200, answer.body
    return str(instance(daemon, model)["build"])


def test_the_request_that_meets_a_bad_build_is_answered_by_the_next(tmp_path: Path) -> None:
    """SIGILL in the load: at once a new plan with the good build; afterwards, and after a restart, only that one."""
    bad, good = fake_build(tmp_path, "bad", **SIGILL), fake_build(tmp_path, "good")
    config = config_of(tmp_path, bad, good)
    with running_daemon_sync(tmp_path, config) as daemon:
        assert served_by(daemon) == "good"
        assert len(launches(daemon, "m")) == 2
        fell = daemon.wait_for_event("build_fell_back")
        assert (fell["build"], fell["next_build"]) == ("bad", "good")
        row = build(daemon, "bad")
        assert row["health"] == "quarantined"
        assert [(strike["kind"], strike["model"]) for strike in row["strikes"]] == [("INCOMPATIBLE_CPU", "m")]
        assert "instruction" in row["reason"]
        assert build(daemon, "good")["health"] == "usable"
        changes = [record["new"] for record in daemon.records if record.get("event") == "instance_changed"]
        assert changes == ["starting", "starting", "ready"], "no back-off"
        why = next(row for row in instance(daemon, "m")["plan"]["rationale"] if row["choice"] == "build")
        assert "bad: set aside" in why["reason"]
        assert ask(daemon, "/admin/v1/models/m/unload", b"").status == 200
        assert served_by(daemon) == "good"
        assert len(launches(daemon, "m")) == 3
    with running_daemon_sync(tmp_path, config) as daemon:
        assert served_by(daemon) == "good"
        assert len(launches(daemon, "m")) == 1
        assert build(daemon, "bad")["health"] == "quarantined"


def test_loading_by_hand_falls_back_too(tmp_path: Path) -> None:
    """An operator's load is answered with the build that works, not with the first one's end."""
    config = config_of(tmp_path, fake_build(tmp_path, "bad", **SIGILL), fake_build(tmp_path, "good"))
    with running_daemon_sync(tmp_path, config) as daemon:
        answer = ask(daemon, "/admin/v1/models/m/load", b"")
        assert (answer.status, answer.json["state"], answer.json["build"]) == (200, "ready", "good")


def test_new_bytes_clear_it(tmp_path: Path) -> None:
    """A repaired build is used again without anybody's word."""
    bad, good = fake_build(tmp_path, "bad", **SIGILL), fake_build(tmp_path, "good")
    with running_daemon_sync(tmp_path, config_of(tmp_path, bad, good)) as daemon:
        assert served_by(daemon) == "good"
        assert ask(daemon, "/admin/v1/models/m/unload", b"").status == 200
        fake_build(tmp_path, "bad", version="2 (repaired)")
        assert served_by(daemon) == "bad"


@pytest.mark.parametrize(
    ("text", "said"),
    [("kill -ILL $$", "instructions"), ("exit 127", "127"), ("exit 126", "126")],
    ids=["SIGILL", "127", "126"],
)
def test_a_build_that_cannot_even_say_its_version(tmp_path: Path, text: str, said: str) -> None:
    """It is not started at all: the request is answered by the next, and the status says why."""
    config = config_of(tmp_path, script(tmp_path, "bad", text), fake_build(tmp_path, "good"))
    with running_daemon_sync(tmp_path, config) as daemon:
        assert served_by(daemon) == "good"
        assert len(launches(daemon, "m")) == 1
        row = build(daemon, "bad")
        assert row["health"] == "quarantined"
        assert said in row["reason"]


def test_a_pinned_build_is_used_anyway_and_says_so(tmp_path: Path) -> None:
    """The owner's word goes before ours: it is started each time, the plan warns, and there is no fall-back."""
    bad, good = fake_build(tmp_path, "bad", **SIGILL), fake_build(tmp_path, "good")
    with running_daemon_sync(tmp_path, config_of(tmp_path, bad, good)) as daemon:
        assert served_by(daemon) == "good"
    pinned = config_of(tmp_path, bad, good, model={"build": "bad"})
    with running_daemon_sync(tmp_path, pinned) as daemon:
        answer = ask(daemon, CHAT, chat_body("m"))
        assert (answer.status, answer.error["code"]) == (503, "start_failed")
        assert "because the config pins it" in daemon.wait_for_event("plan_warning")["reason"]
        row = instance(daemon, "m")
        assert (row["build"], row["last_exit"]["signal"]) == ("bad", 4)
        why = next(row for row in row["plan"]["rationale"] if row["choice"] == "build")
        assert "set aside" in why["reason"]


def test_when_none_is_left_the_answer_lists_them(tmp_path: Path) -> None:
    """503 that SDKs do not repeat, with each build's reason and evidence, for the first request and for the next."""
    names = ("one", "two")
    builds = [fake_build(tmp_path, name, version=name, **SIGILL) for name in names]
    with running_daemon_sync(tmp_path, config_of(tmp_path, *builds)) as daemon:
        for _ in range(2):
            answer = ask(daemon, CHAT, chat_body("m"))
            assert (answer.status, answer.error["code"]) == (503, "build_unusable")
            assert answer.headers["x-should-retry"] == "false"
            assert "Retry-After" not in answer.headers
            rows = answer.error["builds"]
            assert [(row["name"], row["health"]) for row in rows] == [(name, "quarantined") for name in names]
            for row in rows:
                assert f"{row['name']}: {row['reason']}" in answer.error["message"]
                assert row["strikes"][0]["kind"] == "INCOMPATIBLE_CPU"
        assert len(launches(daemon, "m")) == 2
        last = instance(daemon, "m")["last_exit"]
        assert (last["signal"], last["kind"], last["blames"]) == (4, "INCOMPATIBLE_CPU", "build")


def test_crashes_of_ready_engines_set_aside_at_the_last_strike(tmp_path: Path) -> None:
    """A build that dies under requests is left for the next one once its strikes are used up."""
    bad, good = fake_build(tmp_path, "bad", die="ready", signal="SIGSEGV"), fake_build(tmp_path, "good")
    supervision = {"quarantine": {"strikes": 2}, "restart": {"initial": "20ms", "max": "20ms", "budget": 20}}
    with running_daemon_sync(tmp_path, config_of(tmp_path, bad, good, supervision=supervision)) as daemon:
        for number in range(2):
            ask(daemon, "/admin/v1/models/m/load", b"")
            daemon.wait_for_event("launch_exited", launch=launches(daemon, "m")[number]["launch"])
        daemon.wait_for_event("build_health_changed", build="bad", old="suspect", new="quarantined")
        assert served_by(daemon) == "good"


def test_a_model_that_a_build_cannot_load_is_served_by_the_next_one(tmp_path: Path) -> None:
    """Two starts that end without a reason: the build is passed over for this model only, others keep it."""
    bad = fake_build(tmp_path, "bad", models={"tiny.gguf": {"die": "load", "exit": 3}})
    models = {name: {"file": str(tiny_model(tmp_path, f"{name}.gguf"))} for name in ("tiny", "other")}
    supervision = {"restart": {"initial": "20ms", "max": "20ms"}}
    config = daemon_config(bad, fake_build(tmp_path, "good"), models=models, supervision=supervision)
    with running_daemon_sync(tmp_path, config) as daemon:
        assert served_by(daemon, "tiny") == "good"
        assert len(launches(daemon, "tiny")) == 3
        assert served_by(daemon, "other") == "bad"


def test_a_corrupt_file_counts_as_empty_and_is_kept(tmp_path: Path) -> None:
    """The daemon starts, tells of it, and learns anew; the owner can look at what it was."""
    state = tmp_path / "state"
    state.mkdir(mode=0o700)
    good = {"schema": 1, "standings": {"k": {"health": "excellent"}}, "pins": {}}
    for text in ("{", json.dumps(good), json.dumps({"schema": 7})):
        (state / "quarantine.json").write_text(text)
        config = config_of(tmp_path, fake_build(tmp_path, "bad", **SIGILL), fake_build(tmp_path, "good"))
        with running_daemon_sync(tmp_path, config, env=LOG_ALL) as daemon:
            assert served_by(daemon) == "good"
            assert "quarantine.json" in daemon.wait_for_event("state_file_unusable")["path"]
        assert (state / "quarantine.json.bad").read_text() == text
        assert "INCOMPATIBLE_CPU" in (state / "quarantine.json").read_text()
