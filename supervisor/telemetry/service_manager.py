"""Tells systemd how the service is: ready, reloading, stopping, a line of status, and that it lives (sd_notify)."""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Callable, Mapping
from typing import Any

import anyio
from anyio.abc import TaskStatus

from supervisor.events import (
    ConfigRejected,
    ConfigReloaded,
    ConfigReloading,
    DaemonListening,
    DaemonStopping,
    Event,
    EventBus,
    InstanceChanged,
    Record,
)

# systemd advises half of its limit: one ping may be late.
_PINGS_IN_LIMIT = 2
_AT_REST = frozenset({"stopped"})
_LONGEST_STATUS = 400


class ServiceManager:
    """Listens to the bus, and says what concerns the manager; without ``NOTIFY_SOCKET`` it does nothing at all.

    The protocol is of ``man sd_notify``: datagrams of lines ``NAME=value`` to a socket at a path, or, from ``@`` on, an
    abstract name. What can't be sent is dropped: nobody is served better by a daemon that waits for its manager.
    """

    def __init__(self, env: Mapping[str, str], bus: EventBus) -> None:
        """``env`` is the daemon's; engines have an environment of their own, without the address."""
        self._address = env.get("NOTIFY_SOCKET") or None
        self._limit = _watchdog_seconds(env)
        self._states: dict[str, str] = {}
        self._socket: socket.socket | None = None
        self._said = ""
        self._rules: dict[type[Event], Callable[[Any], None]] = {
            DaemonListening: self._listening,
            ConfigReloading: self._reloading,
            ConfigReloaded: self._again,
            ConfigRejected: self._again,
            DaemonStopping: self._stopping,
            InstanceChanged: self._changed,
        }
        if self._address is not None:
            bus.listen(self._hear)

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Ping for as long as the loop runs, if the manager watches; a loop that stands still pings no more."""
        task_status.started()
        try:
            while self._address is not None and self._limit is not None:
                self._send("WATCHDOG=1")
                await anyio.sleep(self._limit / _PINGS_IN_LIMIT)
            await anyio.sleep_forever()
        finally:
            if self._socket is not None:
                self._socket.close()
                self._socket = None

    def _hear(self, record: Record) -> None:
        rule = self._rules.get(type(record.event))
        if rule is not None:
            rule(record.event)

    def _listening(self, event: DaemonListening) -> None:
        self._send("READY=1", f"STATUS=Listening at {event.address}; no model is loaded", f"MAINPID={os.getpid()}")

    def _reloading(self, _event: ConfigReloading) -> None:
        # The moment tells systemd that this answers its own signal, and not an earlier one.
        self._send("RELOADING=1", f"MONOTONIC_USEC={time.monotonic_ns() // 1000}", "STATUS=Reading the config again")

    def _again(self, event: ConfigReloaded | ConfigRejected) -> None:
        refused = isinstance(event, ConfigRejected)
        words = "The config can't be used, the old one goes on; see the log" if refused else self._summary()
        self._send("READY=1", f"STATUS={words}")

    def _stopping(self, event: DaemonStopping) -> None:
        self._send("STOPPING=1", f"STATUS=Stopping ({event.reason}): running requests get {event.drain_seconds:g} s")

    def _changed(self, event: InstanceChanged) -> None:
        self._states[event.model] = event.new
        words = self._summary()
        if words != self._said:
            self._said = words
            self._send(f"STATUS={words}")

    def _summary(self) -> str:
        by_state: dict[str, list[str]] = {}
        for model, state in self._states.items():
            if state not in _AT_REST:
                by_state.setdefault(state, []).append(model)
        parts = [f"{state}: {', '.join(sorted(models))}" for state, models in sorted(by_state.items())]
        return "; ".join(parts)[:_LONGEST_STATUS] or "No model is loaded"

    def _send(self, *lines: str) -> None:
        if self._address is None:
            return
        # A name may hold anything; a line of the protocol holds no line end.
        text = "\n".join(line.replace("\n", " ") for line in lines)
        with contextlib.suppress(OSError):
            if self._socket is None:
                self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
                self._socket.settimeout(0)
            address = "\0" + self._address[1:] if self._address.startswith("@") else self._address
            self._socket.sendto(text.encode(errors="replace"), address)


def _watchdog_seconds(env: Mapping[str, str]) -> float | None:
    """The limit that the manager set for this very process; None: it does not watch."""
    said, pid = env.get("WATCHDOG_USEC", ""), env.get("WATCHDOG_PID")
    if not (said.isascii() and said.isdigit()) or (pid is not None and pid != str(os.getpid())):
        return None
    return int(said) / 1e6 or None
