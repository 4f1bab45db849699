"""The blocking half of a model's log: opening, appending, rotating. Called in a thread, by one at a time."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from supervisor.processes.log_lines import older_path
from supervisor.processes.log_policy import Chunk, RotationPlan

_FOLDER_MODE = 0o700
_FILE_MODE = 0o600
# A link in the file's place is refused, not written through. Files are closed after each write, so that a folder that
# was removed or moved is noticed.
_FLAGS = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW


@dataclass(frozen=True, slots=True)
class Written:
    """What came of a write: lines that are in the file, and why the others are not (None: there are none)."""

    lines: int
    error: OSError | None


def append_chunks(path: Path, chunks: Sequence[Chunk], file_bytes: int) -> Written:
    """Add lines to a log, rotating it as it fills; after a failure the file ends with a whole line all the same.

    The folder is made when it is missing, its parents are not. Never raises OSError.
    """
    written = 0
    fd = -1
    try:
        fd, size = _open(path, file_bytes)
        for append in RotationPlan(file_bytes).appends(size, chunks):
            if append.rotate:
                os.close(fd)
                fd = -1
                path.replace(older_path(path))
                fd, size = _open(path, file_bytes)
            _write_whole(fd, append.data, size)
            size += len(append.data)
            written += append.lines
    except OSError as error:
        return Written(written, error)
    finally:
        if fd >= 0:
            os.close(fd)
    return Written(written, None)


def _open(path: Path, file_bytes: int) -> tuple[int, int]:
    """The file, open at a line's start, and its size; both files are within bounds."""
    _make_folder(path.parent)
    _trim(older_path(path), file_bytes)
    _trim(path, file_bytes)
    fd = os.open(path, _FLAGS, _FILE_MODE)
    try:
        return fd, _start_of_line(fd, file_bytes)
    except OSError:
        os.close(fd)
        raise


def _start_of_line(fd: int, file_bytes: int) -> int:
    status = os.fstat(fd)
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, "it is not a file")
    if stat.S_IMODE(status.st_mode) != _FILE_MODE:
        os.fchmod(fd, _FILE_MODE)
    if not 0 < status.st_size < file_bytes or os.pread(fd, 1, status.st_size - 1) == b"\n":
        return status.st_size
    _write_whole(fd, b"\n", status.st_size)  # a line that was torn when the disk was full or the power went
    return status.st_size + 1


def _make_folder(folder: Path) -> None:
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=_FOLDER_MODE)
    if stat.S_IMODE(folder.stat().st_mode) != _FOLDER_MODE:
        with contextlib.suppress(PermissionError):  # another user's: our files in it are closed to others anyway
            folder.chmod(_FOLDER_MODE)


def _write_whole(fd: int, data: bytes, size: int) -> None:
    """All of it, or nothing.

    Raises:
        OSError: disk full, over a quota; the file has ``size`` bytes again, as far as the disk allows.
    """
    rest = memoryview(data)
    try:
        while rest:
            rest = rest[os.write(fd, rest) :]
    except OSError:
        with contextlib.suppress(OSError):
            os.ftruncate(fd, size)
        raise


def _trim(path: Path, file_bytes: int) -> None:
    """Keep the end of a file that a greater bound, or somebody else, let grow."""
    try:
        status = path.lstat()
    except FileNotFoundError:
        return
    if status.st_size <= file_bytes or not stat.S_ISREG(status.st_mode):
        return
    with path.open("rb") as stream:
        stream.seek(status.st_size - file_bytes)
        stream.readline()
        kept = stream.read(file_bytes)
    short = path.with_name(path.name + ".short")
    short.unlink(missing_ok=True)
    fd = os.open(short, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, _FILE_MODE)
    try:
        _write_whole(fd, kept, 0)
    finally:
        os.close(fd)
    short.replace(path)
