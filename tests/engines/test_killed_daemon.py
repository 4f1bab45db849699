"""The daemon is killed at random moments of a real engine's life: the engine ends with it, or at the next start."""

from __future__ import annotations

import random
import shlex
import signal
import threading
from pathlib import Path

import psutil
import pytest

from tests.engines.conftest import config_for
from tests.support.daemon import running_daemon_sync
from tests.support.demo import DemoEngine
from tests.support.sockets import short_socket_folder
from tests.wire.asking import CHAT, ask, chat_body
from tests.wire.test_leftovers import alive, ask_and_forget, killed

pytestmark = [pytest.mark.engine, pytest.mark.timeout(300)]


@pytest.mark.parametrize("rounds", [3, pytest.param(20, marks=[pytest.mark.slow, pytest.mark.timeout(900)])])
def test_none_is_left(tmp_path: Path, demo_engine: DemoEngine, demo_model: Path, rounds: int) -> None:
    """Behind a shell that does not ``exec`` it, so that the kernel's own signal reaches the shell alone."""
    chance = random.Random(rounds)
    script = tmp_path / "llama-server"
    script.write_text(f'#!/bin/sh\n{shlex.quote(str(demo_engine.executable))} "$@"\nexit $?\n')
    script.chmod(0o755)
    with short_socket_folder() as sockets:
        config = config_for(DemoEngine(script, demo_engine.env), demo_model)
        config["runtime_dir"] = str(sockets)
        suspects: list[psutil.Process] = []
        for number in range(rounds):
            with running_daemon_sync(tmp_path, config) as daemon:
                asker = threading.Thread(target=ask_and_forget, args=(daemon, "smol"))
                asker.start()
                daemon.wait_for_event("launch_started", timeout=60)
                assert alive(suspects, 0) == [], daemon.log_text()
                if number % 3 == 0:
                    daemon.wait_for_event("launch_ready", timeout=60)
                if number % 6 == 0:
                    daemon.send(signal.SIGTERM)
                threading.Event().wait(chance.uniform(0, 0.6))
                suspects = killed(daemon)
                asker.join()
        with running_daemon_sync(tmp_path, config) as daemon:
            assert ask(daemon, CHAT, chat_body("smol", max_tokens=2)).status == 200
            assert alive(suspects, 0) == []
        assert list(sockets.iterdir()) == []
