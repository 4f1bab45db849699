"""The one address, opened before the rest of the daemon is imported: who comes meanwhile waits, and is not refused."""

from __future__ import annotations

import errno
import socket
from dataclasses import dataclass

from supervisor.config.schema import Config
from supervisor.errors import ConfigError
from supervisor.processes.age import seconds_since_exec
from supervisor.storage import StateLock

# Of connections not yet taken: aiohttp's own 128 made a burst of 256 wait a second for the second SYN.
BACKLOG = 1024


@dataclass(frozen=True, slots=True)
class OpenAddress:
    """The state folder's lock and the listening socket; ``seconds_since_exec`` when it was opened, None: not known."""

    lock: StateLock
    socket: socket.socket
    seconds_since_exec: float | None

    def close(self) -> None:
        """Let both go."""
        self.socket.close()
        self.lock.release()


def open_address(config: Config) -> OpenAddress:
    """Lock the state folder, then listen.

    Raises:
        ConfigError: ``state_dir_locked``, ``state_dir_unusable``, ``address_unusable``.
    """
    lock = StateLock.take(config.state_dir)
    try:
        opened = open_socket(str(config.listen.host), config.listen.port)
    except ConfigError:
        lock.release()
        raise
    return OpenAddress(lock, opened, seconds_since_exec())


def open_socket(host: str, port: int) -> socket.socket:
    """A listening socket; port 0 takes a free one.

    Raises:
        ConfigError: ``address_unusable``.
    """
    opened = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    try:
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if opened.family == socket.AF_INET6:
            opened.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        opened.bind((host, port))
        opened.listen(BACKLOG)
        opened.settimeout(0)  # for the event loop
    except OSError as error:
        opened.close()
        raise _unusable(error, host, port) from error
    return opened


def _unusable(error: OSError, host: str, port: int) -> ConfigError:
    address = f"{host}:{port}"
    if error.errno == errno.EADDRINUSE:
        what = (
            f"{address} is taken by another program (`ss -ltnp 'sport = :{port}'` says which). Stop that one, or "
            "choose another port with --port or listen.port."
        )
    elif isinstance(error, socket.gaierror) or error.errno == errno.EADDRNOTAVAIL:
        what = f"{host} is no address of this machine. Choose another with --host or listen.host."
    elif error.errno in {errno.EACCES, errno.EPERM}:
        what = f"This user may not listen on {address}. Choose a port of at least 1024 with --port or listen.port."
    else:
        what = f"{address} can't be listened on: {error}. Choose another with --host, --port or listen."
    return ConfigError("address_unusable", what, host=host, port=port)
