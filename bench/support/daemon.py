"""A daemon of the bench's own: started as a user starts it, its log in a file, as a service's is."""

from __future__ import annotations

import http.client
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import psutil
import yaml

from bench.support.errors import BenchError
from tests.support.sockets import short_socket_folder

ROOT = Path(__file__).resolve().parents[2]
_START_SECONDS = 30.0
_STOP_SECONDS = 15.0
_LOAD_SECONDS = 120.0
_PAUSE = 0.005
# Nothing of the bench is refused for its number.
_QUEUE = {"per_caller": 1024, "total": 1024}


@dataclass(frozen=True, slots=True)
class Engine:
    """A running engine and how to talk to it without the daemon.

    Attributes:
        argv: its command line, executable first.
        env: its whole environment, its key among it.
    """

    pid: int
    address: Path
    headers: Mapping[str, str]
    argv: tuple[str, ...]
    env: Mapping[str, str]


@dataclass(slots=True)
class Daemon:
    """A daemon that listens."""

    process: subprocess.Popen[bytes]
    log: Path
    address: tuple[str, int] = ("", 0)
    seconds_to_listen: float | None = None

    @property
    def pid(self) -> int:
        """Its process id."""
        return self.process.pid

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        """The JSON of an answer.

        Raises:
            BenchError: anything but 200.
        """
        return self.ask_for(200, method, path, body)

    def ask_for(self, status: int, method: str, path: str, body: Any = None) -> Any:
        """The JSON of an answer with this status.

        Raises:
            BenchError: it has another.
        """
        connection = http.client.HTTPConnection(*self.address, timeout=_LOAD_SECONDS)
        try:
            data = None if body is None else json.dumps(body)
            connection.request(method, path, data, {"Content-Type": "application/json"})
            answer = connection.getresponse()
            text = answer.read()
        finally:
            connection.close()
        if answer.status != status:
            raise BenchError(f"{method} {path} was answered {answer.status}: {text.decode(errors='replace')}")
        return json.loads(text) if text else None

    def load(self, model: str) -> Engine:
        """Make a model ready; its engine."""
        self.ask("POST", f"/admin/v1/models/{model}/load", {})
        rows = self.ask("GET", "/admin/v1/status")["instances"]
        pid = next(row["pid"] for row in rows if row["model"] == model)
        process = psutil.Process(pid)
        argv, env = tuple(process.cmdline()), process.environ()
        key = env.get("LLAMA_API_KEY", "")
        return Engine(pid, Path(argv[argv.index("--host") + 1]), {"Authorization": f"Bearer {key}"}, argv, env)

    def unload(self, model: str) -> None:
        """Stop a model's engine and wait for its end."""
        self.ask("POST", f"/admin/v1/models/{model}/unload", {})

    def wait_until_known(self) -> None:
        """Until it has looked at builds and models."""
        deadline = time.monotonic() + _START_SECONDS
        while True:
            try:
                self.ask("GET", "/readyz")
            except BenchError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(_PAUSE)
            else:
                return


def config(models: Mapping[str, Any], *builds: Mapping[str, Any], **sections: Any) -> dict[str, Any]:
    """A document with these builds only."""
    engine = {"llama.cpp": {"builds": [dict(build) for build in builds]}}
    rows = {name: {"engine": "llama.cpp", **model} for name, model in models.items()}
    return {"version": 1, "engines": engine, "models": rows, "broker": {"queue": _QUEUE}, **sections}


@contextmanager
def running_daemon(folder: Path, document: Mapping[str, Any], *, profile: Path | None = None) -> Iterator[Daemon]:
    """``python -m supervisor serve`` on a free port, ended by SIGTERM.

    Args:
        folder: for its config, state and log.
        document: the config; where it listens and its folders are filled in.
        profile: sample its stack from SIGUSR1 on, and write that here at its end.

    Raises:
        BenchError: it does not start; the end of its log is in the message.
    """
    with short_socket_folder() as runtime:
        daemon = _start(folder, document, runtime, profile)
        try:
            _wait_until_listening(daemon)
            yield daemon
        finally:
            stop_process(daemon.process)


def _start(folder: Path, document: Mapping[str, Any], runtime: Path, profile: Path | None) -> Daemon:
    places = {
        "state_dir": str(folder / "state"),
        "data_dir": str(folder / "data"),
        "runtime_dir": str(runtime / "run"),
        "listen": {"host": "127.0.0.1", "port": 0},
    }
    path = folder / "config.yaml"
    path.write_text(yaml.safe_dump({**places, **document}, sort_keys=False), encoding="utf-8")
    module = ["supervisor"] if profile is None else ["bench.support.profiled", str(profile)]
    argv = [sys.executable, "-m", *module, "serve", "--config", str(path)]
    env = {"PATH": os.environ["PATH"], "HOME": str(folder), "XDG_RUNTIME_DIR": str(runtime), "PYTHONPATH": str(ROOT)}
    log = folder / "daemon.log"
    with log.open("wb") as stream:
        process = subprocess.Popen(
            argv, cwd=folder, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=stream,
            start_new_session=True,
        )  # fmt: skip
    return Daemon(process, log)


def _wait_until_listening(daemon: Daemon) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while time.monotonic() < deadline:
        for line in daemon.log.read_text(errors="replace").splitlines(keepends=True):
            if '"daemon_listening"' in line and line.endswith("\n"):
                record = json.loads(line)
                host, _, port = str(record["address"]).rpartition("://")[2].rpartition(":")
                daemon.address = (host, int(port))
                daemon.seconds_to_listen = record["seconds_since_exec"]
                return
        if daemon.process.poll() is not None:
            break
        time.sleep(_PAUSE)
    _give_up(daemon)


def _give_up(daemon: Daemon) -> NoReturn:
    lines = daemon.log.read_text(errors="replace").splitlines()[-10:]
    raise BenchError("the daemon does not listen. The end of its log:\n" + "\n".join(lines))


def stop_process(process: subprocess.Popen[bytes]) -> None:
    """End a child of ours by SIGTERM, and whatever it leaves behind."""
    below = _children(process.pid)
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    for left in below:
        try:
            left.kill()  # psutil compares the start time first: it is still the same process
        except psutil.NoSuchProcess:
            continue


def _children(pid: int) -> list[psutil.Process]:
    try:
        return psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []
