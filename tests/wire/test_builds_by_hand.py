"""An operator's word on builds: over HTTP, by the command with a daemon, and by the command without one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.support.daemon import Daemon, daemon_config, running_daemon_sync
from tests.support.fake_engine import fake_build, set_faults, tiny_model
from tests.wire.asking import CHAT, ask, chat_body, instance

ROOT = Path(__file__).resolve().parents[2]


def config_of(folder: Path) -> dict[str, Any]:
    """A build that dies of SIGILL in the load of ``m``, and a good one."""
    bad = fake_build(folder, "bad", models={"m.gguf": {"die": "load", "signal": "SIGILL"}})
    models = {"m": {"file": str(tiny_model(folder, "m.gguf"))}}
    quarantine = {"quarantine": {"idle_check": "0"}}
    return daemon_config(bad, fake_build(folder, "good"), models=models, supervision=quarantine)


def command(*words: str, url: str | None = None, config: Path | None = None) -> Any:
    """What ``enginehouse builds …`` prints as JSON; it must succeed."""
    place = ["--url", url] if url else ["--config", str(config)]
    done = subprocess.run(
        [sys.executable, "-m", "supervisor", "builds", *words, "--json", *place],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr.decode()
    return json.loads(done.stdout)


def served_by(daemon: Daemon) -> str:
    """The build that a request is answered with, on a new launch."""
    answer = ask(daemon, CHAT, chat_body("m"))
    assert answer.status == 200, answer.body
    build = str(instance(daemon, "m")["build"])
    assert ask(daemon, "/admin/v1/models/m/unload", b"").status == 200
    return build


def test_over_http_and_by_the_command(tmp_path: Path) -> None:
    """Set aside, listed, inspected, cleared; pinned it is used although it is set aside, until the pin is taken off."""
    with running_daemon_sync(tmp_path, config_of(tmp_path)) as daemon:
        assert served_by(daemon) == "good"
        rows = ask(daemon, "/admin/v1/builds").json["builds"]
        assert [(row["name"], row["health"], row["pinned"]) for row in rows] == [
            ("bad", "quarantined", False),
            ("good", "usable", False),
        ]
        row = ask(daemon, "/admin/v1/builds/bad").json
        assert row == command("inspect", "bad", url=daemon.base_url)
        assert row["strikes"][0]["model"] == "m"
        missing = ask(daemon, "/admin/v1/builds/nobody")
        assert (missing.status, missing.error["code"]) == (404, "build_not_found")
        pinned = command("pin", "bad", url=daemon.base_url)
        assert (pinned["pinned"], pinned["health"]) == (True, "quarantined")
        assert ask(daemon, CHAT, chat_body("m")).status == 503
        assert "an operator pins it" in daemon.wait_for_event("plan_warning")["reason"]
        assert not command("pin", "bad", "--off", url=daemon.base_url)["pinned"]
        assert served_by(daemon) == "good", "who had given up may try again"
        set_faults(tmp_path / "m.gguf", die=None)  # whatever was wrong is mended
        cleared = ask(daemon, "/admin/v1/builds/bad/clear", b"").json
        assert (cleared["health"], cleared["strikes"]) == ("usable", [])
        assert served_by(daemon) == "bad"


def test_without_a_daemon(tmp_path: Path) -> None:
    """Under the lock of the state folder; the next daemon finds it done."""
    config, file = config_of(tmp_path), tmp_path / "config.yaml"
    with running_daemon_sync(tmp_path, config) as daemon:
        assert served_by(daemon) == "good"
    assert [row["health"] for row in command("list", config=file)] == ["quarantined", "usable"]
    assert command("clear", "bad", config=file)["health"] == "usable"
    assert command("pin", "good", config=file)["pinned"]
    set_faults(tmp_path / "m.gguf", die=None)
    with running_daemon_sync(tmp_path, config) as daemon:
        assert served_by(daemon) == "good"
        why = next(row for row in instance(daemon, "m")["plan"]["rationale"] if row["choice"] == "build")
        assert "operator" in why["reason"]
        assert ask(daemon, "/admin/v1/builds/good/unpin", b"").json["pinned"] is False
        assert served_by(daemon) == "bad"


def test_a_clear_is_felt_at_once(tmp_path: Path) -> None:
    """Regression: the refusal that had been worked out before it was given for some seconds more."""
    bad = fake_build(tmp_path, "bad", models={"m.gguf": {"die": "load", "signal": "SIGILL"}})
    models = {"m": {"file": str(tiny_model(tmp_path, "m.gguf"))}}
    quarantine = {"quarantine": {"idle_check": "0"}}
    with running_daemon_sync(tmp_path, daemon_config(bad, models=models, supervision=quarantine)) as daemon:
        for _ in range(2):
            refused = ask(daemon, CHAT, chat_body("m"))
            assert (refused.status, refused.error["code"]) == (503, "build_unusable")
        set_faults(tmp_path / "m.gguf", die=None)
        assert ask(daemon, "/admin/v1/builds/bad/clear", b"").status == 200
        assert served_by(daemon) == "bad"
