"""The pipe of a child's output, over real pipes."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from supervisor.processes.output_pipe import OutputPipe

_PIPES = 2000
_THREADS = 4


class Churn(threading.Thread):
    """Opens and closes a file over and over; ``lost`` counts those that somebody else had closed."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.lost = 0
        self._over = threading.Event()

    def run(self) -> None:
        """Until told to end."""
        while not self._over.is_set():
            fd = os.open(os.devnull, os.O_RDONLY)
            try:
                os.read(fd, 1)
                os.close(fd)
            except OSError:
                self.lost += 1

    def end(self) -> None:
        """And wait for it."""
        self._over.set()
        self.join()


@pytest.mark.blocks_loop("threads take the interpreter in between")
async def test_what_other_threads_have_open_is_not_closed() -> None:
    """Prevents a pipe from being closed twice: the second time it was a file of somebody else under the same number."""
    before = _open_files()
    threads = [Churn() for _ in range(_THREADS)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(_PIPES):
            pipe = OutputPipe()
            await pipe.open(lambda _: None)
            pipe.close()
            await pipe.ended.wait()
    finally:
        for thread in threads:
            thread.end()
    assert [thread.lost for thread in threads] == [0] * _THREADS
    assert _open_files() < before + _PIPES // 10


def _open_files() -> int:
    return sum(1 for _ in Path("/dev/fd").iterdir())
