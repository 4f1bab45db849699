"""What an operator asks of a request and tells a model, over HTTP and by the command."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.support.daemon import daemon_config, running_daemon_sync
from tests.support.fake_engine import fake_build, tiny_model
from tests.wire.asking import CHAT, ask, chat_body, instance

ROOT = Path(__file__).resolve().parents[2]


def command(url: str, *words: str, code: int = 0) -> Any:
    """What ``enginehouse …`` prints: a document, or its complaint."""
    done = subprocess.run(
        [sys.executable, "-m", "supervisor", *words, "--url", url],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == code, done.stderr.decode()
    return json.loads(done.stdout) if code == 0 else done.stderr.decode()


def test_a_request_is_explained_and_a_model_is_handled(tmp_path: Path) -> None:
    """The load that it caused with its reasons, its slot and its end; unknown ids get a sentence; pins are seen."""
    models = {"m": {"file": str(tiny_model(tmp_path, "m.gguf"))}}
    with running_daemon_sync(tmp_path, daemon_config(fake_build(tmp_path, "fake"), models=models)) as daemon:
        first = ask(daemon, CHAT, chat_body("m"))
        second = ask(daemon, CHAT, chat_body("m"))
        assert (first.status, second.status) == (200, 200)

        told = command(daemon.base_url, "why", first.headers["x-request-id"])

        assert (told["state"], told["model"], told["ended"]["status"]) == ("finished", "m", 200)
        assert (told["load"]["build"], told["load"]["begun_before"]) == ("fake", False)
        assert {"threads", "ctx_size"} <= {row["choice"] for row in told["load"]["reasons"]}
        assert told["story"][-1]["what"].startswith("ended with 200 (ok)")
        at_once = ask(daemon, f"/admin/v1/requests/{second.headers['x-request-id']}").json
        assert (at_once["load"], at_once["replayed"], len(at_once["leases"])) == (None, False, 1)
        unknown = ask(daemon, "/admin/v1/requests/nobody")
        assert (unknown.status, unknown.error["code"]) == (404, "request_not_found")
        assert "the last hour's" in command(daemon.base_url, "why", "nobody", code=1)

        assert command(daemon.base_url, "models", "pin", "m")["pinned"]
        assert instance(daemon, "m")["pinned"]
        assert not command(daemon.base_url, "models", "unpin", "m")["pinned"]
        assert command(daemon.base_url, "models", "unload", "m")["state"] == "stopped"
        assert command(daemon.base_url, "models", "load", "m")["state"] == "ready"
        assert "there is no model" in command(daemon.base_url, "models", "pin", "x", code=1)
