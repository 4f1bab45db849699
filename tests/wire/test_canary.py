"""The tiny model that settles whether a build or a model is to blame, over fake engines."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.support.daemon import Daemon, daemon_config, running_daemon_sync
from tests.support.fake_engine import FakeBuild, fake_build, tiny_model
from tests.wire.asking import CHAT, ask, chat_body, instance, launches, status

DIES = {"die": "load", "exit": 3}
NO_IDLE_CHECK = {"idle_check": "0"}


def config_of(folder: Path, *builds: FakeBuild, quarantine: dict[str, Any]) -> dict[str, Any]:
    """Two models, short back-offs."""
    models = {name: {"file": str(tiny_model(folder, f"{name}.gguf"))} for name in ("m", "other")}
    supervision = {"quarantine": quarantine, "restart": {"initial": "20ms", "max": "20ms"}}
    return daemon_config(*builds, models=models, supervision=supervision)


def rows(daemon: Daemon) -> dict[str, dict[str, Any]]:
    """The builds' rows of the status."""
    return {row["name"]: row for row in status(daemon)["builds"]}


def served_by(daemon: Daemon, model: str) -> str:
    """The build that a request is answered with."""
    answer = ask(daemon, CHAT, chat_body(model))
    assert answer.status == 200, answer.body
    return str(instance(daemon, model)["build"])


def test_it_lives_so_the_model_is_to_blame(tmp_path: Path) -> None:
    """The request is served by the other build meanwhile; afterwards only this pair is set aside."""
    picky = fake_build(tmp_path, "picky", models={"m.gguf": DIES})
    config = config_of(tmp_path, picky, fake_build(tmp_path, "good"), quarantine=NO_IDLE_CHECK)
    with running_daemon_sync(tmp_path, config) as daemon:
        assert served_by(daemon, "m") == "good"
        tried = daemon.wait_for_event("canary_tried", build="picky")
        assert tried["outcome"] == "lived"
        daemon.wait_for_event("model_set_aside", build="picky", model="m")
        row = rows(daemon)["picky"]
        assert (row["health"], row["strikes"]) == ("usable", [])
        assert [pair["model"] for pair in row["set_aside_for"]] == ["m"]
        assert served_by(daemon, "other") == "picky"
        assert ask(daemon, "/admin/v1/models/m/unload", b"").status == 200
        assert served_by(daemon, "m") == "good"
        assert len(launches(daemon, "m")) == 4
        assert not any(record.get("model") == "~canary" for record in daemon.records), "it is no model of anybody's"


def test_it_dies_so_the_build_is_to_blame(tmp_path: Path) -> None:
    """The build is set aside for every model, and says that it could not load the tiny one either."""
    config = config_of(
        tmp_path, fake_build(tmp_path, "bad", **DIES), fake_build(tmp_path, "good"), quarantine=NO_IDLE_CHECK
    )
    with running_daemon_sync(tmp_path, config) as daemon:
        assert served_by(daemon, "m") == "good"
        daemon.wait_for_event("build_health_changed", build="bad", new="quarantined")
        row = rows(daemon)["bad"]
        assert "tiny model" in row["reason"]
        assert [strike["model"] for strike in row["strikes"]] == ["m", "m", None]
        assert served_by(daemon, "other") == "good"
        assert len(launches(daemon, "other")) == 1


def test_where_there_is_no_other_build_the_answer_is_the_same_until_it_is_known(tmp_path: Path) -> None:
    """The request has its tries and their reason; once the canary lived, the next one is told of the pair."""
    picky = fake_build(tmp_path, "picky", models={"m.gguf": DIES})
    with running_daemon_sync(tmp_path, config_of(tmp_path, picky, quarantine=NO_IDLE_CHECK)) as daemon:
        first = ask(daemon, CHAT, chat_body("m"))
        assert (first.status, first.error["code"]) == (503, "start_failed")
        daemon.wait_for_event("model_set_aside", build="picky", model="m")
        assert ask(daemon, "/admin/v1/builds/picky/clear", b"").json["set_aside_for"] == []
        assert ask(daemon, CHAT, chat_body("m")).error["code"] == "start_failed"


def test_a_new_build_is_tried_when_nothing_happens(tmp_path: Path) -> None:
    """So that the first request does not meet a bad one; what was tried once is not tried again."""
    bad = fake_build(tmp_path, "bad", die="load", signal="SIGILL")
    config = config_of(tmp_path, bad, fake_build(tmp_path, "good"), quarantine={"idle_check": "100ms"})
    with running_daemon_sync(tmp_path, config) as daemon:
        daemon.wait_for_event("canary_tried", build="bad", outcome="died")
        daemon.wait_for_event("canary_tried", build="good", outcome="lived")
        assert rows(daemon)["bad"]["health"] == "quarantined"
        assert served_by(daemon, "m") == "good"
        assert len(launches(daemon, "m")) == 1
        tried = [record["build"] for record in daemon.records if record.get("event") == "canary_tried"]
        assert sorted(tried) == ["bad", "good"]
        assert list((tmp_path / "state").glob("canary*")) == []


def test_after_the_cooldown_the_canary_goes_first(tmp_path: Path) -> None:
    """A build that lives again is on trial with the next launch, without a request that had to find out."""
    bad = fake_build(tmp_path, "bad", die="ready", signal="SIGSEGV", models={"canary*": {"die": None}})
    quarantine = {"strikes": 1, "cooldown": "1s", **NO_IDLE_CHECK}
    with running_daemon_sync(tmp_path, config_of(tmp_path, bad, quarantine=quarantine)) as daemon:
        ask(daemon, "/admin/v1/models/m/load", b"")
        daemon.wait_for_event("build_health_changed", build="bad", new="quarantined")
        daemon.wait_for_event("canary_tried", build="bad", outcome="lived")
        daemon.wait_for_event("build_health_changed", build="bad", new="probation")
        assert rows(daemon)["bad"]["health"] == "probation"
