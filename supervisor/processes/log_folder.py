"""What engines say, kept on disk for later: the last megabytes of each model, readable after any crash."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path

import anyio
import anyio.to_thread
from anyio.abc import TaskStatus

from supervisor.clock import Clock
from supervisor.events import EventBus
from supervisor.processes.log_disk import Written, append_chunks
from supervisor.processes.log_file import LogFile
from supervisor.processes.log_lines import log_path
from supervisor.processes.log_policy import Chunk, LogLimits

# How long lines wait for others to be written with them.
WRITE_SECONDS = 0.25
# At the daemon's end; a disk that does not answer is not waited for longer.
CLOSE_SECONDS = 1.0

WriteChunks = Callable[[Path, Sequence[Chunk], int], Written]
"""Adds chunks to a log of at most so many bytes a file; blocks, and never raises OSError."""


class LogFolder:
    """The folder of all models' logs, and the task that writes them.

    Lines that come while ``run`` does not run are kept, within bounds, until it does.
    """

    def __init__(
        self,
        folder: Path,
        clock: Clock,
        bus: EventBus,
        clean: Callable[[str], str],
        *,
        limits: LogLimits | None = None,
        write: WriteChunks = append_chunks,
    ) -> None:
        """Touches no disk.

        Args:
            folder: made when first needed; its parent must be there.
            clock: stamps lines, measures floods.
            bus: told of a log that can't be written, once until it can be.
            clean: takes secrets out of a line.
            limits: for each model.
            write: what the thread does.
        """
        self._folder = folder
        self._clock = clock
        self._bus = bus
        self._clean = clean
        self._limits = limits or LogLimits()
        self._write = write
        self._files: dict[str, LogFile] = {}
        self._bell = _TaskBell()
        self._queue: deque[tuple[LogFile, Sequence[Chunk]]] = deque()
        self._writing = threading.Lock()
        self._threads = anyio.CapacityLimiter(1)  # its own: a flush does not queue behind others' work

    def of(self, model_id: str) -> LogFile:
        """The model's log, always the same one."""
        if model_id not in self._files:
            path = log_path(self._folder, model_id)
            self._files[model_id] = LogFile(model_id, path, self._limits, self._clock, self._clean, self._bell)
        return self._files[model_id]

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Write what comes until cancelled, then what is left, within ``CLOSE_SECONDS``."""
        task_status.started()
        try:
            while True:
                await self._bell.rung.wait()
                with anyio.move_on_after(WRITE_SECONDS):
                    await self._bell.hurried.wait()
                await self._flush()
        finally:
            with anyio.move_on_after(CLOSE_SECONDS, shield=True):
                await self._flush()

    async def _flush(self) -> None:
        self._bell.hurried = anyio.Event()
        self._queue.extend((log, taken) for log in self._files.values() if (taken := log.take()))
        if not self._queue and not self._writing.locked():
            # Only now is there nothing to come back for: a flood may have ended without another line.
            if not any(log.unsettled for log in self._files.values()):
                self._bell.rung = anyio.Event()
            return
        # Cancelled: a thread that was begun goes on and keeps the lock for as long as the disk takes; one that was not
        # leaves everything in the queue.
        outcomes = await anyio.to_thread.run_sync(self._write_queued, abandon_on_cancel=True, limiter=self._threads)
        for log, chunks, outcome in outcomes:
            if event := log.written(chunks, outcome):
                self._bus.publish(event)

    def _write_queued(self) -> list[tuple[LogFile, Sequence[Chunk], Written]]:
        outcomes = []
        with self._writing:
            while self._queue:
                log, chunks = self._queue.popleft()
                outcomes.append((log, chunks, self._write(log.path, chunks, self._limits.file_bytes)))
        return outcomes


class _TaskBell:
    def __init__(self) -> None:
        self.rung = anyio.Event()
        self.hurried = anyio.Event()

    def ring(self) -> None:
        self.rung.set()

    def hurry(self) -> None:
        self.rung.set()
        self.hurried.set()
