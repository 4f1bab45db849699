"""An engine that lives and no longer works: found out, replaced, and its requests answered by the next launch."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

from tests.support.daemon import Daemon, daemon_config, running_daemon_sync
from tests.support.fake_engine import fake_build, tiny_model
from tests.wire.asking import CHAT, LOG_ALL, ask, asking, chat_body, endless, instance
from tests.wire.beside import busy_slots, until

QUICK = {"liveness": {"interval": "200ms", "timeout": "1s", "failures": 2}}
# A look waits for nothing but what it asks: so much later than the limits, on a machine that does other things too.
PATIENCE = 40.0


def daemon_of(folder: Path, supervision: dict[str, Any], **faults: Any) -> Any:
    """A daemon with the model ``m``, whose first launch has these faults."""
    models = {"m": {"file": str(tiny_model(folder, once=True, **faults)), "launch": {"slots": 2}}}
    config = daemon_config(fake_build(folder), models=models, supervision=supervision)
    return running_daemon_sync(folder, config, env=LOG_ALL)


def became_unresponsive(daemon: Daemon) -> str:
    """Wait for it; why."""
    return str(daemon.wait_for_event("instance_changed", PATIENCE, new="unresponsive")["reason"])


def test_stopped_in_its_prefill(tmp_path: Path) -> None:
    """SIGSTOP of the engine under a request without content: it is replaced, and the same request is answered."""
    with daemon_of(tmp_path, QUICK, prefill_delay=30) as daemon:
        with asking(daemon, chat_body("m", stream=True), id="waits") as request:
            daemon.wait_for_event("request_leased", request_id="waits")
            pid = instance(daemon, "m")["pid"]
            until(lambda: busy_slots(pid) == 1)
            os.kill(pid, signal.SIGSTOP)
            assert "probes in a row" in became_unresponsive(daemon)
            events = request.answer().events
        assert events[-1] == "[DONE]"
        row = instance(daemon, "m")
        assert (row["generation"], row["leases"]) == (2, 0)


def test_stopped_in_mid_stream(tmp_path: Path) -> None:
    """Content had come: the stream ends with one error event, and the next request is served by a fresh launch."""
    with daemon_of(tmp_path, QUICK, chunk_delay=0.02) as daemon:
        with asking(daemon, endless("m"), id="streams") as request:
            assert request.next_text()
            os.kill(instance(daemon, "m")["pid"], signal.SIGSTOP)
            rest = request.answer().events
        assert [event["error"]["code"] for event in rest if "error" in event] == ["upstream_died"]
        assert ask(daemon, CHAT, chat_body("m")).status == 200
        assert instance(daemon, "m")["generation"] == 2


def test_healthy_by_its_own_word_while_its_work_stands_still(tmp_path: Path) -> None:
    """`/health` says ok, no request hears anything: prevents a dead device from passing for a sound engine."""
    request_limits = {"first_base": "1s", "first_cap": "1s", "idle": "1s"}
    with daemon_of(tmp_path, {**QUICK, "request": request_limits}, stall="prefill") as daemon:
        answer = ask(daemon, CHAT, chat_body("m"))
        assert answer.status == 200, answer.body
        assert "health" in became_unresponsive(daemon)
        assert instance(daemon, "m")["generation"] == 2
        assert instance(daemon, "m")["last_exit"]["planned"] is False


def test_idle_and_stopped(tmp_path: Path) -> None:
    """An engine that stops answering with nobody waiting is ended; whoever comes next gets a fresh launch."""
    with daemon_of(tmp_path, QUICK) as daemon:
        assert ask(daemon, CHAT, chat_body("m")).status == 200
        os.kill(instance(daemon, "m")["pid"], signal.SIGSTOP)
        became_unresponsive(daemon)
        assert ask(daemon, CHAT, chat_body("m")).status == 200
        assert instance(daemon, "m")["generation"] == 2
