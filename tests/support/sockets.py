"""Places to listen at."""

from __future__ import annotations

import socket
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def short_socket_folder() -> Iterator[Path]:
    """A private folder with a short path: a Unix socket's path holds 107 bytes, and ``tmp_path`` may be longer."""
    with tempfile.TemporaryDirectory(prefix="eh-") as name:
        yield Path(name)


def free_port() -> int:
    """A loopback port that nobody holds right now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
