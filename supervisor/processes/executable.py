"""Whether a file can be started at all, found out before trying: the kernel's own words come too late and too terse."""

from __future__ import annotations

import errno
import os
import stat
import struct
import sys
from pathlib import Path

from supervisor.errors import InstanceError

_ELF = b"\x7fELF"
_ELF_64, _LITTLE_ENDIAN = 2, 1
_PT_INTERP = 3
# Where programs for other processors or of other kinds are registered (qemu-user, Wine): the kernel may start them.
_OTHER_FORMATS = Path("/proc/sys/fs/binfmt_misc")


class SpawnFailed(InstanceError):  # noqa: N818  named for what happened, as the caller sees it
    """``start_failed``: a process could not be started.

    Attributes:
        errno: the system's number for the reason; None when it is not known.
        text: the reason in words.
    """

    def __init__(self, number: int | None, text: str, executable: str) -> None:
        super().__init__("start_failed", f"{executable} can't be started: {text}.", errno=number, executable=executable)
        self.errno = number
        self.text = text


def check_executable(path: Path) -> None:
    """Look at the file as the kernel would.

    Raises:
        SpawnFailed: not there, not a file, no right to run it, or nothing that this machine can run.
    """
    if not path.is_absolute():
        raise SpawnFailed(errno.ENOENT, "it is not an absolute path: write it from / on", str(path))
    try:
        mode = path.stat().st_mode
    except OSError as error:
        raise SpawnFailed(error.errno, _words(error.errno), str(path)) from error
    if not stat.S_ISREG(mode):
        raise SpawnFailed(errno.EACCES, "it is not a file", str(path))
    if not os.access(path, os.X_OK):
        raise SpawnFailed(
            errno.EACCES, "it may not be executed: chmod +x it, and look for noexec on its file system", str(path)
        )
    if sys.platform == "linux":
        _check_format(path)


def _check_format(path: Path) -> None:
    try:
        with path.open("rb") as stream:
            start = stream.read(4096)
    except OSError:
        return  # may be run but not read: nothing to look at
    if start.startswith(b"#!"):
        _check_interpreter(path, start)
    elif not start.startswith(_ELF):
        if not _other_formats():
            raise SpawnFailed(errno.ENOEXEC, "it is neither a program of this system nor a script with #!", str(path))
    else:
        _check_elf(path, start)


def _check_interpreter(path: Path, start: bytes) -> None:
    words = start[2:].split(b"\n", 1)[0].split()
    interpreter = words[0].decode(errors="surrogateescape") if words else ""
    if not Path(interpreter).is_file():
        raise SpawnFailed(errno.ENOENT, f"its first line asks for {interpreter!r}, which isn't there", str(path))


def _check_elf(path: Path, start: bytes) -> None:
    with Path("/proc/self/exe").open("rb") as stream:
        ours = stream.read(20)
    if start[4:6] != ours[4:6] or start[18:20] != ours[18:20]:
        # 32-bit programs of the same family and emulated ones may run: only the kernel knows.
        if not _other_formats() and start[4:6] == ours[4:6]:
            raise SpawnFailed(errno.ENOEXEC, "it is a program for another kind of processor", str(path))
        return
    try:
        loader = _loader(start)
    except (struct.error, ValueError) as error:
        raise SpawnFailed(errno.ENOEXEC, "its header is cut short or damaged", str(path)) from error
    if loader is not None and not Path(loader).exists():
        raise SpawnFailed(
            errno.ENOENT, f"its loader {loader} isn't there: it was built for another C library", str(path)
        )


def _loader(start: bytes) -> str | None:
    """The dynamic loader that a 64-bit little-endian ELF file asks for; None where it can't be told.

    Raises:
        struct.error, ValueError: the header is cut short.
    """
    if start[4] != _ELF_64 or start[5] != _LITTLE_ENDIAN:
        return None
    table, size, count = (
        struct.unpack_from("<Q", start, 32)[0],
        *struct.unpack_from("<HH", start, 54),
    )
    for number in range(count):
        at = table + number * size
        if at + size > len(start):
            # A header table at the end of the file is legal and rare; a file that ends inside its first page is cut.
            if len(start) < 4096:  # noqa: PLR2004  the page that was read
                raise ValueError("program headers are missing")
            return None
        if struct.unpack_from("<I", start, at)[0] == _PT_INTERP:
            offset, length = struct.unpack_from("<Q", start, at + 8)[0], struct.unpack_from("<Q", start, at + 32)[0]
            return start[offset : offset + length].rstrip(b"\0").decode(errors="surrogateescape") or None
    return None


def _other_formats() -> bool:
    try:
        return any(entry.name not in {"register", "status"} for entry in _OTHER_FORMATS.iterdir())
    except OSError:
        return False


def _words(number: int | None) -> str:
    if number == errno.ENOENT:
        return "there is no such file"
    return os.strerror(number) if number is not None else "unknown reason"
