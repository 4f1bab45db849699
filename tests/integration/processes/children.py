"""Small real children, and how to wait for the end of a process that is not ours."""

from __future__ import annotations

import os
import select
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

import anyio

from supervisor.processes.child_process import ChildProcess, SpawnSpec, spawn

_ENV = {"PATH": os.environ.get("PATH", os.defpath), "PYTHONUNBUFFERED": "1"}

# Starts a grandchild that holds the pipe open, and says its pid.
GRANDCHILD = """
import os, subprocess, sys, time
code = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(600)"
child = subprocess.Popen([sys.executable, "-ISc", code], **{session})
print("grandchild", child.pid, flush=True)
"""
IGNORES_SIGTERM = """
import signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("up", flush=True)
time.sleep(600)
"""
SLEEPS = "import time; print('up', flush=True); time.sleep(600)"


def python(code: str) -> SpawnSpec:
    """A child that runs ``code``."""
    return SpawnSpec((sys.executable, "-I", "-S", "-c", code), _ENV)


class Lines:
    """Collects lines, and lets a test wait for one."""

    def __init__(self) -> None:
        self.seen: list[str] = []
        self._changed = anyio.Event()

    def take(self, lines: Sequence[str]) -> None:
        """For ``on_lines``."""
        self.seen.extend(lines)
        self._changed.set()
        self._changed = anyio.Event()

    async def wait_for(self, start: str) -> str:
        """The first line that begins so, as soon as it is there."""
        while not (found := [line for line in self.seen if line.startswith(start)]):
            await self._changed.wait()
        return found[0]


@asynccontextmanager
async def started(
    spec: SpawnSpec, on_lines: Callable[[Sequence[str]], None] | None = None, prefix: tuple[str, ...] | None = None
) -> AsyncIterator[ChildProcess]:
    """A child whose ``run`` runs beside the block; it is killed at the end if it still lives."""
    child = await spawn(spec, on_lines=on_lines, prefix=prefix)
    async with anyio.create_task_group() as group:
        await group.start(child.run)
        yield child
        group.cancel_scope.cancel()


def wait_gone(pid: int, seconds: float = 10.0) -> bool:
    """Whether a process, not necessarily our child, is gone or a zombie within ``seconds``; blocks."""
    try:
        fd = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([fd], [], [], seconds)[0])
    finally:
        os.close(fd)
