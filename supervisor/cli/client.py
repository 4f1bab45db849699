"""A small client of the daemon's own address, on the standard library: a command that asks once starts quickly."""

from __future__ import annotations

import contextlib
import http.client
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from supervisor.errors import ConfigError, SupervisorError

_TIMEOUT_SECONDS = 10.0
# Twice the stream's heartbeat, and some: then the line is dead.
_STREAM_TIMEOUT_SECONDS = 40.0
_MAX_SHOWN = 200


class DaemonError(SupervisorError):
    """``daemon_unreachable daemon_refused daemon_unknown_answer``: shown by the command, never sent anywhere."""


@dataclass(frozen=True, slots=True)
class StreamedEvent:
    """One event of ``/admin/v1/events``; ``number`` is None for the stream's own (``missed``, ``overflow``)."""

    number: int | None
    name: str
    data: dict[str, Any]


class DaemonClient:
    """Asks one daemon.

    Args:
        url: ``http://host:port``, with a path in front if a proxy adds one.
        token: sent as a bearer token; None where the daemon asks for none.

    Raises:
        ConfigError: ``config_invalid``: the URL is none.
    """

    def __init__(self, url: str, token: str | None = None) -> None:
        self.url = url.rstrip("/")
        try:
            parts = urlsplit(self.url)
            self._port = parts.port
        except ValueError:
            raise _bad_url(url) from None
        if parts.scheme not in {"http", "https"} or not parts.hostname:
            raise _bad_url(url)
        self._secure = parts.scheme == "https"
        self._host = parts.hostname
        self._prefix = parts.path
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}

    def get(self, path: str) -> Any:
        """The JSON answer of ``GET path``.

        Raises:
            DaemonError: nobody there, refused, or not an answer of Enginehouse.
        """
        return self._asked(path, "GET")

    def post(self, path: str, *, timeout_seconds: float = _TIMEOUT_SECONDS) -> Any:
        """The JSON answer of ``POST path`` without a body.

        Raises:
            DaemonError: as ``get``.
        """
        return self._asked(path, "POST", timeout_seconds)

    def events(self, after: int | None) -> Iterator[StreamedEvent]:
        """Events as they come, kept ones after ``after`` first, until the daemon ends the stream.

        Raises:
            DaemonError: as ``get``; also when the line goes dead.
        """
        headers = {"Accept": "text/event-stream"}
        if after is not None:
            headers["Last-Event-ID"] = str(after)
        with self._opened("/admin/v1/events", headers, _STREAM_TIMEOUT_SECONDS) as response:
            if "event-stream" not in response.headers.get("Content-Type", ""):
                raise self._not_ours("it gave no event stream")
            yield from _parse_events(response)

    def _asked(self, path: str, method: str, timeout_seconds: float = _TIMEOUT_SECONDS) -> Any:
        with self._opened(path, {"Accept": "application/json"}, timeout_seconds, method) as response:
            body = response.read()
        try:
            return json.loads(body)
        except ValueError as error:
            raise self._not_ours(f"its answer to {path} is no JSON") from error

    @contextlib.contextmanager
    def _opened(
        self, path: str, headers: Mapping[str, str], timeout_seconds: float, method: str = "GET"
    ) -> Iterator[http.client.HTTPResponse]:
        # Proxies of the environment are not asked: the daemon is on this machine or on the home network.
        kind = http.client.HTTPSConnection if self._secure else http.client.HTTPConnection
        connection = kind(self._host, self._port, timeout=timeout_seconds)
        try:
            connection.request(method, self._prefix + path, headers={**self._headers, **headers})
            # Closed by itself: after `Connection: close` the answer holds the socket, not the connection.
            with connection.getresponse() as response:
                if response.status != http.HTTPStatus.OK:
                    raise self._refused(path, response)
                yield response
        except (OSError, http.client.HTTPException) as error:
            raise self._unreachable(error) from error
        finally:
            connection.close()

    def _refused(self, path: str, response: http.client.HTTPResponse) -> DaemonError:
        status = response.status
        message = _error_message(response.read(65536))
        if status in {401, 403}:
            said = f" {message}" if message else ""
            return DaemonError(
                "daemon_refused",
                f"the daemon at {self.url} refused the token ({status}):{said} Name a file that holds a token with the "
                "role that is needed as --token-file or ENGINEHOUSE_TOKEN_FILE.",
                status=status,
            )
        if message is None:
            return self._not_ours(f"it answered {path} with status {status}")
        return DaemonError("daemon_refused", f"the daemon at {self.url} answered {status}: {message}", status=status)

    def _unreachable(self, error: Exception) -> DaemonError:
        if isinstance(error, ConnectionRefusedError):
            why = f"no daemon listens at {self.url}. Start one with `enginehouse serve`, or name another address"
        elif isinstance(error, TimeoutError):
            why = f"{self.url} did not answer in time. If it is the wrong one, name another address"
        else:
            why = (
                f"{self.url} can't be asked: {str(error) or type(error).__name__}. If it is the wrong one, name another"
            )
        return DaemonError("daemon_unreachable", f"{why} by --url or ENGINEHOUSE_URL.", url=self.url)

    def _not_ours(self, what: str) -> DaemonError:
        return DaemonError(
            "daemon_unknown_answer",
            f"{self.url} does not look like Enginehouse: {what}. Another address goes in --url or ENGINEHOUSE_URL.",
        )


def read_token(path: Path | None) -> str | None:
    """The token in a file; None without a file.

    Raises:
        ConfigError: ``config_invalid``: it can't be read, or holds nothing usable.
    """
    if path is None:
        return None
    try:
        token = path.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "not text"
        raise ConfigError("config_invalid", f"token file {path} can't be read: {why}.", path=str(path)) from error
    if not token or not token.isascii() or not token.isprintable():
        raise ConfigError(
            "config_invalid", f"token file {path} holds no token: one line of plain text.", path=str(path)
        )
    return token


def _parse_events(lines: Iterator[bytes] | http.client.HTTPResponse) -> Iterator[StreamedEvent]:
    number: int | None = None
    name, data = "message", ""
    for raw in lines:
        line = raw.decode(errors="replace").rstrip("\r\n")
        field, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if not line:
            if data:
                yield StreamedEvent(number, name, _document(data))
            number, name, data = None, "message", ""
        elif field == "id" and value.isdecimal():
            number = int(value)
        elif field == "event":
            name = value
        elif field == "data":
            data += value


def _document(text: str) -> dict[str, Any]:
    try:
        document = json.loads(text)
    except ValueError:
        document = None
    return document if isinstance(document, dict) else {"text": text}


def _error_message(body: bytes) -> str | None:
    """The sentence in an error body of ours."""
    try:
        message = json.loads(body)["error"]["message"]
    except (ValueError, KeyError, TypeError):
        return None
    return message[:_MAX_SHOWN] if isinstance(message, str) else None


def _bad_url(url: str) -> ConfigError:
    return ConfigError("config_invalid", f"{url!r} is no address: write it as http://127.0.0.1:8080.", url=url)
