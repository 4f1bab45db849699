"""One child process: its output, its end, and a stop that leaves nothing behind."""

from __future__ import annotations

import errno
import os
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import anyio
from anyio.abc import Process, TaskStatus

from supervisor.clock import Clock, SystemClock
from supervisor.processes.executable import SpawnFailed, check_executable
from supervisor.processes.groups import KILL_SECONDS, Family, end_family, living_members, signal_group
from supervisor.processes.log_tail import LogTail
from supervisor.processes.opening import SpawnSpec, death_signal_prefix, open_child
from supervisor.processes.output_pipe import OutputPipe
from supervisor.processes.proc_table import MARK_VARIABLE

__all__ = ["ChildProcess", "Exit", "SpawnFailed", "SpawnSpec", "check_executable", "spawn"]

# What is still in the pipe arrives at once; a grandchild that holds the pipe open is not waited for longer.
_DRAIN_SECONDS = 0.5
# Exit codes of setpriv when the command could not be executed.
_PREFIX_FAILED = (126, 127)


@dataclass(frozen=True, slots=True)
class Exit:
    """How a process ended: at most one is set; both None when it could not be ended.

    A code of 128 and more stays a code: a shell's ``128 + signal`` is the shell's word, not the kernel's.
    """

    code: int | None
    signal: int | None


async def spawn(
    spec: SpawnSpec,
    *,
    on_lines: Callable[[Sequence[str]], None] | None = None,
    clock: Clock | None = None,
    prefix: tuple[str, ...] | None = None,
) -> ChildProcess:
    """Start a process; to be called from the main thread, where the event loop runs.

    Args:
        spec: what to start.
        on_lines: called with lines of output as they come (see ``calm_down``); what it raises is counted, and stops
            nothing.
        clock: for ``started_at``.
        prefix: words that set the parent-death signal; None: what this machine has; empty: none.

    Raises:
        SpawnFailed: not there, not executable, or not a program of this machine.
        RuntimeError: called from another thread.
    """
    words = death_signal_prefix() if prefix is None else prefix
    clock = clock or SystemClock()
    output = OutputPipe()
    try:
        process = await open_child(spec, prefix=words, output=output.write_end)
        return ChildProcess(process, spec, output, on_lines=on_lines, pdeathsig=bool(words), clock=clock)
    except BaseException:
        output.close()
        raise


class ChildProcess:
    """A started process. ``run`` must run for as long as it lives; when ``run`` is cancelled, the process is killed.

    Attributes:
        pid: also its process group's and session's number.
        argv: what was asked for, without the words that set the parent-death signal.
        pdeathsig: whether the kernel kills it when the supervisor dies.
        started_at, started_monotonic: seconds since 1970, and on the clock that never jumps.
        tail: its output.
        exited: set when it has ended and its last output is in ``tail``.
        exit: how it ended; None until then.
        line_errors: exceptions that ``on_lines`` raised.
        survivors: processes that belong to it and that even SIGKILL did not end; empty but for broken drivers.
    """

    def __init__(
        self,
        process: Process,
        spec: SpawnSpec,
        output: OutputPipe,
        *,
        on_lines: Callable[[Sequence[str]], None] | None,
        pdeathsig: bool,
        clock: Clock,
    ) -> None:
        self.pid = process.pid
        self.argv = spec.argv
        self.pdeathsig = pdeathsig
        self.started_at = clock.wall()
        self.started_monotonic = clock.monotonic()
        self.tail = LogTail()
        self.exited = anyio.Event()
        self.exit: Exit | None = None
        self.line_errors = 0
        self.survivors: tuple[int, ...] = ()
        self._mark = spec.env.get(MARK_VARIABLE)
        self._process = process
        self._output = output
        self._on_lines = on_lines
        self._running = False

    @property
    def alive(self) -> bool:
        """Whether the process has not ended, as far as the kernel has told."""
        return self.exit is None and self._process.returncode is None

    @property
    def exec_failure(self) -> SpawnFailed | None:
        """Set when the process ended before it became the command: the file was fine, executing it failed."""
        if not self.pdeathsig or self.exit is None or self.exit.code not in _PREFIX_FAILED:
            return None
        message = next((line for line in self.tail.lines(20) if line.startswith("setpriv: ")), None)
        if message is None:
            return None
        reasons = (errno.ENOENT, errno.EACCES, errno.ENOEXEC, errno.ETXTBSY, errno.ENOMEM, errno.E2BIG)
        number = next((reason for reason in reasons if message.endswith(os.strerror(reason))), None)
        return SpawnFailed(number, message.removeprefix("setpriv: "), self.argv[0])

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Read the output until the process has ended, then end what it left behind in its group."""
        self._running = True
        try:
            await self._output.open(lambda data: self._hand_on(self.tail.feed(data)))
            task_status.started()
            await self._reap()
            self._output.hurry()
            with anyio.move_on_after(_DRAIN_SECONDS):
                await self._output.ended.wait()
        finally:
            self._output.close()
            with anyio.CancelScope(shield=True):
                await self._end(frozenset())
                if self.exit is not None:
                    await self._process.aclose()
            self._hand_on(self.tail.close())
            self.exited.set()

    def calm_down(self, calm: Callable[[], bool] = lambda: True) -> None:
        """From now on, while ``calm`` says so, a line may come a moment later, together with others."""
        self._output.calm_down(calm)

    async def wait(self) -> Exit:
        """Wait for the end; while ``run`` runs, also for the last output."""
        if self._running:
            await self.exited.wait()
        else:
            await self._reap()
        return self.exit or Exit(None, None)

    async def stop(self, grace: float) -> Exit:
        """End the process and everything in its group or session: SIGTERM, ``grace`` seconds, SIGKILL.

        Safe at any time and any number of times. When cancelled, the grace ends and the killing is done all the same.
        """
        family = living_members(self.pid) if self.alive else frozenset()
        try:
            if self.alive and grace > 0:
                signal_group(self.pid, signal.SIGTERM)
                signal_group(self.pid, signal.SIGCONT)  # a stopped process would not see it
                with anyio.move_on_after(grace):
                    await self._reap()
        finally:
            with anyio.CancelScope(shield=True):
                await self._end(family)
                if self._running:
                    with anyio.move_on_after(_DRAIN_SECONDS + KILL_SECONDS):
                        await self.exited.wait()
        return self.exit or Exit(None, None)

    def _hand_on(self, lines: list[str]) -> None:
        if self._on_lines is None or not lines:
            return
        try:
            self._on_lines(lines)
        except Exception:  # noqa: BLE001  a listener's fault must not stop the reading: the child would block
            self.line_errors += 1

    async def _reap(self) -> None:
        code = await self._process.wait()
        if self.exit is None:
            self.exit = Exit(code, None) if code >= 0 else Exit(None, -code)

    async def _end(self, family: Family) -> None:
        """SIGKILL to whatever lives of the group, of ``family`` and with the mark; at most ``KILL_SECONDS``."""
        deadline = anyio.current_time() + KILL_SECONDS
        if self.exit is None:
            if self.alive:
                family |= living_members(self.pid)
                signal_group(self.pid, signal.SIGKILL)
            with anyio.move_on_after(KILL_SECONDS):
                await self._reap()
        self.survivors = await end_family(self.pid, family, deadline, self._mark)
        if self.exit is not None and not self.survivors:
            self._mark = None  # nobody is left who could start one more that carries it
