"""A service manager's socket, as systemd gives one to a service."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from tests.support.sockets import short_socket_folder

_PATIENCE_SECONDS = 30.0


@dataclass
class Manager:
    """Collects what a service tells.

    Attributes:
        address: for ``NOTIFY_SOCKET``.
        heard: each message as a dictionary, in order.
        pids: who sent each, by the kernel's word.
    """

    address: str
    _socket: socket.socket
    heard: list[dict[str, str]] = field(default_factory=list)
    pids: list[int] = field(default_factory=list)

    def wait_for(self, **wanted: str) -> dict[str, str]:
        """The next message that says all this; blocks.

        Raises:
            AssertionError: it did not come in time.
        """
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while (left := deadline - time.monotonic()) > 0:
            self._socket.settimeout(left)
            try:
                data, extra, _, _ = self._socket.recvmsg(4096, socket.CMSG_SPACE(12))
            except TimeoutError:
                break
            message = dict(line.split("=", 1) for line in data.decode().splitlines())
            self.heard.append(message)
            self.pids.append(int.from_bytes(extra[0][2][:4], "little"))
            if wanted.items() <= message.items():
                return message
        raise AssertionError(f"{wanted} was not told: {self.heard}")


@contextmanager
def service_manager(*, abstract: bool = False) -> Iterator[Manager]:
    """A bound datagram socket, at a path or by an abstract name."""
    with short_socket_folder() as folder, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as bound:
        path = str(folder / "notify")
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        bound.bind(f"\0{path}" if abstract else path)
        yield Manager(f"@{path}" if abstract else path, bound)
