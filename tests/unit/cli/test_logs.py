"""``enginehouse logs``: files alone are read; text for people, JSON for scripts."""

from __future__ import annotations

import contextlib
import io
import itertools
import json
import os
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from supervisor.cli.logs import logs_command
from supervisor.errors import SupervisorError
from supervisor.processes.log_disk import append_chunks
from supervisor.processes.log_lines import (
    LaunchEnd,
    LaunchStart,
    LineWriter,
    Mark,
    continued_text,
    end_text,
    log_path,
    start_text,
)
from supervisor.processes.log_policy import Chunk
from tests.unit.cli.command import Ended, Terminal

_AT = 1_700_000_000.0
_WRITER = LineWriter()


def _write(state: Path, model: str, *lines: tuple[Mark, str], limit: int = 2**20) -> None:
    data = b"".join(_WRITER.render(_AT, mark, text) for mark, text in lines)
    head = _WRITER.render(_AT, Mark.CONTINUED, continued_text(model, None))
    chunk = Chunk(head, opens=lines[0][0] is Mark.STARTED, data=data)
    assert append_chunks(log_path(state / "logs", model), [chunk], limit).error is None


def _launch(launch: str, *texts: str) -> list[tuple[Mark, str]]:
    return [
        (Mark.STARTED, start_text("m", LaunchStart(launch, 1, "cpu", 7))),
        *((Mark.ENGINE, text) for text in texts),
        (Mark.ENDED, end_text(LaunchEnd(launch, "ready", 1, None, "CRASH"))),
    ]


def _logs(state: Path, model: str = "m", *, on_terminal: bool = False, **asked: Any) -> Ended:
    out = Terminal() if on_terminal else io.StringIO()
    err = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = logs_command(model, state_dir=state, **asked)
    return Ended(code, out.getvalue(), err.getvalue())


def _lines(ended: Ended) -> list[str]:
    return [line["line"] for line in json.loads(ended.out)]


def test_a_pipe_gets_one_document(tmp_path: Path) -> None:
    """Each line with its time, its launch, whose it is, and its text."""
    _write(tmp_path, "m", *_launch("a1", "hello"))
    ended = _logs(tmp_path)
    assert (ended.code, ended.err) == (0, "")
    assert json.loads(ended.out) == [
        {"at": _AT, "launch": "a1", "kind": "started", "line": 'launch a1 of "m": generation 1, build cpu, pid 7'},
        {"at": _AT, "launch": "a1", "kind": "engine", "line": "hello"},
        {"at": _AT, "launch": "a1", "kind": "ended", "line": "launch a1 ended while ready: exit code 1, CRASH"},
    ]


def test_a_terminal_gets_lines_in_local_time(tmp_path: Path) -> None:
    """Lines of our own stand out; with --json a terminal gets the document too."""
    _write(tmp_path, "m", *_launch("a1", "hello [bold]"))
    local = datetime.fromtimestamp(_AT, UTC).astimezone().strftime("%Y-%m-%d %H:%M:%S")
    assert _logs(tmp_path, on_terminal=True).out.splitlines() == [
        f'{local} ── launch a1 of "m": generation 1, build cpu, pid 7 ──',
        f"{local} hello [bold]",
        f"{local} ── launch a1 ended while ready: exit code 1, CRASH ──",
    ]
    assert len(json.loads(_logs(tmp_path, on_terminal=True, json_output=True).out)) == 3


def test_the_last_lines_are_shown_across_files(tmp_path: Path) -> None:
    """Two hundred unless asked otherwise; the older file is read too."""
    for number in range(300):
        _write(tmp_path, "m", (Mark.ENGINE, f"{number}"), limit=6000)
    assert _lines(_logs(tmp_path)) == [str(number) for number in range(100, 300)]
    assert _lines(_logs(tmp_path, lines=2)) == ["298", "299"]
    assert _lines(_logs(tmp_path, launch="all")) == [str(number) for number in range(300)]
    assert len(list((tmp_path / "logs").iterdir())) == 2


def test_one_launch_can_be_asked_for(tmp_path: Path) -> None:
    """The last one, or one by its id, whole unless a number of lines is given."""
    _write(tmp_path, "m", *_launch("a1", "old"), *_launch("b2", *map(str, range(300))))
    _write(tmp_path, "m", (Mark.NOTE, "… 1 line left out"))
    last = _lines(_logs(tmp_path, launch="last"))
    assert last[1:-1] == [str(number) for number in range(300)]
    assert "launch b2" in last[0]
    assert "launch b2 ended" in last[-1]
    assert _lines(_logs(tmp_path, launch="last", lines=2))[0] == "299"
    assert _lines(_logs(tmp_path, launch="a1"))[1] == "old"
    assert len(_lines(_logs(tmp_path, launch="a1"))) == 3


def test_an_unknown_launch_is_an_error_that_names_those_there_are(tmp_path: Path) -> None:
    """Nothing on stdout, and the launches that are kept."""
    _write(tmp_path, "m", *_launch("a1"), *_launch("b2"))
    with pytest.raises(SupervisorError, match="no launch 'c3'; it has: a1, b2") as raised:
        _logs(tmp_path, launch="c3")
    assert raised.value.code == "launch_not_found"


def test_an_unknown_model_is_an_error_that_names_those_with_logs(tmp_path: Path) -> None:
    """By their ids, not by the names of files."""
    _write(tmp_path, "Qwen/Qwen3", (Mark.ENGINE, "x"))
    _write(tmp_path, "b", (Mark.ENGINE, "x"))
    with pytest.raises(SupervisorError, match="no log of 'qwen'; there are logs of: Qwen/Qwen3, b") as raised:
        _logs(tmp_path, "qwen")
    assert raised.value.code == "logs_not_found"


def test_no_logs_at_all_is_said(tmp_path: Path) -> None:
    """Before the first start there is no folder, and that is what the message says."""
    with pytest.raises(SupervisorError, match=r"there are no logs in .* yet"):
        _logs(tmp_path)


def test_an_empty_log_is_no_line(tmp_path: Path) -> None:
    """An empty list for scripts; a word on stderr for people, and stdout stays empty."""
    (tmp_path / "logs").mkdir()
    log_path(tmp_path / "logs", "m").touch()
    assert json.loads(_logs(tmp_path).out) == []
    ended = _logs(tmp_path, on_terminal=True)
    assert (ended.code, ended.out) == (0, "")
    assert "no lines yet" in ended.err


def test_a_damaged_line_hides_no_other(tmp_path: Path) -> None:
    """Noise in the file, and a line that a crash tore, are shown as they are, without a time."""
    _write(tmp_path, "m", (Mark.ENGINE, "good"))
    path = log_path(tmp_path / "logs", "m")
    path.write_bytes(b"\xff\n" + path.read_bytes() + b"2023-11-")
    rows = json.loads(_logs(tmp_path).out)
    assert [(row["at"], row["line"]) for row in rows] == [(None, "\ufffd"), (_AT, "good"), (None, "2023-11-")]
    assert _logs(tmp_path, on_terminal=True).out.splitlines()[-1].split() == ["-", "2023-11-"]


def test_logs_that_can_not_be_read_are_an_error(tmp_path: Path) -> None:
    """Something else in the file's place is told with what to do about it."""
    log_path(tmp_path / "logs", "m").mkdir(parents=True)
    with pytest.raises(SupervisorError, match="can't be read") as raised:
        _logs(tmp_path)
    assert raised.value.code == "logs_unreadable"


def _steps(*steps: Callable[[], object]) -> Callable[[float], None]:
    """Does one thing at each wait; when all are done, the user presses Ctrl-C."""
    left = list(steps)

    def wait(seconds: float) -> None:
        assert 0 < seconds <= 1
        if not left:
            raise KeyboardInterrupt
        left.pop(0)()

    return wait


def test_following_shows_what_comes_across_rotations_until_interrupted(tmp_path: Path) -> None:
    """The last lines first, then each new one once, one document a line; Ctrl-C ends it without a word."""
    _write(tmp_path, "m", *((Mark.ENGINE, f"old {number}") for number in range(5)))

    numbers = iter(range(27))

    def write_nine() -> None:
        for number in itertools.islice(numbers, 9):
            _write(tmp_path, "m", (Mark.ENGINE, f"{number}"), limit=500)

    wait = _steps(write_nine, lambda: None, write_nine, write_nine)
    ended = _logs(tmp_path, lines=2, follow=True, wait=wait)
    assert (ended.code, ended.err) == (130, "")
    shown = [json.loads(line)["line"] for line in ended.out.splitlines()]
    assert shown == ["old 3", "old 4", *map(str, range(27))]
    assert log_path(tmp_path / "logs", "m").stat().st_size < 500


def test_following_one_launch_shows_no_other(tmp_path: Path) -> None:
    """By its id; the last launch's followers see the next one begin."""
    _write(tmp_path, "m", *_launch("a1", "one"))

    def more() -> None:
        _write(tmp_path, "m", *_launch("b2", "two"))

    by_id = _logs(tmp_path, launch="a1", follow=True, wait=_steps(more), on_terminal=True).out
    assert "one" in by_id
    assert "two" not in by_id

    def again() -> None:
        _write(tmp_path, "m", *_launch("c3", "three"))

    last = _logs(tmp_path, launch="last", follow=True, wait=_steps(again), on_terminal=True).out
    assert "one" not in last
    assert "two" in last
    assert "three" in last


def test_a_reader_that_leaves_ends_it_quietly(tmp_path: Path) -> None:
    """``| head`` closes the pipe: no traceback, now or at the interpreter's end."""
    _write(tmp_path, "m", *((Mark.ENGINE, "x" * 1000) for _ in range(500)))
    read, write = os.pipe()
    os.close(read)
    with open(write, "w", encoding="utf-8") as out, contextlib.redirect_stdout(out):  # noqa: PTH123  a descriptor
        assert logs_command("m", state_dir=tmp_path, launch="all") == 0
        out.flush()
