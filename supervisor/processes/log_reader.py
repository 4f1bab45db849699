"""Reads a model's log while a daemon may write and rotate it, or long after one has died. Takes no lock."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Literal

from supervisor.processes.log_lines import SUFFIX, Mark, model_of, older_path, parse_line

Kind = Literal["engine", "started", "ended", "note"]

_KINDS: dict[Mark, Kind] = {
    Mark.ENGINE: "engine",
    Mark.STARTED: "started",
    Mark.ENDED: "ended",
    Mark.NOTE: "note",
}
_READ_BYTES = 256 * 1024
# A rotation takes microseconds: a pair of files that does not fit together is looked at again.
_TRIES = 5


@dataclass(frozen=True, slots=True)
class LoggedLine:
    """One line; ``at`` in seconds since 1970, ``launch`` the launch that it belongs to, each None where not known."""

    at: float | None
    launch: str | None
    kind: Kind
    text: str


def models_with_logs(folder: Path) -> list[str]:
    """Ids of the models that have a log in this folder, in order; none where there is no folder.

    Raises:
        OSError: the folder or a file can't be read.
    """
    try:
        names = {name.removesuffix(".1") for name in os.listdir(folder)}  # noqa: PTH208  names are what is wanted
    except FileNotFoundError:
        return []
    return sorted(model_of(folder / name) for name in names if name.endswith(SUFFIX))


class LogReader:
    """A model's log from its oldest kept line on; each line once, across rotations. To be closed."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: BinaryIO | None = None
        self._rest = b""
        self._launch: str | None = None

    def new(self) -> Iterator[LoggedLine]:
        """Lines since the last call; at first all that are kept. To be read to its end before the next call.

        Raises:
            OSError: a file can't be read; one that isn't there is no error.
        """
        older, newer = _open_pair(self._path)
        before = self._file
        if before is not None:
            # The pair was looked at first: if it is another one, nothing is added to this file any more.
            yield from self._drain(before)
            if newer is None or _same(before, newer):
                _close(older, newer)
                return
        yield from self._torn()
        if older is not None and not (before is not None and _same(before, older)):
            yield from self._drain(older)
        if newer is None:
            self._file = older
            return
        self._file = newer
        _close(before, older)
        yield from self._drain(newer)

    def close(self) -> Iterator[LoggedLine]:
        """A last line that was never finished, if there is one; then nothing is open any more."""
        yield from self._torn()
        if self._file is not None:
            self._file.close()
            self._file = None

    def _drain(self, file: BinaryIO) -> Iterator[LoggedLine]:
        if os.fstat(file.fileno()).st_size < file.tell():
            file.seek(0)  # emptied in place by somebody else
            self._rest = b""
        while data := file.read(_READ_BYTES):
            *lines, self._rest = (self._rest + data).split(b"\n")
            for line in lines:
                yield from self._line(line)

    def _torn(self) -> Iterator[LoggedLine]:
        rest, self._rest = self._rest, b""
        if rest:
            yield from self._line(rest)

    def _line(self, raw: bytes) -> Iterator[LoggedLine]:
        line = parse_line(raw.decode(errors="replace"))
        if line.mark in {Mark.STARTED, Mark.CONTINUED}:
            self._launch = line.launch
        if line.mark is not Mark.CONTINUED:
            yield LoggedLine(line.at, self._launch, _KINDS[line.mark], line.text)
        if line.mark is Mark.ENDED:
            self._launch = None


def _open_pair(path: Path) -> tuple[BinaryIO | None, BinaryIO | None]:
    """The older and the newer file, of one moment."""
    for tries_left in reversed(range(_TRIES)):
        newer = _open(path)
        older = _open(older_path(path))
        if newer is None and older is not None and tries_left:
            older.close()
        elif newer is not None and older is not None and _same(newer, older):
            older.close()
            if not tries_left:
                return None, newer
            newer.close()
        else:
            return older, newer
    return None, None


def _open(path: Path) -> BinaryIO | None:
    try:
        return path.open("rb")
    except FileNotFoundError:
        return None


def _same(one: BinaryIO, other: BinaryIO) -> bool:
    return os.path.sameopenfile(one.fileno(), other.fileno())


def _close(*files: BinaryIO | None) -> None:
    for file in files:
        if file is not None:
            file.close()
