"""Real leftovers: written down, found and ended at the next start, and nobody else."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from supervisor.clock import SystemClock
from supervisor.events import Event, EventBus, StateFileUnusable
from supervisor.processes.events import LaunchRecordFailed, LeftoversFound, OrphanReaped
from supervisor.processes.launch_records import FOLDER_NAME, LaunchRecords
from supervisor.processes.orphans import BY_MARK, BY_NUMBER, OrphanSweep
from supervisor.processes.proc_table import MARK_VARIABLE
from tests.integration.processes.children import IGNORES_SIGTERM, SLEEPS, wait_gone

WRAPPED = f"""
import subprocess, sys
child = subprocess.Popen([sys.executable, "-ISc", {SLEEPS!r}], start_new_session=True)
print("child", child.pid, flush=True)
child.wait()
"""


class Stage:
    """Records in a folder, and everything that was published."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.bus = EventBus(SystemClock())

    def records(self) -> LaunchRecords:
        """As a new run opens them."""
        return LaunchRecords(self.folder, self.bus)

    async def sweep(self, grace: float = 10) -> None:
        """As the next daemon does at its start."""
        records = self.records()
        sweep = OrphanSweep(records, grace, self.bus)
        await sweep.run()
        assert sweep.done.is_set()
        records.end_run()
        assert self.files() == []

    def files(self) -> list[str]:
        """What is written down."""
        folder = self.folder / FOLDER_NAME
        return sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []

    def events(self, kind: type[Event]) -> list[Any]:
        """Published events of a kind."""
        return [record.event for record in self.bus.since(0) if isinstance(record.event, kind)]


@pytest.fixture
def there(tmp_path: Path) -> Stage:
    """An empty state folder."""
    return Stage(tmp_path)


@contextmanager
def left_behind(code: str, mark: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A process as a killed daemon leaves it, and its first line."""
    with subprocess.Popen(
        [sys.executable, "-ISc", code],
        env={MARK_VARIABLE: mark},
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        assert process.stdout is not None
        try:
            yield process, process.stdout.readline()
        finally:
            process.kill()


async def test_a_leftover_is_asked_to_stop(there: Stage) -> None:
    """SIGTERM is enough for a well-behaved one; its record and its socket go, and it is told."""
    socket = there.folder / "x.sock"
    socket.touch()
    records = there.records()
    mark = await records.open("a1", "m", socket)
    with left_behind(SLEEPS, mark) as (process, _):
        await records.started("a1", process.pid)
        await there.sweep()
        assert process.wait(10) == -signal.SIGTERM
    [told] = there.events(OrphanReaped)
    assert (told.launch, told.model, told.pid, told.forced, told.why) == ("a1", "m", process.pid, False, BY_NUMBER)
    assert [event.launches for event in there.events(LeftoversFound)] == [("a1",)]
    assert not socket.exists()


async def test_one_that_ignores_sigterm_is_killed(there: Stage) -> None:
    """After the grace comes SIGKILL, and the event says so."""
    records = there.records()
    with left_behind(IGNORES_SIGTERM, await records.open("a1", "m", None)) as (process, _):
        await records.started("a1", process.pid)
        await there.sweep(grace=0.05)
        assert process.wait(10) == -signal.SIGKILL
    assert [told.forced for told in there.events(OrphanReaped)] == [True]


async def test_one_that_is_stopped_is_woken_to_end(there: Stage) -> None:
    """SIGSTOP does not cost the whole grace."""
    records = there.records()
    with left_behind(SLEEPS, await records.open("a1", "m", None)) as (process, _):
        os.kill(process.pid, signal.SIGSTOP)
        await records.started("a1", process.pid)
        await there.sweep(grace=60)
        assert process.wait(10) == -signal.SIGTERM


async def test_an_engine_whose_wrapper_is_gone_is_found(there: Stage) -> None:
    """In a session of its own, with its parent dead and reaped: only its mark tells; the record had no number yet."""
    records = there.records()
    with left_behind(WRAPPED, await records.open("a1", "m", None)) as (wrapper, line):
        engine = int(line.split()[1])
        wrapper.kill()
        wrapper.wait()
        await there.sweep()
        assert wait_gone(engine)
    assert [(told.pid, told.why) for told in there.events(OrphanReaped)] == [(engine, BY_MARK)]


async def test_what_was_never_written_down_is_found_by_its_run(there: Stage) -> None:
    """A launch whose record could not be written, and a command that lists devices, carry the run's mark."""
    records = there.records()
    await records.begin_run()
    run = records.run_mark
    with left_behind(SLEEPS, f"{run}.0") as (engine, _), left_behind(SLEEPS, run) as (other, _):
        await there.sweep()
        assert [engine.wait(10), other.wait(10)] == [-signal.SIGTERM] * 2


async def test_a_stranger_with_the_number_lives_on(there: Stage) -> None:
    """Prevents the kill of a process that was given a dead engine's number: the start time differs."""
    records = there.records()
    await records.open("a1", "m", None)
    with left_behind(SLEEPS, "of somebody else, and long") as (stranger, _):
        await records.started("a1", stranger.pid)
        path = there.folder / FOLDER_NAME / "a1.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | {"started": 1}))
        await there.sweep()
        assert stranger.poll() is None
    assert there.events(LeftoversFound) == []


async def test_a_launch_that_ended_leaves_nothing_written(there: Stage) -> None:
    """The folder is empty after a run in good order."""
    records = there.records()
    await records.begin_run()
    await records.open("a1", "m", None)
    await records.started("a1", os.getpid())
    assert there.files() == ["a1.json", f"run-{records.run_mark}.json"]
    records.end_run()
    assert len(there.files()) == 2, "a run with a launch open is not forgotten"
    await records.close("a1")
    records.end_run()
    assert there.files() == []


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        '{"schema": 1}',
        '{"schema": 9}',
        '{"schema": 1, "launch": "a1", "model": "m", "mark": "", "here": {"boot": "", "namespace": "", "folder": ""}}',
    ],
)
async def test_a_corrupt_record_is_set_aside_and_told(there: Stage, text: str) -> None:
    """It stops nothing: the file is kept for the owner, and the other records count."""
    folder = there.folder / FOLDER_NAME
    folder.mkdir()
    (folder / "a1.json").write_text(text)
    (folder / ".a1.json.abc").write_text("a write that was cut off")
    records = there.records()
    await OrphanSweep(records, 1, there.bus).run()
    records.end_run()
    assert there.files() == ["a1.json.bad"]
    assert [event.path for event in there.events(StateFileUnusable)] == [str(folder / "a1.json")]


async def test_a_folder_that_cannot_be_written_stops_no_launch(there: Stage) -> None:
    """On a full or read-only disk a launch gets its mark all the same, and the owner is told."""
    (there.folder / FOLDER_NAME).write_text("a file where the folder should be")
    records = there.records()
    await OrphanSweep(records, 1, there.bus).run()
    assert (await records.open("a1", "m", None)).startswith(records.run_mark)
    await records.started("a1", os.getpid())
    await records.close("a1")
    assert {event.launch for event in there.events(LaunchRecordFailed)} == {f"run-{records.run_mark}", "a1"}


async def test_without_a_folder_nothing_is_written() -> None:
    """Marks are given out all the same."""
    records = LaunchRecords()
    assert (await records.open("a1", "m", None)).startswith(records.run_mark)
    await records.started("a1", os.getpid())
    await records.close("a1")
    assert await records.left() == []
