"""The one place where a process is started: own session, no input, and death with its parent."""

from __future__ import annotations

import errno
import functools
import shutil
import subprocess
import sys
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import anyio
from anyio.abc import Process
from anyio.lowlevel import checkpoint_if_cancelled

from supervisor.processes.executable import SpawnFailed, check_executable


@dataclass(frozen=True, slots=True)
class SpawnSpec:
    """What to start.

    Attributes:
        argv: the command; its first word is an absolute path.
        env: the whole environment; not shown in ``repr``, it may hold secrets.
        cwd: folder to start in; None: the supervisor's own.
    """

    argv: tuple[str, ...]
    env: Mapping[str, str] = field(repr=False)
    cwd: Path | None = None


@functools.cache
def death_signal_prefix() -> tuple[str, ...]:
    """Words before a command that make the kernel kill it when its parent dies; none where that can't be had.

    ``setpriv`` of util-linux sets it and becomes the command, in about 4 ms. Code run between fork and exec would do
    the same with the risk of a deadlock. BusyBox's and Toybox's ``setpriv`` don't know the option.
    """
    setpriv = shutil.which("setpriv") if sys.platform == "linux" else None
    if setpriv is None or Path(setpriv).resolve().name in {"busybox", "toybox"}:
        return ()
    return (str(Path(setpriv).absolute()), "--pdeathsig", "KILL", "--")


async def open_child(spec: SpawnSpec, *, prefix: tuple[str, ...], output: int = subprocess.PIPE) -> Process:
    """Start a process in a session of its own, with no input and its output in pipes.

    Args:
        spec: what to start.
        prefix: words before the command that set the parent-death signal.
        output: a file descriptor for both stdout and stderr, so that their order is kept; else each has a pipe.

    Raises:
        SpawnFailed: it can't be started; cancelled: nothing was started. Once started, it is always returned.
    """
    if threading.current_thread() is not threading.main_thread():
        # The kernel sends the signal at the end of the thread that started the child, not of the process.
        raise RuntimeError("processes must be started from the main thread: their parent-death signal hangs on it")
    _check_spec(spec)
    await checkpoint_if_cancelled()
    process: Process | None = None
    try:
        with anyio.CancelScope(shield=True):
            process = await anyio.open_process(
                [*prefix, *spec.argv],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                cwd=spec.cwd,
                env=dict(spec.env),
                start_new_session=True,
            )
    except OSError as error:
        raise SpawnFailed(error.errno, error.strerror or str(error), spec.argv[0]) from error
    assert process is not None
    return process


def _check_spec(spec: SpawnSpec) -> None:
    """What the event loops tell differently, or not at all.

    Raises:
        SpawnFailed: see ``open_child``.
    """
    check_executable(Path(spec.argv[0]))
    if spec.cwd is not None and not spec.cwd.is_dir():
        raise SpawnFailed(errno.ENOENT, f"its working folder {spec.cwd} isn't there", spec.argv[0])
    if any("\0" in word for word in (*spec.argv, *spec.env, *spec.env.values())):
        # uvloop would silently cut the word there.
        raise SpawnFailed(errno.EINVAL, "an argument or a variable holds a zero byte", spec.argv[0])
