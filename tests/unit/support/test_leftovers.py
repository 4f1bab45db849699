"""The guard against what tests leave behind."""

from __future__ import annotations

import os
import subprocess
import time

import psutil
import pytest

from tests.support.guarded_run import GuardedRun, guarded_run
from tests.support.orphans import OrphanReaper

# Nobody else on the machine sleeps just so long.
_NAP = f"47.{os.getpid()}"
_CASES = """
import socket, subprocess, sys, threading
import anyio

KEPT = []
ORPHAN_MAKER = "import subprocess; subprocess.Popen(['sleep', '{nap}'], start_new_session=True).returncode = 0"


def test_clean():
    subprocess.run(["true"], check=True)
    thread = threading.Thread(target=lambda: None)
    thread.start()
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()


def test_thread_that_is_just_ending():
    threading.Timer(0.3, lambda: None).start()


def test_child():
    KEPT.append(subprocess.Popen(["sleep", "{nap}"]))


def test_child_that_was_not_waited_for_is_reaped():
    KEPT.append(subprocess.Popen(["true"]))


def test_orphan():
    subprocess.run([sys.executable, "-c", ORPHAN_MAKER], check=True)


def test_thread():
    KEPT.append(threading.Event())
    threading.Thread(target=KEPT[-1].wait, name="forgotten", daemon=True).start()


def test_listening_socket():
    KEPT.append(socket.create_server(("127.0.0.1", 0)))


def test_socket_pair():
    KEPT.append(socket.socketpair())


async def test_workers_and_loop_are_no_leftovers():
    await anyio.to_thread.run_sync(lambda: None)
""".replace("{nap}", _NAP)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> GuardedRun:
    """All cases in one run, in the order of the file."""
    return guarded_run(tmp_path_factory.mktemp("leftovers"), _CASES)


@pytest.mark.parametrize(
    "name",
    [
        "test_clean",
        "test_thread_that_is_just_ending",
        "test_child_that_was_not_waited_for_is_reaped",
        "test_workers_and_loop_are_no_leftovers",
    ],
)
def test_a_tidy_test_passes(run: GuardedRun, name: str) -> None:
    """What ended, or ends within moments, is no leftover."""
    assert run.outcomes[name] == ["PASSED"], run.output


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("test_child", "(sleep {nap})"),
        ("test_orphan", "(sleep {nap})"),
        ("test_thread", "thread forgotten"),
        ("test_listening_socket", "LISTEN"),
        ("test_socket_pair", "socket "),
    ],
)
def test_a_test_that_leaves_something_fails(run: GuardedRun, name: str, said: str) -> None:
    """A child, an orphan in a session of its own, a thread and a socket each fail their test and are named."""
    assert "ERROR" in run.outcomes[name], run.output
    assert said.replace("{nap}", _NAP) in run.messages[name], run.output


def test_what_a_test_left_is_ended(run: GuardedRun) -> None:
    """A leftover does not live on to disturb later tests or the machine."""
    assert "test_child" in run.outcomes
    commands = [process.info["cmdline"] for process in psutil.process_iter(["cmdline"])]
    assert ["sleep", _NAP] not in commands


def test_an_orphan_is_reaped_while_its_test_runs() -> None:
    """A test that waits for a grandchild's end sees it vanish, as under a pid 1 that reaps."""
    reaper = OrphanReaper()
    script = "sleep 60 & echo $!; read held"
    with subprocess.Popen(["sh", "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        grandchild = psutil.Process(int(child.stdout.readline()))
        reaper.look()
        child.kill()
    grandchild.kill()
    deadline = time.monotonic() + 10
    while grandchild.is_running() and time.monotonic() < deadline:
        reaper.look()
    assert not psutil.pid_exists(grandchild.pid)


def test_a_child_of_the_test_is_never_reaped_behind_its_back() -> None:
    """The exit code of a process that a test started stays for the test to read."""
    child = subprocess.Popen(["sh", "-c", "exit 7"])
    reaper = OrphanReaper()
    deadline = time.monotonic() + 10
    while psutil.Process(child.pid).status() != psutil.STATUS_ZOMBIE and time.monotonic() < deadline:
        reaper.look()
    reaper.look()
    assert child.wait() == 7
