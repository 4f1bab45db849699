"""The daemon as its users meet it: a process of its own, with a config file, found at an address."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import yaml

from engines.contract import EngineKind
from tests.support.cgroups import Cgroup
from tests.support.fake_engine import FakeBuild
from tests.support.sockets import short_socket_folder

_ROOT = Path(__file__).resolve().parents[2]
_LONGEST_START = 30.0
# shutdown.total is 9 s by default; a little more for a busy machine.
_LONGEST_STOP = 15.0


@dataclass(slots=True)
class Daemon:
    """A running daemon.

    Attributes:
        base_url: such as ``http://127.0.0.1:40123``; known once it listens.
        folder: holds its config, state and data.
        records: its log, each line as a document; lines that are no JSON as ``{"raw": line}``.
    """

    process: subprocess.Popen[bytes]
    folder: Path
    base_url: str = ""
    records: list[dict[str, Any]] = field(default_factory=list)
    _news: threading.Condition = field(default_factory=threading.Condition)
    _log_ended: bool = False

    @property
    def pid(self) -> int:
        """The daemon's process id."""
        return self.process.pid

    def engines(self) -> list[psutil.Process]:
        """Processes below the daemon, at any depth."""
        try:
            return psutil.Process(self.pid).children(recursive=True)
        except psutil.NoSuchProcess:
            return []

    def send(self, number: signal.Signals) -> None:
        """Send the daemon, and nobody else, a signal."""
        self.process.send_signal(number)

    def log_text(self) -> str:
        """The whole log, for messages."""
        return "\n".join(str(record.get("raw") or json.dumps(record)) for record in self.records)

    def wait_for(self, wanted: Callable[[dict[str, Any]], bool], timeout: float = _LONGEST_START) -> dict[str, Any]:
        """The first log record that is wanted, now or later; blocks.

        Raises:
            AssertionError: it did not come in ``timeout`` seconds, or the daemon ended; the log is in the message.
        """
        deadline = time.monotonic() + timeout
        seen = 0
        with self._news:
            while True:
                for record in self.records[seen:]:
                    if wanted(record):
                        return record
                seen = len(self.records)
                if self._log_ended or not self._news.wait(max(0.0, deadline - time.monotonic())):
                    break
        why = f"it ended with {self.process.poll()}" if self._log_ended else f"not within {timeout} s"
        raise AssertionError(f"the daemon did not log what was wanted: {why}\n{self.log_text()}")

    def wait_for_event(self, name: str, timeout: float = _LONGEST_START, **facts: Any) -> dict[str, Any]:
        """The first log record of this event with these facts; blocks."""
        return self.wait_for(
            lambda record: record.get("event") == name and all(record.get(key) == facts[key] for key in facts), timeout
        )

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Ask it to end and wait; the exit code. What is still below it afterwards fails the caller.

        Raises:
            AssertionError: it did not end in time, or left engines behind.
        """
        engines = self.engines()
        if self.process.poll() is None:
            self.send(number)
        try:
            code = self.process.wait(_LONGEST_STOP)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"the daemon did not end in {_LONGEST_STOP} s\n{self.log_text()}") from None
        _, left = psutil.wait_procs(engines, timeout=1)
        left = [process for process in left if _lives(process)]
        assert not left, f"the daemon left engines behind: {left}\n{self.log_text()}"
        return code

    def read_log(self) -> None:
        """Collect the log until its end; runs in a thread."""
        assert self.process.stderr is not None
        with self.process.stderr:
            for line in self.process.stderr:
                with self._news:
                    self.records.append(_parse(line))
                    self._news.notify_all()
        with self._news:
            self._log_ended = True
            self._news.notify_all()


def daemon_config(
    *builds: FakeBuild | Mapping[str, object], models: Mapping[str, Any], **sections: Any
) -> dict[str, Any]:
    """A config for tests: these builds only, these models, quick restarts; ``sections`` replace top-level keys."""
    rows = [build.as_config() if isinstance(build, FakeBuild) else dict(build) for build in builds]
    return {
        "version": 1,
        "engines": {**{str(kind): {"builds": []} for kind in EngineKind}, "llama.cpp": {"builds": rows}},
        "models": {name: {"engine": "llama.cpp", **model} for name, model in models.items()},
        **sections,
    }


@contextmanager
def running_daemon_sync(
    folder: Path,
    config: Mapping[str, Any] | None = None,
    *,
    env: Mapping[str, str] | None = None,
    ready: bool = True,
    inside: Cgroup | None = None,
) -> Iterator[Daemon]:
    """As ``running_daemon``, for tests without an event loop."""
    with short_socket_folder() as runtime:
        daemon = _start(folder, config, env or {}, runtime, inside)
        reader = threading.Thread(target=daemon.read_log, name="daemon log")
        reader.start()
        try:
            if ready:
                wait_until_listening(daemon)
            yield daemon
            daemon.stop()
        finally:
            _kill_all(daemon)
            reader.join()


@asynccontextmanager
async def running_daemon(
    folder: Path,
    config: Mapping[str, Any] | None = None,
    *,
    env: Mapping[str, str] | None = None,
    ready: bool = True,
    inside: Cgroup | None = None,
) -> AsyncIterator[Daemon]:
    """``python -m supervisor serve`` on a free port, ended by SIGTERM; it must leave nothing behind.

    Args:
        folder: usually ``tmp_path``: for its config, state and data, and as its HOME.
        config: the document; what it leaves open of ``listen`` and the folders is filled in. None: no config at all.
        env: more environment.
        ready: wait until it listens.
        inside: the control group that it and its engines run in.
    """
    manager = running_daemon_sync(folder, config, env=env, ready=ready, inside=inside)
    daemon = await asyncio.to_thread(manager.__enter__)
    try:
        yield daemon
    except BaseException as error:
        await asyncio.shield(asyncio.to_thread(manager.__exit__, type(error), error, error.__traceback__))
        raise
    await asyncio.to_thread(manager.__exit__, None, None, None)


def wait_until_listening(daemon: Daemon) -> None:
    """Until the daemon said where it listens; sets ``base_url``."""
    address = str(daemon.wait_for_event("daemon_listening")["address"])
    daemon.base_url = address if "://" in address else f"http://{address}"


def _start(
    folder: Path, config: Mapping[str, Any] | None, env: Mapping[str, str], runtime: Path, inside: Cgroup | None
) -> Daemon:
    argv = [sys.executable, "-m", "supervisor", "serve"]
    if config is None:
        argv += ["--host", "127.0.0.1", "--port", "0"]
    else:
        path = folder / "config.yaml"
        path.write_text(yaml.safe_dump(_complete(config, folder, runtime), sort_keys=False), encoding="utf-8")
        argv += ["--config", str(path)]
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(folder),
        "XDG_RUNTIME_DIR": str(runtime),
        "PYTHONPATH": str(_ROOT),
        "PYTHONUNBUFFERED": "1",
        **env,
    }
    process = subprocess.Popen(
        argv if inside is None else inside.wrap(argv),
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    return Daemon(process, folder)


def _complete(config: Mapping[str, Any], folder: Path, runtime: Path) -> dict[str, Any]:
    places = {
        "state_dir": str(folder / "state"),
        "data_dir": str(folder / "data"),
        "runtime_dir": str(runtime / "run"),
    }
    listen = {"host": "127.0.0.1", "port": 0, **config.get("listen", {})}
    return {"version": 1, **places, **config, "listen": listen}


def _parse(line: bytes) -> dict[str, Any]:
    text = line.decode(errors="replace").rstrip("\n")
    try:
        document = json.loads(text)
    except json.JSONDecodeError:
        return {"raw": text}
    return document if isinstance(document, dict) else {"raw": text}


def _lives(process: psutil.Process) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _kill_all(daemon: Daemon) -> None:
    engines = daemon.engines()
    if daemon.process.poll() is None:
        daemon.process.kill()
        daemon.process.wait()
    for engine in engines:
        try:
            engine.kill()
        except psutil.NoSuchProcess:
            continue
