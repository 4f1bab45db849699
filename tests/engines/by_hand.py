"""A real engine that a test starts itself, to compare the daemon's answers with the engine's own."""

from __future__ import annotations

import json
import os
import subprocess
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.sockets import short_socket_folder
from tests.wire.beside import ask_engine

_KEY = "by-hand"
_LONGEST_START = 60.0


@dataclass(frozen=True, slots=True)
class EngineByHand:
    """A running engine at a Unix socket."""

    path: Path

    def ask(self, where: str, body: Mapping[str, Any]) -> tuple[int, Any]:
        """Status and parsed body of one request that is answered whole."""
        status, answer = ask_engine(str(self.path), _KEY, where, body)
        return status, json.loads(answer)

    def stream(self, where: str, body: Mapping[str, Any]) -> list[Any]:
        """The events of one streamed request, parsed; ``[DONE]`` as it is."""
        _, answer = ask_engine(str(self.path), _KEY, where, {**body, "stream": True})
        data = [line.removeprefix("data: ") for line in answer.decode().splitlines() if line.startswith("data: ")]
        return [payload if payload == "[DONE]" else json.loads(payload) for payload in data]


@contextmanager
def started_by_hand(argv: Sequence[str], env: Mapping[str, str]) -> Iterator[EngineByHand]:
    """Start an engine with these arguments and a socket of its own; it is killed at the end."""
    with short_socket_folder() as folder:
        path = folder / "e.sock"
        process = subprocess.Popen(
            [*argv, "--host", str(path)],
            env={"PATH": os.environ["PATH"], "LLAMA_API_KEY": _KEY, **env},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )
        ready = threading.Event()
        log: list[str] = []
        reader = threading.Thread(target=_read, args=(process, log, ready), name="engine log")
        reader.start()
        try:
            assert ready.wait(_LONGEST_START), "".join(log)
            assert process.poll() is None, "".join(log)
            yield EngineByHand(path)
        finally:
            process.kill()
            process.wait()
            reader.join()


def _read(process: subprocess.Popen[bytes], log: list[str], ready: threading.Event) -> None:
    assert process.stderr is not None
    with process.stderr:
        for line in process.stderr:
            log.append(line.decode(errors="replace"))
            if b"listening on" in line:
                ready.set()
    ready.set()
