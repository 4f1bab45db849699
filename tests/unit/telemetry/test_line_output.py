"""Log lines into something that may stand still."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

import pytest

from supervisor.telemetry.line_output import LineOutput


@pytest.fixture
def pipe() -> Iterator[tuple[int, TextIO]]:
    """A pipe's end to read from, and a stream that writes into it."""
    read_end, write_end = os.pipe()
    with os.fdopen(write_end, "w") as stream:
        yield read_end, stream
    os.close(read_end)


def _read(fd: int) -> str:
    os.set_blocking(fd, False)
    parts = []
    try:
        while part := os.read(fd, 65536):
            parts.append(part)
    except BlockingIOError:
        pass
    return b"".join(parts).decode()


def test_a_pipe_that_nobody_reads_stops_nobody(pipe: tuple[int, TextIO]) -> None:
    """Prevents a daemon that stands still because its log collector does: lines are dropped, and later told of."""
    read_end, stream = pipe
    output = LineOutput(stream, lambda count: f"dropped {count}")
    for number in range(5000):
        output.msg(f"line {number:05d} {'x' * 90}")
    assert output.dropped > 0
    dropped = output.dropped
    first = _read(read_end).splitlines()
    assert len(first) + dropped == 5000
    assert all(line.startswith("line ") and len(line) == 101 for line in first)
    output.msg("again")
    assert _read(read_end).splitlines() == [f"dropped {dropped}", "again"]
    assert output.dropped == 0


def test_a_line_that_is_cut_short_does_not_swallow_the_next(pipe: tuple[int, TextIO]) -> None:
    """The one that follows begins a line of its own."""
    read_end, stream = pipe
    output = LineOutput(stream, lambda count: f"dropped {count}")
    output.msg("y" * 200_000)
    assert output.dropped == 1
    cut = _read(read_end)
    assert cut
    assert set(cut) == {"y"}
    output.msg("next")
    assert _read(read_end) == "\ndropped 1\nnext\n"


def test_a_file_takes_everything(tmp_path: Path) -> None:
    """Nothing is looked at, and nothing dropped."""
    path = tmp_path / "log"
    with path.open("w") as stream:
        output = LineOutput(stream, lambda count: f"dropped {count}")
        output.msg("z" * 200_000)
        output.msg("next")
        assert path.read_text() == "z" * 200_000 + "\nnext\n"


def test_a_reader_that_is_gone_is_no_error(pipe: tuple[int, TextIO]) -> None:
    """A closed pipe loses lines and stops nothing."""
    read_end, stream = pipe
    output = LineOutput(stream, lambda count: f"dropped {count}")
    other = os.dup(read_end)
    os.dup2(os.open(os.devnull, os.O_RDONLY), read_end)
    os.close(other)
    output.msg("into the void")
