"""``enginehouse logs MODEL``: what a model's engine said, from the files alone: also after a crash of the daemon."""

from __future__ import annotations

import json
import os
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from supervisor.cli.output import print_json, wants_json
from supervisor.errors import SupervisorError
from supervisor.processes.log_lines import FOLDER_NAME, log_path, older_path
from supervisor.processes.log_reader import LoggedLine, LogReader, models_with_logs

LINES = 200
LAST = "last"
ALL = "all"

_INTERRUPTED = 130
_POLL_SECONDS = 0.25


@dataclass(frozen=True, slots=True)
class _Asked:
    """Which lines to show; ``lines`` None: all of them."""

    model: str
    launch: str | None
    lines: int | None

    @property
    def only(self) -> str | None:
        """The one launch that is wanted by its id."""
        return None if self.launch in {None, LAST, ALL} else self.launch


def logs_command(
    model: str,
    *,
    state_dir: Path,
    lines: int | None = None,
    follow: bool = False,
    launch: str | None = None,
    json_output: bool = False,
    wait: Callable[[float], object] | None = None,
) -> int:
    """Print the last lines of a model's log; needs no daemon, and takes no lock.

    On a terminal text with local times; else (or with ``json_output``) a JSON list of ``{"at", "launch", "kind",
    "line"}``, with ``follow`` one document a line. ``at`` is in seconds since 1970; ``kind`` is ``engine``, or
    ``started``, ``ended`` and ``note`` for lines of the supervisor's own.

    Args:
        model: its id.
        state_dir: the daemon's.
        lines: how many at most; None: 200, or with ``launch`` all.
        follow: go on with what is being written until interrupted.
        launch: ``last`` for the last launch only, an id for that one, ``all`` for everything that is kept.
        json_output: JSON also on a terminal.
        wait: waits so many seconds between two looks.

    Returns:
        0; 130 when interrupted.

    Raises:
        SupervisorError: ``logs_not_found`` (the message names the models that have logs, or says that there are none
            yet), ``launch_not_found``, ``logs_unreadable``.
    """
    asked = _Asked(model, launch, LINES if lines is None and launch is None else lines)
    as_json = wants_json(asked=json_output)
    folder = state_dir / FOLDER_NAME
    try:
        path = _find(folder, model)
        with _opened(path) as reader:
            if follow:
                _show_each(_choose(reader.new(), asked), as_json=as_json)
                _follow(reader, asked, wait or threading.Event().wait, as_json=as_json)
            else:
                _show(_choose(_whole(reader), asked), model, as_json=as_json)
    except KeyboardInterrupt:
        return _INTERRUPTED
    except BrokenPipeError:
        _let_go_of_stdout()
    except OSError as error:
        why = error.strerror or str(error)
        raise SupervisorError(
            "logs_unreadable",
            f"the logs in {folder} can't be read: {why}. Run this as the user that runs the daemon.",
            path=str(folder),
        ) from error
    return 0


def _find(folder: Path, model: str) -> Path:
    path = log_path(folder, model)
    if path.exists() or older_path(path).exists():
        return path
    known = models_with_logs(folder)
    if known:
        message = f"there is no log of {model!r}; there are logs of: {', '.join(known)}."
    else:
        message = f"there are no logs in {folder} yet: a model has one once it was started."
    raise SupervisorError("logs_not_found", message, model=model, known=known)


@contextmanager
def _opened(path: Path) -> Iterator[LogReader]:
    reader = LogReader(path)
    try:
        yield reader
    finally:
        list(reader.close())


def _whole(reader: LogReader) -> Iterator[LoggedLine]:
    yield from reader.new()
    yield from reader.close()


def _choose(lines: Iterable[LoggedLine], asked: _Asked) -> Iterable[LoggedLine]:
    """The lines that are asked for, of those that are kept.

    Raises:
        SupervisorError: ``launch_not_found``.
    """
    chosen: deque[LoggedLine] = deque(maxlen=asked.lines)
    launches: dict[str, None] = {}
    for line in lines:
        if line.launch is not None and line.launch not in launches:
            launches[line.launch] = None
            if asked.launch == LAST:
                chosen.clear()
        if asked.only in {None, line.launch} and not (asked.launch == LAST and line.launch is None):
            chosen.append(line)
    if asked.only and asked.only not in launches:
        raise SupervisorError(
            "launch_not_found",
            f"the log of {asked.model!r} has no launch {asked.only!r}; it has: {', '.join(launches) or 'none'}.",
            launch=asked.only,
        )
    return chosen


def _follow(reader: LogReader, asked: _Asked, wait: Callable[[float], object], *, as_json: bool) -> None:
    while True:
        wait(_POLL_SECONDS)
        _show_each((line for line in reader.new() if asked.only in {None, line.launch}), as_json=as_json)


def _show(lines: Iterable[LoggedLine], model: str, *, as_json: bool) -> None:
    if as_json:
        print_json([_document(line) for line in lines])
    else:
        shown = False
        for line in lines:
            sys.stdout.write(_text(line) + "\n")
            shown = True
        if not shown:
            sys.stderr.write(f"enginehouse: the log of {model!r} has no lines yet\n")
    sys.stdout.flush()


def _show_each(lines: Iterable[LoggedLine], *, as_json: bool) -> None:
    for line in lines:
        sys.stdout.write((json.dumps(_document(line)) if as_json else _text(line)) + "\n")
    sys.stdout.flush()


def _document(line: LoggedLine) -> dict[str, Any]:
    return {"at": line.at, "launch": line.launch, "kind": line.kind, "line": line.text}


def _text(line: LoggedLine) -> str:
    at = "-" if line.at is None else datetime.fromtimestamp(line.at, UTC).astimezone().strftime("%Y-%m-%d %H:%M:%S")
    return f"{at:<19} {line.text}" if line.kind == "engine" else f"{at:<19} ── {line.text} ──"


def _let_go_of_stdout() -> None:
    """Whoever read has gone (``| head``): the interpreter must not find it out at its end."""
    sink = os.open(os.devnull, os.O_WRONLY)
    os.dup2(sink, sys.stdout.fileno())
    os.close(sink)
