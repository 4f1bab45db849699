"""One engine process of an instance: its address, its key, and the HTTP session to it."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import secrets
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import anyio

from engines.contract import Endpoint, EngineAdapter, LaunchPlan
from supervisor.errors import ConfigError
from supervisor.instances.kept_connections import KeptConnections

# sun_path of Linux holds 108 bytes with the closing zero.
MAX_SOCKET_PATH = 107
_CONNECT_SECONDS = 5.0
# Calls at once beside those that leases stand for: probes, counts of tokens, questions for slots.
CALLS_BESIDE_SLOTS = 2


@dataclass(frozen=True, slots=True)
class LaunchTicket:
    """What is decided before a process exists: id, address and key.

    Attributes:
        guard: keeps a port ours until the process listens on it, and nobody else's while it lives.
    """

    id: str
    endpoint: Endpoint
    api_key: str
    guard: socket.socket | None = None

    def close(self) -> None:
        """The process is gone: its port is anybody's."""
        if self.guard is not None:
            self.guard.close()


def prepare_ticket(adapter: EngineAdapter, runtime_dir: Path) -> LaunchTicket:
    """A new launch's id, a free address (a stale socket file is removed) and a key.

    Raises:
        ConfigError: ``runtime_dir_unusable``: the socket's path is too long, or the folder can't be made.
    """
    launch_id = f"{secrets.token_hex(3)}"
    key = secrets.token_urlsafe(32)
    if adapter.socket_suffix is None:
        guard = _guarded_port()
        return LaunchTicket(launch_id, Endpoint(port=guard.getsockname()[1]), key, guard)
    path = runtime_dir / f"{launch_id}{adapter.socket_suffix}"
    if len(bytes(path)) > MAX_SOCKET_PATH:
        raise ConfigError(
            "runtime_dir_unusable",
            f"runtime_dir {runtime_dir} is too long: a socket's path holds {MAX_SOCKET_PATH} bytes, {path} has "
            f"{len(bytes(path))}. Name a shorter runtime_dir.",
        )
    path.unlink(missing_ok=True)
    return LaunchTicket(launch_id, Endpoint(socket_path=path), key)


def sweep_sockets(runtime_dir: Path) -> None:
    """Remove socket files that nobody listens on: a daemon that was killed left them. Living ones stay."""
    for path in runtime_dir.glob("*.sock"):
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as probe:
            probe.settimeout(1.0)
            if probe.connect_ex(str(path)) == errno.ECONNREFUSED:
                path.unlink(missing_ok=True)


def _guarded_port() -> socket.socket:
    """A free loopback port, held for as long as the socket is open.

    Servers that share ports (SO_REUSEPORT) start on a taken one too, and the system then deals out connections between
    the two. A load can take minutes, in which a port that was only looked at may be taken by somebody else. Bound, but
    not listening, the guard gets no connection; it lets only such a server of this user in, and no port is dealt out
    twice.
    """
    guard = socket.socket()
    if hasattr(socket, "SO_REUSEPORT"):
        guard.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    guard.bind(("127.0.0.1", 0))
    return guard


class Launch:
    """A started engine process as others see it; owned by its instance.

    Attributes:
        plan: what it was started with.
        session: HTTP client bound to this process alone; closed when the process ends.
        base_url: where paths are appended.
        headers: the engine's key; sent with each request, never logged.
        calls: the gate that every call to the process passes: its slots, and a few for looking at it.
        kept: connections of requests that have ended, for those that come next.
        progress_at: monotonic second at which a request last heard anything of it.
        listeners: told of each line that it writes.
        unfinished: the line that it is writing, as far as it has come.
        costs: works out ``rebuild`` and ``saving``.
    """

    def __init__(self, ticket: LaunchTicket, plan: LaunchPlan, instance_id: str, generation: int, pid: int) -> None:
        self.id = ticket.id
        self.endpoint = ticket.endpoint
        self.plan = plan
        self.instance_id = instance_id
        self.generation = generation
        self.pid = pid
        self.base_url = "http://engine" if ticket.endpoint.socket_path else f"http://127.0.0.1:{ticket.endpoint.port}"
        self.headers: Mapping[str, str] = {"Authorization": f"Bearer {ticket.api_key}"}
        self.session = _session(ticket.endpoint)
        self.calls = asyncio.Semaphore(plan.slots + CALLS_BESIDE_SLOTS)
        self.kept = KeptConnections()
        self.progress_at = time.monotonic()
        self.listeners: list[Callable[[str], None]] = []
        self.unfinished: Callable[[], str] = str
        self.costs: Callable[[], tuple[float, float]] = _costs_nothing
        self._overdue: float | None = None
        self._look = anyio.Event()

    @property
    def rebuild(self) -> float:
        """Seconds that its end costs the conversations that its slots hold."""
        return self.costs()[0]

    @property
    def saving(self) -> float:
        """Seconds that it takes to save them before its end."""
        return self.costs()[1]

    def wrote(self, lines: Sequence[str]) -> None:
        """It has written these lines."""
        for listener in tuple(self.listeners):
            for line in lines:
                listener(line)

    def overdue(self, seconds: float) -> None:
        """A request has heard nothing for ``seconds``, all that it may wait: have the engine looked at now."""
        self._overdue = min(seconds, self._overdue or seconds)
        self._look.set()

    def take_overdue(self) -> float | None:
        """What ``overdue`` was told since the last call; None: nothing."""
        overdue, self._overdue = self._overdue, None
        return overdue

    async def wait_for_look(self, seconds: float) -> None:
        """Return after ``seconds``, or at once when a request is overdue."""
        with anyio.move_on_after(seconds):
            await self._look.wait()
        self._look = anyio.Event()

    async def aclose(self) -> None:
        """Close the connections and remove the socket file."""
        self.kept.close()
        await self.session.close()
        if self.endpoint.socket_path is not None:
            self.endpoint.socket_path.unlink(missing_ok=True)


def _costs_nothing() -> tuple[float, float]:
    return 0.0, 0.0


def _session(endpoint: Endpoint) -> aiohttp.ClientSession:
    # No limit on connections: slots and the queue bound them. No total time-out: generations take as long as they do.
    # None is kept: llama-server's end waits up to five seconds for each connection that is open and idle.
    connector: aiohttp.BaseConnector
    if endpoint.socket_path is not None:
        connector = aiohttp.UnixConnector(path=str(endpoint.socket_path), limit=0, force_close=True)
    else:
        connector = aiohttp.TCPConnector(limit=0, force_close=True)
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_SECONDS)
    return aiohttp.ClientSession(
        connector=connector, timeout=timeout, auto_decompress=False, cookie_jar=aiohttp.DummyCookieJar()
    )
