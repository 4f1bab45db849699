"""The fake llama-server as tests use it: as an executable for a config's builds, or as a process of their own."""

from __future__ import annotations

import json
import os
import shlex
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import anyio
import anyio.abc
from anyio.streams.buffered import BufferedByteReceiveStream

from tests.fakes.engine_parts.faults import SIDECAR_SUFFIX, Faults
from tests.fakes.tiny_gguf import write_gguf
from tests.support.sockets import short_socket_folder

_ROOT = Path(__file__).resolve().parents[2]
_LONGEST_START = 20.0
API_KEY = "fake-engine-key"


@dataclass(frozen=True, slots=True)
class FakeBuild:
    """An executable that is the fake; alone in its folder, as its fingerprint covers the files beside it."""

    name: str
    executable: Path

    def as_config(self) -> dict[str, str]:
        """The row for ``engines.llama.cpp.builds``."""
        return {"name": self.name, "executable": str(self.executable)}


def fake_build(folder: Path, name: str = "fake", **faults: Any) -> FakeBuild:
    """Write an executable ``llama-server`` below ``folder`` that misbehaves as ``faults`` say.

    A ``FAKE_ENGINE`` in the environment of a launch replaces these faults.

    Args:
        folder: usually ``tmp_path``.
        name: the build's name in a config, and of its folder.
        faults: fields of ``Faults``; ``models={"pattern*.gguf": {...}}`` for some models only.
    """
    for values in (
        {key: value for key, value in faults.items() if key != "models"},
        *faults.get("models", {}).values(),
    ):
        Faults().merged(values)
    home = folder / f"build-{name}"
    home.mkdir(parents=True, exist_ok=True)
    executable = home / "llama-server"
    executable.write_text(
        "#!/bin/sh\n"
        f"PYTHONPATH={shlex.quote(str(_ROOT))} PYTHONSAFEPATH=1\n"
        f'[ -n "${{FAKE_ENGINE-}}" ] || FAKE_ENGINE={shlex.quote(json.dumps(faults))}\n'
        "export PYTHONPATH PYTHONSAFEPATH FAKE_ENGINE\n"
        f'exec {shlex.quote(sys.executable)} -S -m tests.fakes.engine "$@"\n',
        encoding="utf-8",
    )
    executable.chmod(0o755)
    return FakeBuild(name, executable)


def wrapped(build: FakeBuild) -> FakeBuild:
    """The same build behind a shell that does not ``exec`` it: a signal to the shell does not reach the engine."""
    script = build.executable.with_name("wrapper")
    script.write_text(f'#!/bin/sh\n{shlex.quote(str(build.executable))} "$@"\nexit $?\n', encoding="utf-8")
    script.chmod(0o755)
    return FakeBuild(build.name, script)


def set_faults(model: Path, **faults: Any) -> None:
    """Faults of every later launch with this model, instead of those given before."""
    Faults().merged(faults)
    model.with_name(model.name + SIDECAR_SUFFIX).write_text(json.dumps(faults), encoding="utf-8")


def tiny_model(folder: Path, name: str = "tiny.gguf", **faults: Any) -> Path:
    """A model file with a sound header and almost no weights; ``faults`` strike launches with it."""
    path = write_gguf(folder / name)
    if faults:
        set_faults(path, **faults)
    return path


@dataclass(slots=True)
class FakeEngine:
    """One running fake; use ``fake_engine`` to get it.

    Attributes:
        lines: what it logged so far.
        key: its API key.
    """

    process: anyio.abc.Process
    socket_path: Path
    client: aiohttp.ClientSession
    key: str = API_KEY
    lines: list[str] = field(default_factory=list)

    @property
    def pid(self) -> int:
        """The process's id, which is its group's too."""
        return self.process.pid

    def hang(self) -> None:
        """Stop answering until ``go_on``."""
        os.kill(self.pid, signal.SIGUSR1)

    def go_on(self) -> None:
        """Answer again."""
        os.kill(self.pid, signal.SIGUSR2)

    def terminate(self) -> None:
        """Ask it to stop."""
        os.kill(self.pid, signal.SIGTERM)

    async def wait_for_line(self, text: str) -> str:
        """The first line that holds ``text``, now or later.

        Raises:
            TimeoutError: it did not come within 20 seconds.
        """
        with anyio.fail_after(_LONGEST_START):
            while True:
                found = [line for line in self.lines if text in line]
                if found:
                    return found[0]
                await anyio.sleep(0.005)

    async def wait_until_ready(self) -> None:
        """Until it says that it listens."""
        await self.wait_for_line("listening on")

    async def busy_slots(self) -> int:
        """Slots at work."""
        async with self.get("/slots") as response:
            return sum(slot["is_processing"] for slot in await response.json())

    def get(self, path: str) -> Any:
        """An aiohttp request context with the key."""
        return self.client.get(f"http://engine{path}", headers={"Authorization": f"Bearer {self.key}"})

    def post(self, path: str, body: Any) -> Any:
        """An aiohttp request context with the key and a JSON body."""
        return self.client.post(f"http://engine{path}", headers={"Authorization": f"Bearer {self.key}"}, json=body)

    async def events(self, path: str, body: dict[str, Any]) -> list[Any]:
        """All payloads of a stream: parsed, ``[DONE]`` as it is."""
        async with self.post(path, {**body, "stream": True}) as response:
            return sse_payloads((await response.read()).decode())


def sse_payloads(text: str) -> list[Any]:
    """The ``data:`` payloads of an event stream's text: parsed, ``[DONE]`` as it is."""
    data = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: ")]
    return [payload if payload == "[DONE]" else json.loads(payload) for payload in data]


@asynccontextmanager
async def fake_engine(
    folder: Path, *arguments: str, wait: bool = True, model: Path | None = None, **faults: Any
) -> AsyncIterator[FakeEngine]:
    """A fake engine of one's own in a session of its own, killed with its whole group at the end.

    Args:
        folder: for its socket, executable and model; usually ``tmp_path``.
        arguments: more of llama-server's arguments.
        wait: until it listens.
        model: the model file; one that only has the right first bytes if not given.
        faults: fields of ``Faults``.
    """
    build = fake_build(folder, "own", **faults)
    if model is None:
        model = folder / "own.gguf"
        model.write_bytes(b"GGUF")
    with short_socket_folder() as place:
        path = place / "e.sock"
        argv = [str(build.executable), "--model", str(model), "--host", str(path), "--alias", "fake", *arguments]
        environment = {"PATH": os.environ["PATH"], "LLAMA_API_KEY": API_KEY}
        process = await anyio.open_process(argv, env=environment, stderr=-1, stdout=-3, start_new_session=True)
        # llama-server closes the connection after a stream: one that is used again at once would break.
        connector = aiohttp.UnixConnector(str(path), force_close=True)
        async with aiohttp.ClientSession(connector=connector) as client, anyio.create_task_group() as tasks:
            engine = FakeEngine(process, path, client)
            tasks.start_soon(_read_lines, engine)
            try:
                if wait:
                    await engine.wait_until_ready()
                yield engine
            finally:
                tasks.cancel_scope.cancel()
                with anyio.CancelScope(shield=True):
                    with suppress(ProcessLookupError):
                        os.killpg(process.pid, signal.SIGKILL)
                    await process.aclose()


async def _read_lines(engine: FakeEngine) -> None:
    assert engine.process.stderr is not None
    stream = BufferedByteReceiveStream(engine.process.stderr)
    with suppress(anyio.EndOfStream, anyio.IncompleteRead, anyio.ClosedResourceError, anyio.BrokenResourceError):
        while True:
            line = await stream.receive_until(b"\n", 1 << 20)
            engine.lines.append(line.decode(errors="replace"))
