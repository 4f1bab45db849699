"""The MLX server as a process of its own, over a tiny model, asked over its Unix socket. A test plugin.

On Linux x86-64 and on Macs MLX can be had from PyPI, so there its absence fails the test; elsewhere it is skipped.
"""

from __future__ import annotations

import http.client
import importlib.util
import json
import os
import platform
import queue
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.support.sockets import short_socket_folder
from tests.support.tiny_mlx import DRAFT, LLAMA, QWEN3, write_model

RUN = Path(__file__).resolve().parents[2] / "engines" / "mlx" / "server" / "run.py"
# Compiling kernels takes g++ seconds at the first request of a machine; what they compute is the same without.
QUICK = {"MLX_DISABLE_COMPILE": "1"}
_LONGEST_START = 90.0
_LONGEST_STOP = 30.0


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole HTTP answer."""

    status: int
    body: bytes

    @property
    def json(self) -> Any:
        """The body as a document."""
        return json.loads(self.body)

    @property
    def chunks(self) -> list[Any]:
        """The documents of a stream, without its end mark."""
        lines = [line[6:] for line in self.body.split(b"\n") if line.startswith(b"data: ")]
        return [json.loads(line) for line in lines if line != b"[DONE]"]

    @property
    def text(self) -> str:
        """All content of a stream, or of a whole answer."""
        documents = self.chunks if self.body.startswith(b"data: ") else [self.json]
        parts = []
        for document in documents:
            for choice in document.get("choices", ()):
                message = choice.get("delta") or choice.get("message") or {"content": choice.get("text")}
                parts.append(message.get("content") or "")
        return "".join(parts)


@dataclass(slots=True)
class MlxServer:
    """A running server.

    Attributes:
        lines: its log so far.
    """

    process: subprocess.Popen[bytes]
    socket: Path
    lines: list[str] = field(default_factory=list)
    _news: queue.SimpleQueue[str | None] = field(default_factory=queue.SimpleQueue)

    def ask(self, path: str, body: Any = None, *, method: str | None = None, timeout: float = 60.0) -> Answer:
        """One request and its whole answer; a body that is bytes is sent as it is."""
        connection = UnixConnection(self.socket, timeout)
        try:
            sent = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
            connection.request(method or ("GET" if body is None else "POST"), path, sent)
            answer = connection.getresponse()
            return Answer(answer.status, answer.read())
        finally:
            connection.close()

    def complete(self, prompt: Any, **body: Any) -> Answer:
        """A completion; greedy unless said otherwise."""
        return self.ask("/v1/completions", {"prompt": prompt, "temperature": 0, "max_tokens": 12, **body})

    def chat(self, text: str, **body: Any) -> Answer:
        """A chat of one message; greedy unless said otherwise."""
        message = {"role": "user", "content": text}
        defaults = {"messages": [message], "temperature": 0, "max_tokens": 12}
        return self.ask("/v1/chat/completions", {**defaults, **body})

    def wait_for_line(self, text: str, timeout: float = _LONGEST_START) -> str:
        """The first line of the log that holds this text; blocks."""
        deadline = time.monotonic() + timeout
        for line in self.lines:
            if text in line:
                return line
        while (left := deadline - time.monotonic()) > 0:
            try:
                news = self._news.get(timeout=left)
            except queue.Empty:
                break
            if news is None:
                break
            if text in news:
                return news
        raise AssertionError(f"no line with {text!r}; ended: {self.process.poll()}\n" + "\n".join(self.lines))

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Ask it to end; the exit code."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        return self.process.wait(_LONGEST_STOP)

    def read_log(self) -> None:
        """Collect the log until its end; runs in a thread."""
        assert self.process.stderr is not None
        with self.process.stderr:
            for raw in self.process.stderr:
                line = raw.decode(errors="replace").rstrip()
                self.lines.append(line)
                self._news.put(line)
        self._news.put(None)


class UnixConnection(http.client.HTTPConnection):
    """HTTP to a socket in the file system."""

    def __init__(self, path: Path, timeout: float) -> None:
        super().__init__("engine", timeout=timeout)
        self._path = path

    def connect(self) -> None:
        """See ``HTTPConnection``."""
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self._path))


@contextmanager
def running_mlx_server(
    model: Path, *args: str, env: Mapping[str, str] | None = None, ready: bool = True, program: Path = RUN
) -> Iterator[MlxServer]:
    """The server over this model, ended at the end of the block; ``program``: what is run in place of the server."""
    with short_socket_folder() as folder:
        socket_path = folder / "m.sock"
        command = [sys.executable, str(program), "--model", str(model), "--host", str(socket_path), *args]
        environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(folder),
            "ENGINEHOUSE_MLX_SCRATCH": str(folder / "scratch"),
            **QUICK,
            **(env or {}),
        }
        process = subprocess.Popen(
            command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
        )
        server = MlxServer(process, socket_path)
        reader = threading.Thread(target=server.read_log, name="mlx log")
        reader.start()
        try:
            if ready:
                server.wait_for_line("model loaded")
            yield server
        finally:
            if process.poll() is None:
                process.terminate()
                try:
                    process.wait(_LONGEST_STOP)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()
            reader.join()


@pytest.fixture(scope="session")
def mlx_here() -> None:
    """MLX is installed for this interpreter; the test is skipped where it can't be."""
    if all(importlib.util.find_spec(name) is not None for name in ("mlx", "mlx_lm", "llguidance")):
        return
    if (sys.platform, platform.machine()) in {("linux", "x86_64"), ("darwin", "arm64")}:
        pytest.fail("MLX is not installed: pip install '.[dev,demo,mlx]'", pytrace=False)
    pytest.skip("there is no MLX for this machine")


@pytest.fixture(scope="session")
def mlx_models(mlx_here: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with ``llama``, ``draft`` (of the same tokens) and ``qwen3`` (which thinks and calls tools)."""
    folder = tmp_path_factory.mktemp("mlx-models")
    for name, shape in (("llama", LLAMA), ("draft", DRAFT), ("qwen3", QWEN3)):
        write_model(folder / name, shape)
    return folder
