"""Places to listen at."""

from __future__ import annotations

import random
import socket
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

# Below 32768, where Linux begins, and above what services of a machine usually take.
_NEVER_GIVEN_OUT = range(20_000, 30_000)
_TRIES = 20


@contextmanager
def short_socket_folder() -> Iterator[Path]:
    """A private folder with a short path: a Unix socket's path holds 107 bytes, and ``tmp_path`` may be longer."""
    with tempfile.TemporaryDirectory(prefix="eh-") as name:
        yield Path(name)


def free_port() -> int:
    """A loopback port that nobody holds right now.

    Not one of those that the system gives out by itself: any connection of a test that runs beside may be given it
    before the caller has taken it.
    """
    ports = random.SystemRandom().sample(_NEVER_GIVEN_OUT, _TRIES)
    for port in ports:
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise AssertionError(f"none of the ports {ports} is free")
