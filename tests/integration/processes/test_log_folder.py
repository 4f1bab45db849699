"""Logs of real children: a real flood, and a real SIGKILL."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import anyio
import psutil
import pytest

from supervisor.clock import SystemClock
from supervisor.events import EventBus
from supervisor.processes.log_folder import LogFolder
from supervisor.processes.log_lines import LaunchEnd, LaunchStart, log_path, older_path
from supervisor.processes.log_policy import LogLimits
from supervisor.processes.log_reader import LoggedLine, LogReader
from tests.integration.processes.children import Lines, python, started

_MIB = 2**20
_LAST_WORDS = 40
# Far more than the burst, the buffers and the files hold together, at the speed of a pipe.
_FLOOD_MIB = 200
_FLOOD = f"""
import os
block = b"noise noise noise noise noise\\n" * 2184
for _ in range({_FLOOD_MIB} * 16): os.write(1, block)
os.write(1, b"the last words\\n")
"""
# A daemon of its own: half a second after a line was handed in, it is killed as it stands.
_DAEMON = """
import sys
sys.path[:0] = {path!r}
from pathlib import Path
import anyio
from supervisor.clock import SystemClock
from supervisor.events import EventBus
from supervisor.processes.log_folder import LogFolder
from supervisor.processes.log_lines import LaunchStart
async def main():
    clock = SystemClock()
    folder = LogFolder(Path({folder!r}), clock, EventBus(clock), lambda text: text)
    async with anyio.create_task_group() as tasks:
        await tasks.start(folder.run)
        log = folder.of("m")
        log.started(LaunchStart("a1", 1, "cpu", 7))
        for number in range(1000):
            log.write_line(f"line {{number}}")
        await anyio.sleep(0.5)
        print("up", flush=True)
        await anyio.sleep_forever()
anyio.run(main)
"""


def _read(path: Path) -> list[LoggedLine]:
    def lines() -> Iterator[LoggedLine]:
        reader = LogReader(path)
        yield from reader.new()
        yield from reader.close()

    return list(lines())


@pytest.mark.parametrize("max_bytes", [256 * 1024, 64 * _MIB])
async def test_a_flood_fills_neither_memory_nor_disk_and_keeps_its_last_words(tmp_path: Path, max_bytes: int) -> None:
    """The child is never held up, the loop turns (the guard watches), and what is not there is counted."""
    clock, limits = SystemClock(), LogLimits(max_bytes, rate=256 * 1024, burst=_MIB)
    folder = LogFolder(tmp_path / "logs", clock, EventBus(clock), lambda text: text, limits=limits)
    log = folder.of("m")
    me = psutil.Process()
    async with anyio.create_task_group() as tasks:
        await tasks.start(folder.run)
        before, most = me.memory_info().rss, 0
        async with started(python(_FLOOD), log.write_lines) as child:
            log.started(LaunchStart("a1", 1, "cpu", child.pid), skipped=lambda: child.tail.skipped_lines)
            while child.alive:
                most = max(most, me.memory_info().rss)
                assert _total(log.path) <= max_bytes
                with anyio.move_on_after(0.05):
                    await child.exited.wait()
            await child.wait()
            log.ended(LaunchEnd("a1", "ready", 0, None, "UNKNOWN", log=child.tail.lines(_LAST_WORDS)))
        tasks.cancel_scope.cancel()
    assert most - before < 16 * _MIB
    assert _total(log.path) <= max_bytes
    lines = _read(log.path)
    assert [line.text for line in lines[-2:]] == ["the last words", "launch a1 ended while ready: exit code 0, UNKNOWN"]
    told = sum(int(line.text.split()[1]) for line in lines if line.kind == "note")
    there = sum(line.kind == "engine" for line in lines)
    assert told > 0
    if max_bytes > 2 * _MIB:
        # The last words are counted as left out, and are there.
        assert child.tail.line_count <= told + there <= child.tail.line_count + _LAST_WORDS
        assert log.path.stat().st_size < 2 * _MIB + 256 * 1024 * (clock.monotonic() - child.started_monotonic)


def _total(path: Path) -> int:
    return sum(file.stat().st_size for file in (path, older_path(path)) if file.exists())


async def test_what_was_written_survives_the_daemons_sigkill(tmp_path: Path) -> None:
    """Half a second after they came all lines are there, and a next daemon goes on in the same file."""
    seen = Lines()
    code = _DAEMON.format(path=sys.path, folder=str(tmp_path / "logs"))
    async with started(python(code), seen.take) as child:
        await seen.wait_for("up")
        psutil.Process(child.pid).send_signal(signal.SIGKILL)
        await child.wait()
    path = log_path(tmp_path / "logs", "m")
    assert [line.text for line in _read(path)][1:] == [f"line {number}" for number in range(1000)]
    clock = SystemClock()
    folder = LogFolder(tmp_path / "logs", clock, EventBus(clock), lambda text: text)
    async with anyio.create_task_group() as tasks:
        await tasks.start(folder.run)
        folder.of("m").started(LaunchStart("b2", 1, "cpu", 8))
        folder.of("m").write_line("afterwards")
        tasks.cancel_scope.cancel()
    last = _read(path)[-1]
    assert (last.launch, last.text) == ("b2", "afterwards")
