"""Small text files below a folder that stands for ``/``: what can't be read is None, and nothing ever raises."""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path

_LARGEST_FILE = 4 * 2**20  # a mountinfo of thousands of mounts is under 1 MiB
_LARGEST_CPU = 8191  # CONFIG_NR_CPUS of the kernel ends at 8192
_INTEGER = re.compile(r"[0-9]{1,19}")  # 64 bits; a longer number is no reading of a kernel
_CPU_RANGE = re.compile(r"([0-9]{1,5})(?:-([0-9]{1,5}))?")


class HostFiles:
    """A machine's /proc and /sys, live or recorded.

    Attributes:
        live: the root is this machine's own ``/``, so the system may be asked where a file is silent.
    """

    def __init__(self, root: Path = Path("/")) -> None:
        self._root = os.path.realpath(root)
        self.live = self._root == "/"

    def text(self, path: str) -> str | None:
        """The file's text without outer white space; None if it is absent, unreadable or no plain file.

        A link that leads out of a recorded root counts as absent: nothing of the real machine is read then. A tree that
        was recorded with other line ends reads as the kernel wrote it.
        """
        try:
            real = os.path.realpath(self._root + "/" + path)
            if not self.live and not real.startswith(self._root + "/"):
                return None
            # Non-blocking: a pipe that was recorded with a tree must not hang the probe.
            fd = os.open(real, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            with os.fdopen(fd, "rb") as stream:
                if not stat.S_ISREG(os.fstat(fd).st_mode):
                    return None
                text = stream.read(_LARGEST_FILE).decode("utf-8", "surrogateescape")
                return text.replace("\r\n", "\n").strip()
        except (OSError, ValueError):  # ValueError: a NUL in a path that came from a malformed file
            return None

    def integer(self, path: str) -> int | None:
        """The whole number in the file; None for ``max``, a negative number, or anything else."""
        return parse_integer(self.text(path))


def parse_integer(text: str | None) -> int | None:
    """A whole number from 0 on; None for anything else."""
    return int(text) if text is not None and _INTEGER.fullmatch(text) else None


def parse_cpu_list(text: str | None) -> frozenset[int] | None:
    """CPU numbers of ``0-3,8``; None when it names none, or is malformed."""
    if not text:
        return None
    cpus: set[int] = set()
    for part in text.split(","):
        match = _CPU_RANGE.fullmatch(part.strip())
        if match is None:
            return None
        first, last = int(match[1]), int(match[2] or match[1])
        if not first <= last <= _LARGEST_CPU:
            return None
        cpus.update(range(first, last + 1))
    return frozenset(cpus)


def printable(text: str) -> str:
    """The text with bytes that are no UTF-8 replaced, so that it can stand in JSON and in a log."""
    return text.encode("utf-8", "replace").decode("utf-8")
