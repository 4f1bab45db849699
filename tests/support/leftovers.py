"""Fails a test that leaves a child process, a thread or a socket behind.

A test plugin. What was there before the test (a daemon of a module's fixture, say) does not count; what is just
ending gets a moment. Orphans count as well, see ``orphans``.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.support.orphans import adopt_orphans
from tests.support.patience import GRACE_SECONDS
from tests.support.workers import only_hands_out

_POLL_SECONDS = 0.02
_SOCKET_FOLDER = Path("/proc/self/fd")


def pytest_configure(config: pytest.Config) -> None:
    """From here on nothing below this process escapes it; each process that runs tests looks after its own."""
    if not only_hands_out(config):
        adopt_orphans()


@pytest.fixture(autouse=True)
def no_leftovers() -> Iterator[None]:
    """Compare processes, threads and sockets before and after the test."""
    before = _Snapshot()
    yield
    deadline = time.monotonic() + GRACE_SECONDS
    while (problems := before.what_is_new()) and time.monotonic() < deadline:
        time.sleep(_POLL_SECONDS)
    if problems:
        _kill(before.new_processes())
        pytest.fail("the test left behind: " + "; ".join(problems), pytrace=False)


class _Snapshot:
    """What this process has at one moment."""

    def __init__(self) -> None:
        self._processes = _process_keys()
        self._threads = {thread.ident for thread in threading.enumerate()}
        self._sockets = _socket_keys()

    def new_processes(self) -> list[psutil.Process]:
        """Living processes below this one that were not there, dead ones are reaped on the way."""
        found = []
        for process in psutil.Process().children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):
                if (process.pid, process.create_time()) in self._processes:
                    continue
                if process.status() == psutil.STATUS_ZOMBIE:
                    _reap(process.pid)
                else:
                    found.append(process)
        return found

    def what_is_new(self) -> list[str]:
        """A sentence for each leftover."""
        problems = [f"process {_describe(process)}" for process in self.new_processes()]
        threads = [thread for thread in threading.enumerate() if thread.ident not in self._threads]
        problems += [f"thread {thread.name}" for thread in threads if not _serves_open_loop(thread)]
        problems += [f"socket {_describe_socket(key)}" for key in _socket_keys() - self._sockets]
        return problems


def _process_keys() -> set[tuple[int, float]]:
    keys = set()
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            keys.add((process.pid, process.create_time()))
    return keys


def _reap(pid: int) -> None:
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)


def _describe(process: psutil.Process) -> str:
    try:
        return f"{process.pid} ({' '.join(process.cmdline())[:200] or process.name()})"
    except psutil.NoSuchProcess:
        return str(process.pid)


def _kill(processes: list[psutil.Process]) -> None:
    """So that one test's leftovers don't fail the next."""
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(processes, timeout=GRACE_SECONDS)


def _serves_open_loop(thread: threading.Thread) -> bool:
    """Whether it is an idle worker of anyio, which ends with its event loop (a session's loop outlives a test)."""
    loop = getattr(thread, "loop", None)
    return thread.name.startswith("AnyIO worker") and loop is not None and not loop.is_closed()


def _socket_keys() -> set[tuple[int, str]]:
    """File descriptors that are sockets, with their inodes; by psutil where there is no /proc."""
    if not _SOCKET_FOLDER.is_dir():
        connections = psutil.Process().net_connections(kind="all")
        return {(entry.fd, f"{entry.laddr}->{entry.raddr}") for entry in connections}
    keys = set()
    for link in _SOCKET_FOLDER.iterdir():
        with contextlib.suppress(OSError):
            target = str(link.readlink())
            if target.startswith("socket:"):
                keys.add((int(link.name), target))
    return keys


def _describe_socket(key: tuple[int, str]) -> str:
    with contextlib.suppress(psutil.Error):
        for entry in psutil.Process().net_connections(kind="all"):
            if entry.fd == key[0]:
                return f"{entry.laddr or 'unnamed'} -> {entry.raddr or 'nobody'} ({entry.status})"
    return f"{key[1]} (fd {key[0]})"
