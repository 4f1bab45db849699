"""A daemon over the real sd-server with the toy models, for the tests of pictures."""

from __future__ import annotations

import base64
import http.client
import json
import struct
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.cgroups import Cgroup
from tests.support.daemon import Daemon, running_daemon_sync
from tests.support.toy_pictures import ToyModels
from tests.wire.asking import LOG_ALL, ask

SMALL = {"size": "64x64", "steps": 2, "seed": 7}
IMAGES = "/v1/images/generations"
EDITS = "/v1/images/edits"
JOBS = "/v1/images/jobs"


def picture_config(server: Path, toys: ToyModels, **sections: Any) -> dict[str, Any]:
    """``ovis`` begins with one source, ``klein`` looks at several, ``only`` is ovis that needs one."""
    launch = {"width": 64, "height": 64, "cfg_scale": 1, "threads": 1, "lora_dir": str(toys.loras)}
    shared = {"engine": "stable-diffusion.cpp", "keep_alive": "never"}
    models = {
        "ovis": {**shared, "files": toys.ovis, "launch": {**launch, "steps": 4}},
        "klein": {**shared, "files": toys.klein, "launch": launch},
        "only": {**shared, "files": toys.ovis, "launch": {**launch, "edit_only": True}},
    }
    return {
        "version": 1,
        "engines": {
            "llama.cpp": {"builds": []},
            "stable-diffusion.cpp": {"builds": [{"name": "real", "executable": str(server)}]},
        },
        "models": models,
        "supervision": {"liveness": {"failures": 30}},
        **sections,
    }


@contextmanager
def drawing_daemon(
    folder: Path, server: Path, toys: ToyModels, inside: Cgroup | None = None, **sections: Any
) -> Iterator[Daemon]:
    """It runs, and nothing is loaded yet."""
    with running_daemon_sync(folder, picture_config(server, toys, **sections), env=LOG_ALL, inside=inside) as daemon:
        yield daemon


@dataclass(frozen=True, slots=True)
class Told:
    """An answer; ``json`` is None where it is none."""

    status: int
    json: Any


def post(daemon: Daemon, path: str, body: dict[str, Any]) -> Told:
    """Send JSON; what comes back."""
    answer = ask(daemon, path, json.dumps(body).encode(), timeout=100)
    return Told(answer.status, json.loads(answer.body) if answer.body else None)


def delete(daemon: Daemon, path: str) -> Told:
    """Take back; what comes back."""
    asking = connection(daemon)
    try:
        asking.request("DELETE", path)
        answer = asking.getresponse()
        return Told(answer.status, json.loads(answer.read()))
    finally:
        asking.close()


def get(daemon: Daemon, path: str) -> Told:
    """Ask; what comes back."""
    answer = ask(daemon, path)
    return Told(answer.status, json.loads(answer.body))


def connection(daemon: Daemon) -> http.client.HTTPConnection:
    """A connection that the test reads, or leaves, as it likes."""
    host, _, port = daemon.base_url.removeprefix("http://").partition(":")
    return http.client.HTTPConnection(host, int(port), timeout=100)


def states(daemon: Daemon, job: str) -> Iterator[dict[str, Any]]:
    """The states of a job, as they are told."""
    asking = connection(daemon)
    try:
        asking.request("GET", f"{JOBS}/{job}/events")
        for line in asking.getresponse():
            if line.startswith(b"data: "):
                yield json.loads(line[6:])
    finally:
        asking.close()


def png(width: int = 64, height: int = 64, *, said: tuple[int, int] | None = None) -> bytes:
    """A grey picture; ``said``: another size in its header."""
    rows = b"".join(b"\0" + b"\x80\x80\x80" * width for _ in range(height))
    head = struct.pack(">IIBBBBB", *(said or (width, height)), 8, 2, 0, 0, 0)
    chunks = ((b"IHDR", head), (b"IDAT", zlib.compress(rows)), (b"IEND", b""))
    made = (
        struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body)) for name, body in chunks
    )
    return b"\x89PNG\r\n\x1a\n" + b"".join(made)


def b64(data: bytes) -> str:
    """In base64, as JSON carries it."""
    return base64.b64encode(data).decode()


def size_of(picture: str) -> tuple[int, int]:
    """Width and height of a PNG in base64."""
    data = base64.b64decode(picture)
    assert data.startswith(b"\x89PNG\r\n\x1a\n")
    width, height = struct.unpack_from(">II", data, 16)
    return width, height
