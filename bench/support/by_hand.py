"""An engine started and asked by hand, as quickly as that can be done."""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.support.daemon import Engine, stop_process
from bench.support.errors import BenchError
from bench.support.http import Address, connect, post

_PAUSE = 0.001
_LONGEST = 120.0
_SHOWN_BYTES = 300
_HEALTH = b"GET /health HTTP/1.1\r\nHost: bench\r\nConnection: close\r\n\r\n"
_HEALTHY = b"HTTP/1.1 200"
# Text in a delta; the role's chunk and progress reports have null there.
_TOKEN = re.compile(rb'"content":"[^"]')


def first_token(address: Address, body: Mapping[str, Any], headers: Mapping[str, str] | None = None) -> bytes:
    """Ask on a fresh connection and read up to the first token; the answer so far, with its head.

    Raises:
        BenchError: there is none.
    """
    target = post(address, body, headers=headers)
    came = b""
    with connect(address) as sock:
        sock.settimeout(_LONGEST)
        sock.sendall(target.request)
        while not _TOKEN.search(came):
            data = sock.recv(1 << 16)
            if not data:
                raise BenchError(f"an answer without a token: {came[:_SHOWN_BYTES]!r}")
            came += data
    return came


def cold_start_by_hand(engine: Engine, body: Mapping[str, Any], socket_path: Path, log: Path) -> tuple[float, float]:
    """Start the daemon's engine again under another address; seconds until it is healthy, and until its first token.

    Args:
        engine: a launch of the daemon's, whose executable, flags and environment are taken.
        body: the request.
        socket_path: where this one listens.
        log: what it says goes here, as the daemon keeps it too.

    Raises:
        BenchError: it does not become healthy, or gives no token.
    """
    began = time.perf_counter()
    process = spawn_by_hand(engine, socket_path, log)
    try:
        wait_until_healthy(process, socket_path, began, log)
        healthy = time.perf_counter() - began
        first_token(socket_path, body, engine.headers)
        return healthy, time.perf_counter() - began
    finally:
        stop_process(process)


def spawn_by_hand(engine: Engine, socket_path: Path, log: Path) -> subprocess.Popen[bytes]:
    """Start the daemon's engine again under another address; it is the caller's to end."""
    argv = _with_host(engine.argv, socket_path)
    socket_path.unlink(missing_ok=True)
    with log.open("wb") as stream:
        return subprocess.Popen(
            argv, env=dict(engine.env), stdin=subprocess.DEVNULL, stdout=stream, stderr=stream, start_new_session=True
        )


def wait_until_healthy(process: subprocess.Popen[bytes], path: Path, began: float, log: Path) -> None:
    """Until the engine behind the socket answers well.

    Raises:
        BenchError: it ends before, or takes longer than two minutes from ``began`` on.
    """
    while not _is_healthy(path):
        if process.poll() is not None or time.perf_counter() - began > _LONGEST:
            end = log.read_text(errors="replace").splitlines()[-5:]
            raise BenchError("the engine started by hand is not healthy: " + os.linesep.join(end))
        time.sleep(_PAUSE)


def _is_healthy(path: Path) -> bool:
    try:
        with connect(path) as sock:
            sock.sendall(_HEALTH)
            return sock.recv(1 << 12).startswith(_HEALTHY)
    except OSError:
        return False


def _with_host(argv: Sequence[str], path: Path) -> list[str]:
    words = list(argv)
    words[words.index("--host") + 1] = str(path)
    return words
