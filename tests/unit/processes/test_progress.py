"""Progress counters and the watch over them."""

import os
from dataclasses import replace
from pathlib import Path

import pytest

from supervisor.processes.progress import ProgressSample, StallWatch, read_progress

_STILL = ProgressSample(read_bytes=1000, rss_bytes=2**24, cpu_seconds=1.0, faults=50)


def test_our_own_counters_can_be_read() -> None:
    """A living process has memory, CPU time and faults."""
    sample = read_progress(os.getpid())
    assert sample is not None
    assert sample.rss_bytes > 2**20
    assert sample.faults > 0
    assert sample.cpu_seconds > 0


def test_a_process_that_is_gone_has_no_sample(tmp_path: Path) -> None:
    """No folder in /proc, or nonsense in it, reads as None."""
    assert read_progress(1, tmp_path) is None
    (tmp_path / "proc/1").mkdir(parents=True)
    (tmp_path / "proc/1/stat").write_text("1 (x")
    (tmp_path / "proc/1/statm").write_text("")
    assert read_progress(1, tmp_path) is None


def test_a_name_with_brackets_and_a_forbidden_io_file_are_understood(tmp_path: Path) -> None:
    """The counters are found behind any process name; what the kernel won't tell is None, not 0."""
    folder = tmp_path / "proc/7"
    folder.mkdir(parents=True)
    (folder / "stat").write_text("7 (a) b (c) S 1 7 7 0 -1 4194560 300 0 20 0 150 50 0 0 20 0 1 0 99 0 0\n")
    (folder / "statm").write_text("100 25 3 1 0 9 0\n")
    sample = read_progress(7, tmp_path)
    assert sample is not None
    assert (sample.read_bytes, sample.faults) == (None, 320)
    assert sample.rss_bytes == 25 * os.sysconf("SC_PAGE_SIZE")
    assert sample.cpu_seconds == 200 / os.sysconf("SC_CLK_TCK")
    (folder / "io").write_text("rchar: 10\nwchar: 1\nread_bytes: 5\n")
    assert read_progress(7, tmp_path) == replace(sample, read_bytes=15)


@pytest.mark.parametrize(
    "moved",
    [
        replace(_STILL, read_bytes=10**6),
        replace(_STILL, rss_bytes=2**25),
        replace(_STILL, faults=5000),
    ],
)
def test_reading_growing_and_faulting_are_progress(moved: ProgressSample) -> None:
    """Each counter alone starts the time anew."""
    watch = StallWatch(0)
    watch.observe(0, _STILL, 0)
    assert watch.observe(50, _STILL, 0) == 50
    assert watch.observe(60, moved, 0) == 0
    assert watch.still_since == 60


def test_a_log_line_is_progress_even_without_counters() -> None:
    """Where /proc can't be read the log alone is watched."""
    watch = StallWatch(0)
    assert watch.observe(40, None, 0) == 40
    assert watch.observe(50, None, 80) == 0
    assert watch.observe(70, None, 80) == 20


def test_answering_probes_is_no_progress() -> None:
    """Prevents a hung engine that answers 503 from being waited for for ever: small movements don't count."""
    watch = StallWatch(0)
    watch.observe(0, _STILL, 0)
    for second in range(1, 61):
        busy = replace(_STILL, cpu_seconds=1 + 0.01 * second, faults=50 + second, read_bytes=1000 + 500 * second)
        assert watch.observe(second, busy, 0) == second


def test_slow_progress_adds_up() -> None:
    """A slow disk moves little between two looks; the sum since the last real movement counts."""
    watch = StallWatch(0)
    watch.observe(0, _STILL, 0)
    stalls = [watch.observe(s, replace(_STILL, read_bytes=1000 + 20_000 * s), 0) for s in range(1, 30)]
    assert max(stalls) <= 4


def test_a_load_that_moves_is_not_cut_after_forty_minutes() -> None:
    """Forty minutes of steady reading from a slow disk never stand still; a minute of silence after them does."""
    watch = StallWatch(0)
    watch.observe(0, _STILL, 0)
    end = 40 * 60
    stalls = [watch.observe(s, replace(_STILL, read_bytes=1000 + 2**17 * s), 0) for s in range(0, end, 5)]
    assert max(stalls) <= 5
    assert watch.observe(end + 60, replace(_STILL, read_bytes=1000 + 2**17 * (end - 5)), 0) >= 60


def test_memory_that_the_kernel_takes_away_is_no_progress() -> None:
    """Prevents a load that hangs under memory pressure from counting as moving; growing again does count."""
    watch = StallWatch(0)
    watch.observe(0, replace(_STILL, rss_bytes=2**30), 0)
    for second in range(1, 61):
        assert watch.observe(second, replace(_STILL, rss_bytes=2**30 - second * 2**22), 0) == second
    assert watch.observe(61, replace(_STILL, rss_bytes=2**30 - 58 * 2**22), 0) == 0


def test_real_progress_starts_the_allowance_anew() -> None:
    """Ten minutes of computing after each real movement; then the clock runs from the last moment that counted."""
    watch = StallWatch(0, cpu_allowance=600)
    watch.observe(0, _STILL, 0)
    for second in range(10, 591, 10):
        watch.observe(second, replace(_STILL, cpu_seconds=1 + second), 0)
    assert watch.observe(600, replace(_STILL, cpu_seconds=601), 80) == 0
    for second in range(610, 1201, 10):
        assert watch.observe(second, replace(_STILL, cpu_seconds=1 + second), 80) == 0
    assert watch.observe(1230, replace(_STILL, cpu_seconds=1231), 80) == 30


def test_the_engine_behind_a_shell_is_watched(tmp_path: Path) -> None:
    """Prevents a silent load behind a script from being cut: the shell itself moves nothing."""
    for pid, children, reads in ((7, "8 ", 10), (8, "", 500)):
        folder = tmp_path / f"proc/{pid}"
        (folder / f"task/{pid}").mkdir(parents=True)
        (folder / "stat").write_text(f"{pid} (x) S 1 7 7 0 -1 4194560 300 0 20 0 150 50 0 0 20 0 1 0 99 0 0\n")
        (folder / "statm").write_text("100 25 3 1 0 9 0\n")
        (folder / "io").write_text(f"rchar: {reads}\nread_bytes: 0\n")
        (folder / f"task/{pid}/children").write_text(children)
    sample = read_progress(7, tmp_path)
    assert sample is not None
    assert (sample.read_bytes, sample.faults) == (510, 640)
    assert sample.rss_bytes == 50 * os.sysconf("SC_PAGE_SIZE")


def test_cpu_time_alone_counts_for_the_allowance_only() -> None:
    """Shader compilation is waited for; a loop that never ends is not."""
    watch = StallWatch(0, cpu_allowance=600)
    watch.observe(0, _STILL, 0)
    for second in range(10, 601, 10):
        assert watch.observe(second, replace(_STILL, cpu_seconds=1 + second), 0) == 0
    assert watch.observe(610, replace(_STILL, cpu_seconds=611), 0) == 10
    assert watch.observe(660, replace(_STILL, cpu_seconds=661), 0) == 60
