"""Callers' tokens: read from their files, kept as hashes, and compared in a time that tells nothing."""

from __future__ import annotations

import hashlib
import hmac
import os
import stat
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from supervisor.config.problems import Problem, config_error
from supervisor.config.schema import CallerConfig
from supervisor.gateway.caller import Caller

# A header holds 8190 bytes at most, see ``server.py``.
_MAX_BYTES = 4096
# A shorter one would hide ordinary words of the log.
_HIDDEN_FROM = 6
_MAKE_ONE = "make one with `openssl rand -hex 32`"


@dataclass(frozen=True, slots=True)
class Credential:
    """A caller and the SHA-256 of their token: the tokens are random, so that no slow hash is needed."""

    caller: Caller
    digest: bytes = field(repr=False)


class _UnusableError(Exception):
    """Why a token file can't be used, and what to do."""

    def __init__(self, message: str, fix: str) -> None:
        super().__init__(message)
        self.message = message
        self.fix = fix


def read_credentials(callers: Sequence[CallerConfig], hide: Callable[[str], None]) -> tuple[Credential, ...]:
    """The callers of a config with their tokens' hashes. Reads files: not on the loop of a daemon that serves.

    ``hide`` is told of each token, so that no log shows it.

    Raises:
        ConfigError: ``config_invalid`` with ``problems``: a file is missing, empty, readable by everyone, holds no
            single word, or holds another caller's token.
    """
    problems: list[Problem] = []
    credentials: list[Credential] = []
    owners: dict[bytes, str] = {}
    for index, config in enumerate(callers):
        place = f"auth.callers[{index}].token_file"
        try:
            token = _read(config.token_file)
        except _UnusableError as error:
            problems.append(Problem(place, error.message, error.fix))
            continue
        if len(token) >= _HIDDEN_FROM:
            hide(token)
        digest = digest_of(token)
        owner = owners.setdefault(digest, config.name)
        if owner != config.name:
            problems.append(Problem(place, f"{config.token_file} holds the token of {owner} too", _MAKE_ONE))
        credentials.append(Credential(_caller(config), digest))
    if problems:
        raise config_error(problems, None)
    return tuple(credentials)


def digest_of(token: str) -> bytes:
    """The hash by which a token is known; any text has one."""
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).digest()


def find_caller(credentials: Iterable[Credential], token: str) -> Caller | None:
    """Whose token it is. Compares with each of them, so that the time tells neither whose nor how much is right."""
    digest = digest_of(token)
    found = None
    for credential in credentials:
        if hmac.compare_digest(credential.digest, digest):
            found = credential.caller
    return found


def _caller(config: CallerConfig) -> Caller:
    return Caller(
        name=config.name,
        roles=frozenset(config.roles),
        weight=config.weight,
        max_lane=config.max_lane,
        trusted=config.trusted,
        max_concurrent=config.max_concurrent,
        models=None if config.models is None else frozenset(config.models),
    )


def _read(path: Path) -> str:
    try:
        real = path.resolve(strict=True)
        status = real.stat()
        if not stat.S_ISREG(status.st_mode):
            raise _UnusableError(f"{path} is not a file", "name a file that holds the token and nothing else")
        open_to_all = _open_to_all(real, status)
        with real.open("rb") as stream:
            data = stream.read(_MAX_BYTES + 1)
    except FileNotFoundError:
        raise _UnusableError(f"{path} is not there", f"{_MAKE_ONE} and put it there") from None
    except OSError as error:
        raise _UnusableError(f"{path} can't be read: {error.strerror}", "let the daemon's user read it") from error
    except RuntimeError:  # links that lead in a circle; Python 3.13 has an OSError for it
        raise _UnusableError(f"{path} is a link that leads nowhere", "name the file itself") from None
    if open_to_all:
        raise _UnusableError(
            f"every user of this machine can read or change {path}",
            f"`chmod 600 {path}`; a container's secret has a mode of its own, such as defaultMode: 0400",
        )
    return _token_in(data, path)


def _open_to_all(real: Path, status: os.stat_result) -> bool:
    """Whether other users get at the file: by its own mode, and by that of every folder above it."""
    if not status.st_mode & (stat.S_IROTH | stat.S_IWOTH):
        return False
    return all(folder.stat().st_mode & stat.S_IXOTH for folder in real.parents)


def _token_in(data: bytes, path: Path) -> str:
    token = data.decode("utf-8-sig", errors="replace").strip()
    if not token:
        raise _UnusableError(f"{path} is empty", f"{_MAKE_ONE} and put it there")
    # What a header can carry after `Bearer`.
    if len(data) > _MAX_BYTES or not token.isascii() or not token.isprintable() or " " in token:
        raise _UnusableError(
            f"{path} holds something else than a token", f"it must be one word of plain text: {_MAKE_ONE}"
        )
    return token
