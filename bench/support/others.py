"""What the daemon is compared with: a bare aiohttp proxy, llama-server's own router, nginx; each a child of ours."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.support.daemon import ROOT, Engine, stop_process
from bench.support.engines import Build
from bench.support.errors import BenchError
from bench.support.http import connect
from tests.support.sockets import free_port

_START_SECONDS = 30.0
# Debian puts it where a user's PATH does not look.
_NGINX_PLACES = ("/usr/sbin", "/usr/local/sbin")


@dataclass(frozen=True, slots=True)
class Server:
    """A listening child."""

    pid: int
    address: tuple[str, int]
    seconds_to_listen: float | None = None


@contextmanager
def bare_proxy(engine: Engine | None = None) -> Iterator[Server]:
    """An aiohttp proxy to an engine, or a server with nothing behind it."""
    arguments = []
    if engine is not None:
        arguments = [str(engine.address), engine.env.get("LLAMA_API_KEY", "")]
    argv = [sys.executable, "-m", "bench.support.bare_proxy", *arguments]
    env = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT)}
    with _child(argv, env, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line:
            raise BenchError(f"the bare proxy does not start: exit {process.wait()}")
        said = json.loads(line)
        yield Server(process.pid, ("127.0.0.1", said["port"]), said["seconds_since_exec"])


@contextmanager
def router(build: Build, models_dir: Path, arguments: Sequence[str]) -> Iterator[Server]:
    """llama-server in router mode; its children get the same arguments."""
    port = free_port()
    argv = [str(build.executable), "--models-dir", str(models_dir), "--host", "127.0.0.1", "--port", str(port)]
    env = {"PATH": os.environ["PATH"], "HOME": str(models_dir), **build.env}
    with _child([*argv, *arguments], env) as process:
        address = ("127.0.0.1", port)
        _wait_for(address, process, "llama-server's router")
        yield Server(process.pid, address)


def find_nginx(named: Path | None) -> Path | None:
    """The nginx to compare with, if there is one."""
    if named is not None:
        return named
    search = os.pathsep.join([os.environ.get("PATH", ""), *_NGINX_PLACES])
    found = shutil.which("nginx", path=search)
    return Path(found) if found else None


@contextmanager
def nginx(executable: Path, folder: Path, engine: Engine, *, keeps: bool) -> Iterator[Server]:
    """An nginx of one process, without access log and without buffering, as a proxy to an engine.

    ``keeps``: connections to the engine are used again; llama-server closes them after a stream without saying so,
    and nginx, which does not ask a second time, would answer 502.
    """
    home = folder / f"nginx-{engine.pid}-{'kept' if keeps else 'closed'}"
    home.mkdir()
    port = free_port()
    path = home / "nginx.conf"
    path.write_text(_nginx_conf(home, port, engine, keeps=keeps), encoding="utf-8")
    argv = [str(executable), "-p", str(home), "-c", str(path), "-e", "stderr"]
    with _child(argv, {"PATH": os.environ["PATH"]}) as process:
        address = ("127.0.0.1", port)
        _wait_for(address, process, "nginx")
        yield Server(process.pid, address)


def _nginx_conf(home: Path, port: int, engine: Engine, *, keeps: bool) -> str:
    folders = "".join(f"  {kind}_temp_path {home};\n" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi"))
    user = "user root;\n" if os.geteuid() == 0 else ""  # the engine's socket lies in a 0700 folder
    return f"""{user}daemon off;
master_process off;
worker_processes 1;
pid {home}/pid;
error_log stderr;
events {{ worker_connections 2048; }}
http {{
  access_log off;
{folders}  upstream engine {{ server unix:{engine.address};{" keepalive 64;" if keeps else ""} }}
  server {{
    listen 127.0.0.1:{port} backlog=1024;
    keepalive_requests 100000000;
    location / {{
      proxy_pass http://engine;
      proxy_http_version 1.1;
      proxy_buffering off;
      proxy_set_header Connection {'""' if keeps else "close"};
      proxy_set_header Authorization "{engine.headers["Authorization"]}";
    }}
  }}
}}
"""


@contextmanager
def _child(
    argv: Sequence[str], env: Mapping[str, str], stdout: int = subprocess.DEVNULL
) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(
        argv, env=dict(env), stdin=subprocess.DEVNULL, stdout=stdout, stderr=subprocess.DEVNULL, start_new_session=True
    )
    try:
        yield process
    finally:
        stop_process(process)
        if process.stdout is not None:
            process.stdout.close()


def _wait_for(address: tuple[str, int], process: subprocess.Popen[bytes], name: str) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while time.monotonic() < deadline:
        try:
            connect(address).close()
        except OSError:
            if process.poll() is not None:
                raise BenchError(f"{name} does not start: exit {process.returncode}") from None
            time.sleep(0.01)
        else:
            return
    raise BenchError(f"{name} does not listen within {_START_SECONDS:g} s")
