"""The certificate that the listener shows, read again when its files change."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path

import anyio
import anyio.to_thread
from anyio.abc import TaskStatus

from supervisor.config.problems import Problem, config_error
from supervisor.errors import ConfigError
from supervisor.events import CertificateLoaded, CertificateUnusable, EventBus

_Sight = tuple[tuple[int, int, int] | None, ...]
"""Device, inode and change of each file; None for one that isn't there."""


@dataclass(frozen=True, slots=True)
class CertificateFiles:
    """Where they are; ``key`` is None where the certificate's file holds it."""

    certificate: Path
    key: Path | None = None


class Certificate:
    """Reads the files when it is built, and goes on showing what was good while they are not.

    Attributes:
        context: for the listener. It stays the same; each new connection is shown the newest certificate.
    """

    def __init__(self, files: CertificateFiles, bus: EventBus, interval: float = 3.0) -> None:
        """Read the files; ``interval``: seconds between two looks at them.

        Raises:
            ConfigError: ``config_invalid`` with ``problems``: they can't be used.
        """
        self._files = files
        self._bus = bus
        self._interval = interval
        self._handled = self._last = _look(files)
        self.context = _load(files)
        self._newest = self.context
        self.context.sni_callback = self._show

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Look at the files again and again, until cancelled."""
        task_status.started()
        while True:
            await anyio.sleep(self._interval)
            await self.check()

    async def check(self) -> None:
        """Look once; what is new is read at the second look that finds it so, since two files change one by one."""
        seen = await anyio.to_thread.run_sync(_look, self._files, abandon_on_cancel=True)
        settled = seen == self._last
        self._last = seen
        if not settled or seen == self._handled:
            return
        self._handled = seen
        name = str(self._files.certificate)
        try:
            self._newest = await anyio.to_thread.run_sync(_load, self._files, abandon_on_cancel=True)
        except ConfigError as error:
            reason = "; ".join(str(problem) for problem in error.facts["problems"])
            self._bus.publish(CertificateUnusable(name, reason))
        else:
            self._bus.publish(CertificateLoaded(name))

    def _show(self, connection: ssl.SSLObject, _name: str | None, _context: ssl.SSLContext) -> None:
        """Called for each connection, whether or not its client says a name."""
        connection.context = self._newest


def _look(files: CertificateFiles) -> _Sight:
    return tuple(map(_state, filter(None, (files.certificate, files.key))))


def _state(path: Path) -> tuple[int, int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino, status.st_mtime_ns


def _load(files: CertificateFiles) -> ssl.SSLContext:
    """A context of its own, so that a bad pair never touches the one in use."""
    problems = [
        Problem(place, f"{path} can't be read: {reason}", "name a PEM file that the daemon's user may read")
        for place, path in (("listen.tls.certificate", files.certificate), ("listen.tls.key", files.key))
        if path is not None and (reason := _unreadable(path)) is not None
    ]
    if not problems:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.set_alpn_protocols(["http/1.1"])
        try:
            context.load_cert_chain(files.certificate, files.key, password=_no_passphrase)
        except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
            problems.append(_why(files, error))
        else:
            return context
    raise config_error(problems, None)


def _unreadable(path: Path) -> str | None:
    try:
        with path.open("rb") as stream:
            stream.read(1)
    except OSError as error:
        return error.strerror or str(error)
    return None


class _PassphraseError(ValueError):
    """The key asks for a passphrase: OpenSSL would ask on the terminal."""


def _no_passphrase() -> str:
    raise _PassphraseError


def _why(files: CertificateFiles, error: Exception) -> Problem:
    key = files.key or files.certificate
    if isinstance(error, _PassphraseError):
        return Problem("listen.tls.key", f"the key in {key} has a passphrase", "store it without one, with mode 0600")
    if getattr(error, "reason", None) == "KEY_VALUES_MISMATCH":
        return Problem(
            "listen.tls.key", f"the key in {key} is not that of {files.certificate}", "name the files of one pair"
        )
    return Problem(
        "listen.tls.certificate",
        f"{files.certificate} and {key} are no certificate and its key: {getattr(error, 'reason', None) or error}",
        "both must be PEM; without `key`, the certificate's file must hold the key too",
    )
