"""Looks at a daemon's engine past the daemon, with the key and the socket that the engine's process carries."""

from __future__ import annotations

import http.client
import json
import socket
import time
from collections.abc import Callable, Mapping
from typing import Any

import psutil

_PAUSE = 0.01


class UnixConnection(http.client.HTTPConnection):
    """HTTP over a Unix socket."""

    def __init__(self, path: str, timeout: float) -> None:
        super().__init__("engine", timeout=timeout)
        self._path = path

    def connect(self) -> None:
        """Open the socket."""
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


def ask_engine(
    path: str, key: str, where: str, body: Mapping[str, Any] | None = None, timeout: float = 50.0
) -> tuple[int, bytes]:
    """Status and body of one request to the engine at the socket ``path``; without a body it is a GET.

    Raises:
        OSError: nothing listens there.
    """
    connection = UnixConnection(path, timeout)
    try:
        payload = None if body is None else json.dumps(body).encode()
        headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
        connection.request("GET" if body is None else "POST", where, payload, headers)
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()


def busy_slots(pid: int) -> int:
    """Slots at work in the engine with this process id, by its own word."""
    engine = psutil.Process(pid)
    argv = engine.cmdline()
    _, body = ask_engine(argv[argv.index("--host") + 1], engine.environ()["LLAMA_API_KEY"], "/slots")
    return sum(slot["is_processing"] for slot in json.loads(body))


def until(condition: Callable[[], bool], seconds: float = 20.0) -> float:
    """Look again and again until the condition holds; how many seconds that took.

    For what tells nobody when it changes: engines, and other programs.

    Raises:
        AssertionError: it did not come to hold in time.
    """
    began = time.monotonic()
    while not condition():
        waited = time.monotonic() - began
        assert waited < seconds, f"did not come to hold within {seconds} s"
        time.sleep(_PAUSE)
    return time.monotonic() - began
