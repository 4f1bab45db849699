"""A model's log from the line that is handed in to the file: floods, secrets, failures, the end."""

import threading
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import anyio
import anyio.from_thread
import anyio.lowlevel
import pytest

from supervisor.clock import Clock, SystemClock
from supervisor.events import EventBus, StateFileUnusable
from supervisor.processes.log_disk import Written, append_chunks
from supervisor.processes.log_folder import CLOSE_SECONDS, LogFolder, WriteChunks
from supervisor.processes.log_lines import LaunchEnd, LaunchStart
from supervisor.processes.log_policy import Chunk, LogLimits
from supervisor.processes.log_reader import LoggedLine, LogReader
from supervisor.telemetry.redaction import Redactor
from tests.fakes.clock import HandClock

_MODEL = "qwen/Qwen3"
_START = LaunchStart("a1b2c3", 1, "cpu", 77)
_END = LaunchEnd("a1b2c3", "ready", None, 11, "CRASH")


def _same(text: str) -> str:
    return text


class Stage:
    """A folder of logs whose task runs; counts what it wrote, and can be told to fail or to hang.

    Attributes:
        refuse: what each write fails with, if anything.
        hang: set by the test when a hanging write may go on; None: none hangs.
    """

    def __init__(
        self, parent: Path, clock: Clock | None = None, limits: LogLimits | None = None, *, clean: Callable[[str], str]
    ) -> None:
        clock = clock or SystemClock()
        self.bus = EventBus(clock)
        self.refuse: OSError | None = None
        self.hang: threading.Event | None = None
        self.folder = LogFolder(parent / "logs", clock, self.bus, clean, limits=limits, write=self.write)
        self.log = self.folder.of(_MODEL)
        self._writes = 0
        self._written = anyio.Event()

    def write(self, path: Path, chunks: Sequence[Chunk], file_bytes: int) -> Written:
        """In the folder's thread."""
        if self.hang is not None:
            self.hang.wait()
        outcome = Written(0, self.refuse) if self.refuse else append_chunks(path, chunks, file_bytes)
        anyio.from_thread.run_sync(self._count)
        return outcome

    def _count(self) -> None:
        self._writes += 1
        self._written.set()
        self._written = anyio.Event()

    async def until_written(self, what: Callable[[], object], writes: int = 1) -> None:
        """Do something, and wait until so many writes after it have come and gone."""
        before = self._writes
        what()
        while self._writes < before + writes:
            await self._written.wait()
        while self.folder._threads.borrowed_tokens:
            await anyio.lowlevel.checkpoint()

    def read(self) -> list[LoggedLine]:
        """All that is in the files."""
        reader = LogReader(self.log.path)
        return [*reader.new(), *reader.close()]

    def texts(self) -> list[str]:
        """Their texts."""
        return [line.text for line in self.read()]

    def complaints(self) -> list[StateFileUnusable]:
        """Events so far."""
        events = [record.event for record in self.bus.since(0)]
        assert all(isinstance(event, StateFileUnusable) for event in events)
        return [event for event in events if isinstance(event, StateFileUnusable)]


@asynccontextmanager
async def _stage(
    parent: Path,
    clock: Clock | None = None,
    limits: LogLimits | None = None,
    *,
    clean: Callable[[str], str] = _same,
) -> AsyncIterator[Stage]:
    """At its end all that was handed in is written."""
    stage = Stage(parent, clock, limits, clean=clean)
    async with anyio.create_task_group() as tasks:
        await tasks.start(stage.folder.run)
        yield stage
        tasks.cancel_scope.cancel()


async def test_a_launch_is_framed_by_what_it_was_and_how_it_ended(tmp_path: Path) -> None:
    """Lines stand in order between the launch's first line and its last, each with its time and launch."""
    clock = HandClock(start=1_700_000_000.25)
    async with _stage(tmp_path, clock) as stage:
        stage.log.started(_START)
        stage.log.write_line("loading")
        clock.advance(2)
        stage.log.write_line("ready")
        stage.log.ended(_END)
    assert stage.read() == [
        LoggedLine(
            1_700_000_000.25, "a1b2c3", "started", 'launch a1b2c3 of "qwen/Qwen3": generation 1, build cpu, pid 77'
        ),
        LoggedLine(1_700_000_000.25, "a1b2c3", "engine", "loading"),
        LoggedLine(1_700_000_002.25, "a1b2c3", "engine", "ready"),
        LoggedLine(1_700_000_002.25, "a1b2c3", "ended", "launch a1b2c3 ended while ready: signal 11, CRASH"),
    ]


async def test_lines_are_on_disk_while_the_launch_goes_on(tmp_path: Path) -> None:
    """Without an end, a flood or a shutdown a line is written within half a second."""
    async with _stage(tmp_path) as stage:
        with anyio.fail_after(20):
            began = anyio.current_time()
            await stage.until_written(lambda: stage.log.write_line("one"))
            assert anyio.current_time() - began < 5  # a quarter of a second; a busy machine takes its time
            assert stage.texts() == ["one"]
            await stage.until_written(lambda: stage.log.write_line("two"))
            assert stage.texts() == ["one", "two"]


async def test_the_end_of_a_launch_is_written_at_once(tmp_path: Path) -> None:
    """The last words are there when a crash is looked at, also when the clock stands."""
    async with _stage(tmp_path) as stage:
        stage.log.started(_START)
        with anyio.fail_after(20):
            await stage.until_written(lambda: stage.log.ended(_END))
        assert [line.kind for line in stage.read()] == ["started", "ended"]


async def test_no_key_reaches_the_file(tmp_path: Path) -> None:
    """A key in a line, in a build's name or in the last words is hidden, though it is forgotten before the write."""
    key = "sk-0123456789abcdef"
    redactor = Redactor([key])
    async with _stage(tmp_path, clean=redactor.clean) as stage:
        stage.log.started(LaunchStart("a1", 1, f"build-{key}", 7), skipped=iter((0, 5, 5, 5, 5)).__next__)
        stage.log.ended(LaunchEnd("a1", "ready", 1, None, "CRASH", log=(f"using {key}",)))
        stage.log.write_line(f"api key {key} is 'Bearer {key}'")
        redactor.discard(key)
    text = stage.log.path.read_text()
    assert key not in text
    assert "build-***" in text
    assert "using ***" in text
    assert "api key *** is" in text


async def test_a_flood_is_cut_and_says_so(tmp_path: Path) -> None:
    """What passes is the burst, then one line counts what did not, and the next lines are there again."""
    clock = HandClock()
    async with _stage(tmp_path, clock, LogLimits(rate=1000, burst=10_000)) as stage:
        for number in range(1000):
            stage.log.write_line(f"flood {number:08d}")
        clock.advance(60)
        stage.log.write_line("calm")
    texts = stage.texts()
    kept = [text for text in texts if text.startswith("flood")]
    assert len(kept) == 10_000 // (28 + 14)
    assert texts == [*kept, f"… {1000 - len(kept)} lines left out (flood)", "calm"]


async def test_a_flood_that_ends_in_silence_is_told_all_the_same(tmp_path: Path) -> None:
    """Prevents a gap without a word where the engine says nothing afterwards."""
    clock = HandClock()
    async with _stage(tmp_path, clock, LogLimits(rate=1000, burst=1000)) as stage:

        def write(line: str, times: int) -> None:
            for _ in range(times):
                stage.log.write_line(line)

        with anyio.fail_after(20):
            await stage.until_written(lambda: write("x" * 72, 20))
            assert stage.texts() == ["x" * 72] * 10
            await stage.until_written(lambda: clock.advance(60))
            assert stage.texts()[10:] == ["… 10 lines left out (flood)"]


async def test_lines_that_never_came_are_counted_too(tmp_path: Path) -> None:
    """What the reader of the pipe skipped is part of the flood, told where it is missing."""
    skipped = 0
    async with _stage(tmp_path) as stage:
        skipped = 100
        stage.log.started(_START, skipped=lambda: skipped)
        stage.log.write_line("a")
        skipped += 5
        stage.log.write_line("b")
        skipped += 1
        with anyio.fail_after(20):
            await stage.until_written(lambda: None)
            await stage.until_written(lambda: None)
        assert stage.texts()[1:] == ["a", "… 5 lines left out (flood)", "b", "… 1 line left out (flood)"]


async def test_a_floods_last_words_are_kept(tmp_path: Path) -> None:
    """Prevents the lines before a crash from being those that a flood swallowed: as many as are missing, no more."""
    clock = HandClock()
    async with _stage(tmp_path, clock, LogLimits(rate=1000, burst=1000)) as stage:
        stage.log.started(_START)
        for number in range(13):
            stage.log.write_line(f"{number:072d}")
        words = tuple(f"{number:072d}" for number in range(3, 13))
        stage.log.ended(LaunchEnd("a1b2c3", "ready", None, 6, "ENGINE_ASSERT", log=words))
        stage.log.started(_START)
        clock.advance(10)
        stage.log.write_line("again")
        stage.log.ended(LaunchEnd("a1b2c3", "ready", 0, None, "UNKNOWN", log=("again",)))
    texts = stage.texts()
    assert texts[11:15] == ["… 3 lines left out (flood)", *(f"{number:072d}" for number in (10, 11, 12))]
    assert texts.count("again") == 1


async def test_a_log_that_can_not_be_written_is_told_once_and_goes_on_when_it_can(tmp_path: Path) -> None:
    """One event for a failure however long it lasts, another for the next one; what is missing is counted."""
    async with _stage(tmp_path) as stage:
        with anyio.fail_after(30):
            stage.log.started(_START)
            stage.refuse = OSError(28, "No space left on device")
            for line in ("lost 1", "lost 2", "lost 3"):
                await stage.until_written(partial(stage.log.write_line, line))
            assert [event.path for event in stage.complaints()] == [str(stage.log.path)]
            assert "No space left on device" in stage.complaints()[0].reason
            stage.refuse = None
            await stage.until_written(lambda: stage.log.write_line("kept"))
            assert stage.texts() == ["… 4 lines left out (the log could not be written)", "kept"]
            assert {line.launch for line in stage.read()} == {"a1b2c3"}
            await stage.until_written(lambda: stage.log.write_line("more"))
            assert stage.texts()[1:] == ["kept", "more"]
            stage.refuse = OSError(30, "Read-only file system")
            await stage.until_written(lambda: stage.log.write_line("lost 4"))
            assert len(stage.complaints()) == 2


async def test_a_folder_that_vanishes_is_made_again(tmp_path: Path) -> None:
    """Somebody who cleans up takes the old lines, not the next ones."""
    async with _stage(tmp_path) as stage:
        with anyio.fail_after(20):
            await stage.until_written(lambda: stage.log.write_line("one"))
            stage.log.path.unlink()
            stage.log.path.parent.rmdir()
            await stage.until_written(lambda: stage.log.write_line("two"))
            assert stage.texts() == ["two"]
            assert not stage.complaints()


async def test_a_state_folder_that_vanishes_is_told_and_not_made_again(tmp_path: Path) -> None:
    """A disk that was unmounted: nothing is written below its mount point."""
    parent = tmp_path / "state"
    parent.mkdir()
    async with _stage(parent) as stage:
        parent.rmdir()
        with anyio.fail_after(20):
            await stage.until_written(lambda: stage.log.write_line("lost"))
        assert len(stage.complaints()) == 1
        assert not parent.exists()


async def test_a_disk_that_hangs_costs_lines_and_a_moment_at_the_end(tmp_path: Path) -> None:
    """Lines are bounded in memory while the disk does not answer, and the shutdown does not wait for it."""
    clock, limits = HandClock(), LogLimits(rate=1e9, burst=100_000)
    stage = Stage(tmp_path, clock, limits, clean=_same)
    hang = stage.hang = threading.Event()
    try:
        async with anyio.create_task_group() as tasks:
            await tasks.start(stage.folder.run)
            stage.log.ended(_END)
            await anyio.wait_all_tasks_blocked()
            for _ in range(10_000):
                clock.advance(1)
                stage.log.write_line("x" * 72)
                await anyio.lowlevel.checkpoint()
            stage.log.ended(_END)
            kept = b"".join(chunk.data for chunk in stage.log.take())
            assert kept.endswith(b"CRASH\n")
            assert len(kept) < 100_000 + 256 * 1024 + 1000
            for _ in range(5000):
                stage.log.started(_START)
                stage.log.ended(_END)
                await anyio.lowlevel.checkpoint()
            assert sum(len(chunk.data) for chunk in stage.log.take()) <= 100_000 + 512 * 1024
            stage.log.ended(_END)
            began = anyio.current_time()
            tasks.cancel_scope.cancel()
        assert CLOSE_SECONDS * 0.9 < anyio.current_time() - began < 20
    finally:
        await stage.until_written(hang.set, writes=2)


async def test_what_was_being_written_at_the_end_comes_before_what_was_left(tmp_path: Path) -> None:
    """A cancelled write goes on in its thread, and the last one waits for it: no line is lost, or out of order."""
    stage = Stage(tmp_path, clean=_same)
    hang = stage.hang = threading.Event()
    async with anyio.create_task_group() as tasks:
        await tasks.start(stage.folder.run)
        stage.log.started(_START)
        stage.log.ended(_END)
        await anyio.wait_all_tasks_blocked()
        stage.log.write_line("after")
        tasks.cancel_scope.cancel()
        hang.set()
    assert [line.kind for line in stage.read()] == ["started", "ended", "engine"]


async def test_what_was_just_going_to_be_written_at_the_end_is_written(tmp_path: Path) -> None:
    """Prevents a launch's last lines from being lost where the shutdown comes before their thread has begun."""
    for turns in range(12):
        parent = tmp_path / str(turns)
        parent.mkdir()
        async with _stage(parent) as stage:
            stage.log.started(_START)
            stage.log.ended(_END)
            for _ in range(turns):
                await anyio.lowlevel.checkpoint()
        assert [line.kind for line in stage.read()] == ["started", "ended"]


async def test_each_model_has_one_log(tmp_path: Path) -> None:
    """The same object for the same id, another file for another; nothing is made on disk before the first line."""
    async with _stage(tmp_path) as stage:
        other = stage.folder.of("qwen/qwen3")
        assert stage.folder.of(_MODEL) is stage.log
        assert not (tmp_path / "logs").exists()
        stage.log.write_line("mine")
        other.write_line("theirs")
    assert stage.texts() == ["mine"]
    assert "theirs" in other.path.read_text()


async def test_a_rotated_file_still_knows_its_launch(tmp_path: Path) -> None:
    """Prevents lines of a long launch from belonging to nobody once its first line was rotated away."""
    async with _stage(tmp_path, limits=LogLimits(max_bytes=2**16)) as stage:
        stage.log.started(_START)
        for number in range(3000):
            stage.log.write_line(f"line {number}")
    lines = stage.read()
    assert {line.launch for line in lines} == {"a1b2c3"}
    assert lines[-1].text == "line 2999"
    assert len(lines) < 3000
    assert {line.kind for line in lines} == {"engine"}


async def test_lines_of_two_launches_in_one_write_are_told_apart(tmp_path: Path) -> None:
    """Prevents a quick restart's lines from being the earlier launch's, once a rotation lies between."""
    async with _stage(tmp_path, limits=LogLimits(max_bytes=2**16)) as stage:
        stage.log.started(_START)
        stage.log.ended(_END)
        stage.log.started(LaunchStart("d4e5f6", 2, "cpu", 78))
        for number in range(3000):
            stage.log.write_line(f"line {number}")
    assert {line.launch for line in stage.read()} == {"d4e5f6"}


async def test_nothing_turns_while_nothing_comes(tmp_path: Path) -> None:
    """An idle daemon's log costs no wakeups: after the last write the task waits for a line."""
    async with _stage(tmp_path) as stage:
        with anyio.fail_after(20):
            await stage.until_written(lambda: stage.log.write_line("one"))
            while stage.folder._bell.rung.is_set():
                await anyio.lowlevel.checkpoint()


@pytest.mark.parametrize("text", ["\ud800", "a\nb\rc\x1b[31m\u2028d", "\0", "x" * 100_000])
async def test_no_line_is_refused(tmp_path: Path, text: str) -> None:
    """Whatever an engine says is one line of the file."""
    async with _stage(tmp_path) as stage:
        stage.log.write_line(text)
    assert len(stage.log.path.read_text().splitlines()) == 2
    assert len(stage.texts()) == 1


def _check_protocol(write: WriteChunks = append_chunks) -> WriteChunks:
    """For the type checker: what writes by default is what the folder asks for."""
    return write
