"""A short command: run it, keep the beginning of what it prints, and never wait longer than agreed."""

from __future__ import annotations

import signal
from dataclasses import dataclass

import anyio
from anyio.abc import ByteReceiveStream, Process

from supervisor.processes.child_process import Exit
from supervisor.processes.groups import KILL_SECONDS, end_family, living_members, signal_group
from supervisor.processes.opening import SpawnSpec, death_signal_prefix, open_child

# After the command's end its output is in the pipe already; a grandchild that holds the pipe open is not waited for.
_DRAIN_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class Output:
    """What a short command printed; ``exit`` is None when it ran past its limit and was killed."""

    exit: Exit | None
    stdout: str
    stderr: str


async def run_command(spec: SpawnSpec, limit_seconds: float, max_bytes: int = 2**20) -> Output:
    """Run a command to its end, or kill its whole group at the limit.

    Args:
        spec: what to run.
        limit_seconds: time that it may take.
        max_bytes: bytes kept of each of stdout and stderr; what follows is read and dropped.

    Raises:
        SpawnFailed: it can't be started.
    """
    process = await open_child(spec, prefix=death_signal_prefix())
    kept = bytearray(), bytearray()
    code: int | None = None
    try:
        async with anyio.create_task_group() as readers:
            readers.start_soon(_read, process.stdout, kept[0], max_bytes)
            readers.start_soon(_read, process.stderr, kept[1], max_bytes)
            with anyio.move_on_after(limit_seconds):
                code = await process.wait()
            readers.cancel_scope.deadline = anyio.current_time() + (0 if code is None else _DRAIN_SECONDS)
    finally:
        with anyio.CancelScope(shield=True):
            await _end(process)
    stdout, stderr = (data.decode(errors="replace") for data in kept)
    return Output(_exit(code), stdout, stderr)


async def _read(stream: ByteReceiveStream | None, kept: bytearray, max_bytes: int) -> None:
    assert stream is not None
    try:
        while True:
            data = await stream.receive()
            kept += data[: max(0, max_bytes - len(kept))]
    except (anyio.EndOfStream, anyio.ClosedResourceError, anyio.BrokenResourceError, OSError):
        return


async def _end(process: Process) -> None:
    deadline = anyio.current_time() + KILL_SECONDS
    if process.returncode is None:
        family = living_members(process.pid)
        signal_group(process.pid, signal.SIGKILL)
        with anyio.move_on_after(KILL_SECONDS):
            await process.wait()
    else:
        family = frozenset()
    await end_family(process.pid, family, deadline)
    if process.returncode is not None:
        await process.aclose()


def _exit(code: int | None) -> Exit | None:
    if code is None:
        return None
    return Exit(code, None) if code >= 0 else Exit(None, -code)
