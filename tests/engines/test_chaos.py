"""The real engine hit in its load, its prefill and in mid-stream: nothing of it is left, the next request is served."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import psutil
import pytest

from tests.engines.conftest import config_for
from tests.support.daemon import Daemon, running_daemon_sync
from tests.support.demo import DemoEngine
from tests.support.sockets import short_socket_folder
from tests.wire.asking import CHAT, LOG_ALL, ask, asking, chat_body, instance, status
from tests.wire.beside import busy_slots, until

pytestmark = [pytest.mark.engine, pytest.mark.timeout(300)]

SUPERVISION = {
    "restart": {"initial": "50ms", "max": "50ms", "budget": 50},
    "quarantine": {"strikes": 1000},
    "readiness": {"stall_timeout": "3s"},
    "liveness": {"interval": "500ms", "timeout": "2s", "failures": 2},
}
HITS = (signal.SIGKILL, signal.SIGSEGV, signal.SIGSTOP)
LONG = "word " * 400


def test_hit_at_any_time(tmp_path: Path, demo_engine: DemoEngine, demo_model: Path) -> None:
    """Each of the signals in each of the phases; what had said nothing yet is answered by the next launch."""
    with short_socket_folder() as sockets:
        config = {**config_for(demo_engine, demo_model, batch_size=64), "runtime_dir": str(sockets)}
        config["supervision"] = SUPERVISION
        with running_daemon_sync(tmp_path, config, env=LOG_ALL) as daemon:
            for hit in HITS:
                hit_in_load(daemon, hit)
                hit_in_prefill(daemon, hit)
                hit_in_stream(daemon, hit)
            assert ask(daemon, "/admin/v1/models/smol/unload", b"").status == 200
            assert daemon.engines() == []
            assert list(sockets.iterdir()) == []
    launches = tmp_path / "state" / "launches"
    assert not launches.is_dir() or list(launches.iterdir()) == []


def hit_in_load(daemon: Daemon, hit: signal.Signals) -> None:
    """Who waits for the load is served by the next one."""
    assert ask(daemon, "/admin/v1/models/smol/unload", b"").status == 200
    started = len([record for record in daemon.records if record.get("event") == "launch_started"])
    with asking(daemon, chat_body("smol", stream=True, max_tokens=2), id=f"load-{hit}") as request:
        pid = daemon.wait_for_event("launch_started", generation=started + 1)["pid"]
        os.kill(pid, hit)
        events = request.answer().events
    assert events[-1] == "[DONE]"
    served_again(daemon, pid)


def hit_in_prefill(daemon: Daemon, hit: signal.Signals) -> None:
    """Nothing had been said: the next launch answers."""
    pid = instance(daemon, "smol")["pid"]
    # Another prompt each time: one that was there at two crashes is refused.
    body = chat_body("smol", f"{hit.name} {LONG}", stream=True, max_tokens=2)
    with asking(daemon, body, id=f"prefill-{hit}") as request:
        until(lambda: busy_slots(pid) == 1)
        os.kill(pid, hit)
        events = request.answer().events
    assert events[-1] == "[DONE]"
    served_again(daemon, pid)


def hit_in_stream(daemon: Daemon, hit: signal.Signals) -> None:
    """The stream ends with one error, and no success after it."""
    pid = instance(daemon, "smol")["pid"]
    body = chat_body("smol", f"{hit.name}: a long story", stream=True, ignore_eos=True, max_tokens=1500)
    with asking(daemon, body, id=f"stream-{hit}") as request:
        for _ in range(3):
            request.next_text()
        os.kill(pid, hit)
        events = request.answer().events
    assert len([event for event in events if "error" in event]) == 1
    assert events[-1] != "[DONE]"
    served_again(daemon, pid)


def served_again(daemon: Daemon, gone: int) -> None:
    """By another process; the one that was hit is no more, and no lease or ticket is left."""
    answer = ask(daemon, CHAT, chat_body("smol", max_tokens=2))
    assert answer.status == 200, answer.body
    row = instance(daemon, "smol")
    assert row["pid"] != gone
    assert not psutil.pid_exists(gone) or psutil.Process(gone).status() == psutil.STATUS_ZOMBIE
    assert row["leases"] == 0
    assert status(daemon)["queue"]["waiting"] == 0
