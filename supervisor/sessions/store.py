"""The folder of conversations: whole files or none, for this user alone, within a budget.

A file is written by an engine under a name of its own, made here first so that nobody else may read it; only when the
engine has said that it is whole, and it has the size that was said, does it get its name, and may be read. What it is
about is written beside it last, once the file is on the disk itself: a file without that is a leftover after a crash.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import shutil
from collections.abc import Container, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NoReturn

import anyio.to_thread

from supervisor.clock import Clock
from supervisor.events import EventBus
from supervisor.sessions.events import SessionFilesDropped, SessionFolderUnusable
from supervisor.sessions.kept import Kept, kept_of, too_many
from supervisor.sessions.stamp import stamp_of
from supervisor.storage import JsonFile

SCHEMA = 1
FILE_SUFFIX = ".kv"
ABOUT_SUFFIX = ".json"
PART_SUFFIX = ".part"
_HASH_FILE = "key"
_OURS = re.compile(r"\.?[0-9a-f]{16}\.(json|kv|part)[^/]*|\.served\.json\.[^/]*")
_SECRET_BYTES = 32
# Of the disk, that are left to others whatever the budget says.
_SPARE_BYTES = 256 * 2**20


@dataclass(frozen=True, slots=True)
class StoreLimits:
    """Bytes of all files, and seconds for which one that nobody comes back to is kept."""

    budget: int
    max_age: float


class NoRoomError(Exception):
    """A file can't be written; its text says why."""


class Store:
    """Owns the folder; ``files`` are those that can be restored, by id."""

    def __init__(self, folder: Path, clock: Clock, bus: EventBus) -> None:
        self.folder = folder
        self.files: dict[str, Kept] = {}
        self.usable = False
        self._clock = clock
        self._bus = bus
        self._secret = secrets.token_bytes(_SECRET_BYTES)
        self._securing: dict[str, anyio.Event] = {}
        self._begun: set[str] = set()

    @property
    def secret(self) -> bytes:
        """What marks are hashed with; the same after a restart."""
        return self._secret

    async def load(self) -> None:
        """Make the folder, read what is in it, and remove leftovers; where that fails nothing is kept. Never raises."""
        try:
            self._secret, found, gone = await anyio.to_thread.run_sync(_read_folder, self.folder)
        except OSError as error:
            self.usable = False
            self._bus.publish(SessionFolderUnusable(str(self.folder), _why(error)))
            return
        now = self._clock.wall()
        self.files = {kept.id: kept.not_after(now) for kept in found}
        self.usable = True
        if gone:
            self._bus.publish(SessionFilesDropped(len(gone), sum(gone), "leftovers of writes that were cut short"))

    async def begin(self, expected: int, limits: StoreLimits) -> str:
        """The name of a file for an engine to write, of about ``expected`` bytes; ``commit`` or ``discard`` it.

        Raises:
            NoRoomError: the disk is full, or the file would not fit the budget.
        """
        if expected > limits.budget:
            raise NoRoomError(f"it takes about {expected} bytes, and the budget is {limits.budget}")
        name = secrets.token_hex(8) + PART_SUFFIX
        self._begun.add(name)
        try:
            await anyio.to_thread.run_sync(_make_part, self.folder / name, expected)
        except BaseException as error:
            self._begun.discard(name)
            if isinstance(error, OSError):
                raise NoRoomError(_why(error)) from error
            raise
        return name

    async def commit(self, name: str, kept: Kept) -> Kept:
        """The file is whole, by the engine's word: from now on it can be read; quick. ``secure`` is to follow.

        Args:
            name: from ``begin``.
            kept: what it is about; its id, size and times are set here. A size above 0 must be the file's.

        Raises:
            NoRoomError: it is not what the engine said.
        """
        now = self._clock.wall()
        kept = replace(kept, id=name.removesuffix(PART_SUFFIX), saved_at=now, used_at=now)
        try:
            size, stamp = await anyio.to_thread.run_sync(_name_it, self.folder, name, kept)
        except OSError as error:
            raise NoRoomError(_why(error)) from error
        self._begun.discard(name)
        kept = replace(kept, size=size, stamp=stamp)
        self.files[kept.id] = kept
        self._securing[kept.id] = anyio.Event()
        return kept

    async def secure(self, kept: Kept, limits: StoreLimits) -> bool:
        """Bring a file to the disk, and let those go that it replaces or has no room beside; whether it is there.

        Never raises.
        """
        secured = self._securing[kept.id]
        try:
            await anyio.to_thread.run_sync(_secure, self.folder, kept, abandon_on_cancel=True)
        except OSError as error:
            await self.drop([kept], _why(error))
            return False
        else:
            if kept.id not in self.files:  # cleared meanwhile
                await self._unlink([kept])
                return False
            await self._remove([old for old in self.files.values() if old is not kept and old.is_replaced_by(kept)])
            await self.trim(limits)
            return True
        finally:
            self._securing.pop(kept.id, None)
            secured.set()

    async def secured(self) -> None:
        """Return when every file that was committed is on the disk."""
        for event in list(self._securing.values()):
            await event.wait()

    async def discard(self, name: str) -> None:
        """Remove what was begun; what an engine writes under its name afterwards goes with the next ``trim``."""
        self._begun.discard(name)
        await anyio.to_thread.run_sync(_unlink, self.folder / name)

    def age(self, kept: Kept) -> float:
        """Seconds since it was written, by the wall's clock."""
        return max(0.0, self._clock.wall() - kept.saved_at)

    async def is_whole(self, kept: Kept) -> bool:
        """Whether the file is there as it was written, and not cut short, overwritten, or another one by its name."""
        return await anyio.to_thread.run_sync(_is_as_written, self.folder / (kept.id + FILE_SUFFIX), kept)

    async def used(self, kept: Kept) -> None:
        """It was restored just now."""
        if kept.id in self.files:
            self.files[kept.id] = kept = replace(kept, used_at=self._clock.wall(), uses=kept.uses + 1)
            if kept.id in self._securing:
                return
            with contextlib.suppress(OSError):
                await anyio.to_thread.run_sync(_write_about, self.folder, kept)
            if kept.id not in self.files:  # cleared meanwhile
                await self._unlink([kept])

    async def drop(self, gone: Iterable[Kept], reason: str) -> tuple[int, int]:
        """Remove files, and tell; how many there were and their bytes."""
        dropped = [kept for kept in gone if kept.id in self.files]
        await self._remove(dropped)
        count, size = len(dropped), sum(kept.size for kept in dropped)
        if dropped:
            self._bus.publish(SessionFilesDropped(count, size, reason))
        return count, size

    async def clear_others(self) -> None:
        """Remove the folders in which engines keep conversations by themselves; they go on without."""
        await anyio.to_thread.run_sync(_remove_folders, self.folder)

    async def trim(self, limits: StoreLimits) -> None:
        """Let old files go, the least valuable beyond the budget, and what engines wrote after they were given up."""
        await anyio.to_thread.run_sync(_unlink_parts, self.folder, self._begun)
        await self.drop(too_many(self.files.values(), limits.budget, limits.max_age, self._clock.wall()), "age, budget")

    async def _remove(self, gone: Iterable[Kept]) -> None:
        gone = list(gone)
        for kept in gone:
            self.files.pop(kept.id, None)
        await self._unlink(gone)

    async def _unlink(self, gone: Iterable[Kept]) -> None:
        names = [kept.id + suffix for kept in gone for suffix in (ABOUT_SUFFIX, FILE_SUFFIX)]
        if names:
            with anyio.CancelScope(shield=True):
                await anyio.to_thread.run_sync(_unlink_all, self.folder, names)


def _read_folder(folder: Path) -> tuple[bytes, list[Kept], list[int]]:
    """The secret, the good files, and the sizes of what was removed."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder.chmod(0o700)
    secret = _read_secret(folder / _HASH_FILE)
    found, gone = [], []
    ours = [path for path in folder.iterdir() if _OURS.fullmatch(path.name)]
    for path in (path for path in ours if path.suffix == ABOUT_SUFFIX):
        kept = _read_about(path)
        if kept is not None and _size(folder / (kept.id + FILE_SUFFIX)) == kept.size:
            found.append(kept)
        else:
            _unlink(path)
    known = {kept.id + FILE_SUFFIX for kept in found}
    for path in ours:
        if path.suffix != ABOUT_SUFFIX and path.name not in known:
            gone.append(_size(path) or 0)
            _unlink(path)
    return secret, found, gone


def _read_secret(path: Path) -> bytes:
    with contextlib.suppress(FileNotFoundError):
        secret = path.read_bytes()
        if len(secret) == _SECRET_BYTES:
            return secret
    secret = secrets.token_bytes(_SECRET_BYTES)
    path.unlink(missing_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as stream:
        stream.write(secret)
    return secret


def _read_about(path: Path) -> Kept | None:
    document, _ = JsonFile(path, SCHEMA).read()
    if document is None:
        return None
    try:
        kept = kept_of(document)
    except (ValueError, LookupError, TypeError):
        return None
    return kept if path.name == kept.id + ABOUT_SUFFIX else None


def _make_part(path: Path, expected: int) -> None:
    disk = os.statvfs(path.parent)
    free = disk.f_bavail * disk.f_frsize
    if free < expected + _SPARE_BYTES:
        _refuse(f"the disk has {free} bytes left, and {expected} and {_SPARE_BYTES} to spare are wanted")
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))


def _name_it(folder: Path, name: str, kept: Kept) -> tuple[int, str]:
    part = folder / name
    size, stamp = stamp_of(part)
    if size == 0 or kept.size not in (0, size):
        _refuse(f"the engine said {kept.size} bytes, and the file has {size}")
    part.chmod(0o600)
    part.rename(folder / (kept.id + FILE_SUFFIX))
    return size, stamp


def _secure(folder: Path, kept: Kept) -> None:
    descriptor = os.open(folder / (kept.id + FILE_SUFFIX), os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    _write_about(folder, kept)


def _write_about(folder: Path, kept: Kept) -> None:
    JsonFile(folder / (kept.id + ABOUT_SUFFIX), SCHEMA).write(kept.document(), durable=False)


def _remove_folders(folder: Path) -> None:
    with contextlib.suppress(OSError):
        for path in folder.iterdir():
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path, ignore_errors=True)


def _size(path: Path) -> int | None:
    try:
        return path.stat().st_size
    except OSError:
        return None


def _is_as_written(path: Path, kept: Kept) -> bool:
    try:
        return stamp_of(path) == (kept.size, kept.stamp)
    except OSError:
        return False


def _unlink_parts(folder: Path, begun: Container[str]) -> None:
    """``begun`` has a name before its file is there, so that what is listed and not in it is nobody's."""
    with contextlib.suppress(OSError):
        for path in folder.glob(f"*{PART_SUFFIX}"):
            if _OURS.fullmatch(path.name) and path.name not in begun:
                _unlink(path)


def _unlink(path: Path) -> None:
    with contextlib.suppress(OSError):
        path.unlink(missing_ok=True)


def _unlink_all(folder: Path, names: list[str]) -> None:
    for name in names:
        _unlink(folder / name)


def _refuse(why: str) -> NoReturn:
    raise OSError(0, why)


def _why(error: OSError) -> str:
    return str(error.strerror or error)
