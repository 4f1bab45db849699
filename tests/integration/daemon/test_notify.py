"""The daemon as a systemd service, over a real datagram socket: systemd itself is not needed for it."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest

from tests.support.daemon import daemon_config, running_daemon_sync
from tests.support.fake_engine import fake_build, tiny_model
from tests.support.notified import service_manager
from tests.wire.asking import ask

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="systemd is Linux's")


@pytest.mark.parametrize("abstract", [False, True], ids=["path", "abstract"])
def test_a_service_tells_its_manager_how_it_is(tmp_path: Path, abstract: bool) -> None:
    """Ready once it listens, pings while it lives, what it has loaded, a reload's begin and end, and that it stops."""
    config = daemon_config(fake_build(tmp_path), models={"tiny": {"file": str(tiny_model(tmp_path))}})
    with service_manager(abstract=abstract) as manager:
        env = {"NOTIFY_SOCKET": manager.address, "WATCHDOG_USEC": "400000"}
        with running_daemon_sync(tmp_path, config, env=env) as daemon:
            ready = manager.wait_for(READY="1")
            assert ready["MAINPID"] == str(daemon.pid)
            assert daemon.base_url in ready["STATUS"]
            for _ in range(3):
                manager.wait_for(WATCHDOG="1")
            assert ask(daemon, "/admin/v1/models/tiny/load", b"").status == 200
            manager.wait_for(STATUS="ready: tiny")

            daemon.send(signal.SIGHUP)
            begun = manager.wait_for(RELOADING="1")
            assert int(begun["MONOTONIC_USEC"]) > 0
            manager.wait_for(READY="1", STATUS="ready: tiny")
            (tmp_path / "config.yaml").write_text("version: 1\nnonsense: 1\n", encoding="utf-8")
            daemon.send(signal.SIGHUP)
            manager.wait_for(RELOADING="1")
            assert "old one goes on" in manager.wait_for(READY="1")["STATUS"]
        assert "SIGTERM" in manager.wait_for(STOPPING="1")["STATUS"]
        assert set(manager.pids) == {daemon.pid}, "engines are told nothing of the socket"


def test_a_watchdog_that_is_meant_for_another_process_is_not_fed(tmp_path: Path) -> None:
    """Where a wrapper is the service, the limit is the wrapper's."""
    config = daemon_config(fake_build(tmp_path), models={"tiny": {"file": str(tiny_model(tmp_path))}})
    with service_manager() as manager:
        env = {"NOTIFY_SOCKET": manager.address, "WATCHDOG_USEC": "100000", "WATCHDOG_PID": str(os.getpid())}
        with running_daemon_sync(tmp_path, config, env=env):
            manager.wait_for(READY="1")
        manager.wait_for(STOPPING="1")
        assert not any("WATCHDOG" in message for message in manager.heard)


def test_a_manager_that_is_gone_ends_nothing(tmp_path: Path) -> None:
    """A socket that nobody reads, or that isn't there, is the manager's matter."""
    config = daemon_config(fake_build(tmp_path), models={"tiny": {"file": str(tiny_model(tmp_path))}})
    env = {"NOTIFY_SOCKET": str(tmp_path / "gone"), "WATCHDOG_USEC": "100000"}
    with running_daemon_sync(tmp_path, config, env=env) as daemon:
        assert ask(daemon, "/healthz").status == 200
