"""A daemon that is killed leaves nothing for long: what the kernel does not end, the next daemon does, and no more."""

from __future__ import annotations

import random
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.client import HTTPException
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.support.daemon import Daemon, daemon_config, running_daemon_sync, wait_until_listening
from tests.support.fake_engine import FakeBuild, fake_build, tiny_model, wrapped
from tests.support.sockets import short_socket_folder
from tests.wire.asking import CHAT, ask, chat_body, endless

QUICK = {"stop": {"grace": "1s"}}


@contextmanager
def state(folder: Path, build: FakeBuild, **faults: Any) -> Iterator[dict[str, Any]]:
    """A config whose sockets and launches are all gone in the end."""
    with short_socket_folder() as sockets:
        models = {"m": {"file": str(tiny_model(folder, **faults)), "launch": {"slots": 1}}}
        yield daemon_config(build, models=models, runtime_dir=str(sockets), supervision=QUICK)
        assert list(sockets.iterdir()) == [], "sockets are left"
        assert list((folder / "state" / "launches").iterdir()) == [], "launches are still written down"


def killed(daemon: Daemon) -> list[psutil.Process]:
    """SIGKILL the daemon; what was below it."""
    engines = daemon.engines()
    daemon.send(signal.SIGKILL)
    daemon.process.wait(10)
    return engines


def alive(engines: list[psutil.Process], within: float) -> list[psutil.Process]:
    """Those that did not end in time; zombies have ended."""
    return [process for process in psutil.wait_procs(engines, timeout=within)[1] if _lives(process)]


def _lives(process: psutil.Process) -> bool:
    with suppress(psutil.NoSuchProcess):
        return process.status() != psutil.STATUS_ZOMBIE
    return False


def test_an_engine_behind_a_shell_is_reaped_by_the_next_daemon(tmp_path: Path) -> None:
    """The kernel ends the shell only; the next daemon finds the engine, ends it, tells of it, and then serves."""
    with state(tmp_path, wrapped(fake_build(tmp_path))) as config:
        with running_daemon_sync(tmp_path, config) as daemon:
            assert ask(daemon, CHAT, chat_body("m")).status == 200
            [engine] = [process for process in daemon.engines() if process.name() != "wrapper"]
            killed(daemon)
        assert alive([engine], 0.5) == [engine]
        with running_daemon_sync(tmp_path, config) as daemon:
            assert ask(daemon, CHAT, chat_body("m")).status == 200
            told = daemon.wait_for_event("orphan_reaped")
            assert (told["model"], told["pid"], told["forced"]) == ("m", engine.pid, False)
            assert alive([engine], 0) == []
            started = daemon.wait_for_event("launch_started")
            assert daemon.records.index(told) < daemon.records.index(started)


def test_leftovers_do_not_delay_listening(tmp_path: Path) -> None:
    """A leftover that takes its whole grace is waited for by launches, and by nothing else."""
    with state(tmp_path, wrapped(fake_build(tmp_path)), ignore_sigterm=True) as config:
        with running_daemon_sync(tmp_path, config) as daemon:
            assert ask(daemon, CHAT, chat_body("m")).status == 200
            killed(daemon)
        with running_daemon_sync(tmp_path, config) as daemon:
            daemon.wait_for_event("leftovers_found")
            assert ask(daemon, "/healthz").status == 200
            assert ask(daemon, CHAT, chat_body("m")).status == 200
            names = [record.get("event") for record in daemon.records]
            order = ["daemon_listening", "leftovers_found", "orphan_reaped", "launch_started"]
            assert sorted(order, key=names.index) == order
            assert daemon.wait_for_event("orphan_reaped")["forced"]


@pytest.mark.parametrize(
    "rounds",
    [
        pytest.param(12, marks=pytest.mark.timeout(300)),
        pytest.param(200, marks=[pytest.mark.slow, pytest.mark.timeout(1800)]),
    ],
)
def test_killed_at_any_moment(tmp_path: Path, rounds: int) -> None:
    """SIGKILL while it starts, loads, streams or stops an engine behind a shell: none is left after the next start."""
    chance = random.Random(rounds)
    faults = {"load_seconds": 0.1, "chunk_delay": 0.02}
    with state(tmp_path, wrapped(fake_build(tmp_path)), **faults) as config:
        suspects: list[psutil.Process] = []
        for number in range(rounds):
            before = suspects
            with running_daemon_sync(tmp_path, config, ready=False) as daemon:
                asker = threading.Thread(target=ask_and_forget, args=(daemon,))
                asker.start()
                if number % 4 == 0:
                    daemon.wait_for_event("launch_ready")
                    daemon.send(signal.SIGTERM)
                    threading.Event().wait(chance.uniform(0, 0.1))
                else:
                    threading.Event().wait(chance.uniform(0.2, 1.6))
                suspects = killed(daemon)
                asker.join()
            if any(record.get("event") == "launch_started" for record in daemon.records):
                assert alive(before, 0) == [], daemon.log_text()
            else:
                suspects += before
        with running_daemon_sync(tmp_path, config) as daemon:
            assert ask(daemon, CHAT, chat_body("m")).status == 200
            assert alive(suspects, 0) == []


def ask_and_forget(daemon: Daemon, model: str = "m") -> None:
    """A request whose answer ends with the daemon."""
    with suppress(OSError, HTTPException, AssertionError):
        wait_until_listening(daemon)
        ask(daemon, CHAT, endless(model))
