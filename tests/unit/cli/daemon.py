"""A stand-in for the running daemon: canned answers on a real socket."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

STATUS: dict[str, Any] = {
    "version": "0.1.0",
    "uptime_seconds": 61,
    "instances": [
        {
            "id": "m",
            "model": "qwen[3]",
            "engine": "llama.cpp",
            "build": "cpu",
            "state": "ready",
            "pid": 12,
            "leases": 1,
            "slots": 4,
            "last_exit": {"phase": "ready", "kind": "CRASH", "blames": "build", "planned": False},
        }
    ],
    "builds": [
        {"name": "cpu", "engine": "llama.cpp", "fingerprint": "abc1", "health": "usable", "reason": None},
        {"name": "gpu", "engine": "llama.cpp", "fingerprint": "abd2", "health": "suspect", "reason": "crashed"},
    ],
    "ledger": {"host": {"budget": 2**30, "reserved": 0, "foreign": None, "free": 2**30, "entries": []}},
    "queue": {"waiting": 1, "tickets": [{"request_id": "r1", "caller": "c", "model": "m", "waited_seconds": 2}]},
    "peers": [],
}
MODELS = {
    "object": "list",
    "data": [
        {"id": "qwen[3]", "object": "model", "aliases": ["default"], "capabilities": ["chat"]},
        {"id": "other", "object": "model"},
    ],
}
EVENTS = (
    b': heartbeat\n\nid: 7\nevent: model_broken\ndata: {"at":12.5,"level":"warning","model":"m","path":null}\n\n'
    b'event: overflow\ndata: {"pending":3}\n\n'
)
ANSWERS: dict[str, tuple[int, str, bytes]] = {
    "/admin/v1/status": (200, "application/json", json.dumps(STATUS).encode()),
    "/v1/models": (200, "application/json", json.dumps(MODELS).encode()),
    "/admin/v1/events": (200, "text/event-stream", EVENTS),
}


class _Handler(BaseHTTPRequestHandler):
    server: FakeDaemon

    def do_GET(self) -> None:
        self.server.asked.append((self.path, dict(self.headers)))
        status, kind, body = self.server.answers.get(self.path, (404, "text/html", b"<h1>nothing here</h1>"))
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  the base class's name
        """Keep test output quiet."""


class FakeDaemon(ThreadingHTTPServer):
    """Answers by path, and remembers what was asked.

    Attributes:
        answers: path → status, content type, body.
        asked: path and headers of each request.
    """

    def __init__(self, answers: dict[str, tuple[int, str, bytes]]) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.answers = answers
        self.asked: list[tuple[str, dict[str, str]]] = []

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self.server_address[1]}"


@contextmanager
def fake_daemon(answers: dict[str, tuple[int, str, bytes]] | None = None) -> Iterator[FakeDaemon]:
    """A fake daemon that answers until the block ends."""
    with FakeDaemon({**ANSWERS, **(answers or {})}) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
