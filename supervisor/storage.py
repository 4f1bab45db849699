"""The state folder: one daemon's lock, and small JSON files that are whole or not there."""

from __future__ import annotations

import contextlib
import fcntl
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson

from supervisor.errors import ConfigError

_LOCK_NAME = "lock"


def make_private_folder(folder: Path) -> None:
    """Make a folder that only this user can enter, or see that it is one.

    Raises:
        ConfigError: ``runtime_dir_unusable``: a file, another user's, or open to others and not ours to close.
    """
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if folder.stat().st_uid != os.geteuid():
            raise PermissionError(1, "it belongs to another user")
        folder.chmod(0o700)
    except OSError as error:
        raise ConfigError(
            "runtime_dir_unusable",
            f"runtime_dir {folder} can't be used: {_why(error)}. Name another folder as runtime_dir.",
            path=str(folder),
        ) from error


def _why(error: OSError) -> str:
    is_file = isinstance(error, FileExistsError | NotADirectoryError)
    return "it is a file, not a folder" if is_file else str(error.strerror)


class StateLock:
    """An exclusive lock on a state folder; held until ``release`` or the end of the process."""

    def __init__(self, fd: int, path: Path) -> None:
        self._fd: int | None = fd
        self.path = path

    @classmethod
    def take(cls, folder: Path) -> StateLock:
        """Make the folder (0700) if needed and lock it, before anything in it is read.

        Raises:
            ConfigError: ``state_dir_unusable`` (a file, no right to write) or ``state_dir_locked`` with the holder.
        """
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            fd = os.open(folder / _LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise ConfigError(
                "state_dir_unusable",
                f"state_dir {folder} can't be used: {_why(error)}. Name another folder as state_dir.",
                path=str(folder),
            ) from error
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = os.pread(fd, 32, 0).decode(errors="replace").strip() or "unknown"
            os.close(fd)
            raise ConfigError(
                "state_dir_locked",
                f"another daemon (pid {holder}) holds state_dir {folder}. Stop it, or name another state_dir.",
                path=str(folder),
                holder=holder,
            ) from error
        os.ftruncate(fd, 0)
        os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
        return cls(fd, folder / _LOCK_NAME)

    def release(self) -> None:
        """Let the folder go; safe to call twice."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None


class JsonFile:
    """One small document with a schema version, replaced as a whole.

    Attributes:
        path: where it is.
        schema: version of the shape inside; another version reads as absent.
    """

    def __init__(self, path: Path, schema: int) -> None:
        self.path = path
        self.schema = schema

    def read(self) -> tuple[dict[str, Any] | None, str | None]:
        """The document, or None and (unless it just isn't there) why it can't be used. Never raises."""
        try:
            document = orjson.loads(self.path.read_bytes())
        except FileNotFoundError:
            return None, None
        except (OSError, orjson.JSONDecodeError) as error:
            return None, f"unreadable: {error}"
        if not isinstance(document, dict) or document.get("schema") != self.schema:
            return None, f"not schema {self.schema}"
        return document, None

    def set_aside(self) -> Path | None:
        """Keep an unusable file beside itself as ``NAME.bad``, for the owner to look at."""
        bad = self.path.with_name(self.path.name + ".bad")
        with contextlib.suppress(OSError):
            self.path.replace(bad)
            return bad
        return None

    def write(self, document: dict[str, Any], *, durable: bool = True) -> None:
        """Replace the file: temporary file, fsync, rename, fsync of the folder.

        Not ``durable``: without the flushes; whole or not there also after SIGKILL, but not after a power failure.

        Raises:
            OSError: disk full, or no right to write; the old file is untouched.
        """
        data = orjson.dumps({"schema": self.schema, **document}, option=orjson.OPT_INDENT_2 | orjson.OPT_NON_STR_KEYS)
        with _temporary_beside(self.path) as (fd, name):
            with os.fdopen(fd, "wb") as stream:
                stream.write(data)
                stream.flush()
                if durable:
                    os.fsync(stream.fileno())
            name.replace(self.path)
        if not durable:
            return
        folder = os.open(self.path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


@contextlib.contextmanager
def _temporary_beside(path: Path) -> Iterator[tuple[int, Path]]:
    fd, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    temporary = Path(name)
    try:
        yield fd, temporary
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
