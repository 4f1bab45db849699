"""Notices that the config file has new content, however it got there.

Two eyes on one question, "what does the file hold now?": notices of the kernel for the folder (a file that an editor
replaces is another file, so the folder is watched), and a look every few seconds, because notices don't come through
bind mounts from another machine, network file systems or a folder that was itself replaced. Only content counts: a
touch is no change, and a symlink that is swapped (Kubernetes ConfigMaps) is one if the text behind it differs.
"""

from __future__ import annotations

import hashlib
import logging
import math
import stat
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import anyio
import anyio.to_thread
from anyio.abc import TaskStatus

from supervisor.config.mounts import MOUNTS, tells_of_every_change
from supervisor.events import ConfigMissing, ConfigWatchLimited, EventBus, InternalError

# More than a config may hold, so that growing beyond that is a change as well.
_MAX_BYTES = 4 * 2**20 + 1
# How often watchfiles looks at its stop event and its queue: each look wakes a thread of this process.
_STEP_MS = 1000
# Where the kernel tells of every change, looking by oneself is for what nobody thought of.
_RARER = 20
_RETRY_SECONDS = 60.0

Folder = tuple[str, int, int]
"""A folder's path, device and inode: a folder that was replaced is another one."""

Notices = Callable[[tuple[str, ...], anyio.Event], AsyncIterator[Iterable[tuple[object, str]]]]
"""Yields (what, path) for what happens in these folders, until the event is set."""


@dataclass(frozen=True, slots=True)
class WatchTiming:
    """Seconds between looks.

    Attributes:
        poll: without a notice; twenty times that where the kernel tells of every change.
        settle: new content must stay the same for this long: a file is written in pieces.
        rounds: how often that is waited for at most, while the content goes on changing; and for a file that is gone.
    """

    poll: float = 3.0
    settle: float = 0.3
    rounds: int = 10


@dataclass(frozen=True, slots=True)
class Sight:
    """What one look found.

    Attributes:
        content: stands for the file's content, or for why it can't be read; None: it isn't there.
        folders: the file's folder, and that of the file that it links to; those that are there.
        told: the kernel's notices tell of every change of it.
    """

    content: bytes | None
    folders: tuple[Folder, ...]
    told: bool = False


class ConfigWatch:
    """Watches one config file. What it holds when this is built is the old content."""

    def __init__(
        self,
        path: Path,
        bus: EventBus,
        timing: WatchTiming | None = None,
        *,
        load_notices: Callable[[], Notices] | None = None,
        look: Callable[[Path], Sight] | None = None,
    ) -> None:
        """Read the file once.

        ``load_notices``: ``load_watchfiles``, unless only looking is wanted; it is called in a thread.
        """
        self._path = path.absolute()
        self._bus = bus
        self._timing = timing or WatchTiming()
        self._load = load_notices
        self._look_at = look or look_at
        sight = self._look_at(self._path)
        self._content = sight.content
        self._folders = sight.folders
        self._noticed = anyio.Event()
        self._moved = anyio.Event()
        self._limits: set[str] = set()
        self._missing = False
        self._told = sight.told
        self._watching = False

    async def run(
        self, on_change: Callable[[], Awaitable[None]], *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED
    ) -> None:
        """Call ``on_change`` once for each new content, one call at a time, until cancelled.

        A file that is gone is told once, and waited for: it calls when it comes back with other content. One that is
        there and can't be read calls as well, so that its owner hears why. An exception of ``on_change`` becomes an
        event.
        """
        async with anyio.create_task_group() as tasks:
            try:
                if self._load is not None:
                    await tasks.start(self._take_notices, self._load)
                task_status.started()
                while True:
                    await self._check(on_change)
                    with anyio.move_on_after(self._patience()):
                        await self._noticed.wait()
                    self._noticed = anyio.Event()
            finally:
                self._moved.set()  # the thread that waits for notices can't be cancelled

    def _patience(self) -> float:
        return self._timing.poll * (_RARER if self._watching and self._told else 1)

    async def _check(self, on_change: Callable[[], Awaitable[None]]) -> None:
        content = await self._see()
        if content is None and not self._missing:
            content = await self._see_later()
        self._missing = content is None
        for _ in range(self._timing.rounds):
            if content in (None, self._content):
                return
            await anyio.sleep(self._timing.settle)
            before, content = content, await self._see()
            if content == before:
                break
        if content in (None, self._content):
            return
        self._content = content
        try:
            await on_change()
        except Exception as error:  # noqa: BLE001  a reload that fails must not end the watch
            self._bus.publish(InternalError("reload of the config", repr(error), traceback.format_exc()))

    async def _see_later(self) -> bytes | None:
        """Many programs replace a file by removing it first: only what stays away for a while is told to be gone."""
        await anyio.sleep(self._timing.settle * self._timing.rounds)
        content = await self._see()
        if content is None:
            self._bus.publish(ConfigMissing(str(self._path)))
        return content

    async def _see(self) -> bytes | None:
        """Look in a thread: a network file system may hang."""
        sight = await anyio.to_thread.run_sync(self._look_at, self._path, abandon_on_cancel=True)
        self._told = sight.told
        if sight.folders != self._folders:
            self._folders = sight.folders
            self._moved.set()
        return sight.content

    async def _take_notices(self, load: Callable[[], Notices], *, task_status: TaskStatus[None]) -> None:
        """Watch the folders, and watch anew when they are others; without notices, looking goes on alone."""
        try:
            notices = await anyio.to_thread.run_sync(load)
        except ImportError as error:
            self._say_limit(f"watchfiles can't be loaded: {error}")
            task_status.started()
            return
        task_status.started()
        while True:
            self._moved = anyio.Event()
            patience = math.inf
            try:
                await self._pass_notices_on(notices)
            except FileNotFoundError:
                patience = self._timing.poll
            except Exception as error:  # noqa: BLE001  watchfiles raises several; none may end the watch
                self._say_limit(f"the folder can't be watched: {error}")
                patience = _RETRY_SECONDS
            with anyio.move_on_after(patience):
                await self._moved.wait()

    async def _pass_notices_on(self, notices: Notices) -> None:
        """Runs until the folders are others, or there are none."""
        names = tuple(name for name, _, _ in self._folders)
        if not names:
            return
        self._watching = True
        self._noticed.set()  # a look comes after the folders are watched, for what happened before
        try:
            async for changes in notices(names, self._moved):
                self._noticed.set()
                if any(name in names for _, name in changes):
                    self._moved.set()  # the folder itself came or went: the kernel's watch may be on the old one
        finally:
            self._watching = False
            self._noticed.set()  # and a look, now that looking is all there is

    def _say_limit(self, reason: str) -> None:
        if reason not in self._limits:
            self._limits.add(reason)
            self._bus.publish(ConfigWatchLimited(str(self._path), reason, self._timing.poll))


def look_at(path: Path) -> Sight:
    """What the file holds now. Never raises; blocks as long as the file system does."""
    target = _target(path)
    places = dict.fromkeys((path.parent, target.parent))
    folders = tuple(folder for place in places if (folder := _folder(place)) is not None)
    told = tells_of_every_change((device for _, device, _ in folders), (str(path), str(target)), _mounts())
    return Sight(_content(path), folders, told)


def _mounts() -> str:
    try:
        return Path(MOUNTS).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _content(path: Path) -> bytes | None:
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            return b"not a file"  # reading a pipe would take its content away
        with path.open("rb") as stream:
            return hashlib.blake2b(stream.read(_MAX_BYTES), digest_size=32).digest()
    except PermissionError:
        return b"not readable"
    except (OSError, ValueError):
        return None


def _target(path: Path) -> Path:
    try:
        return path.resolve()
    except (OSError, RuntimeError):
        return path  # links that lead in a circle


def _folder(path: Path) -> Folder | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return str(path), status.st_dev, status.st_ino


def load_watchfiles() -> Notices:
    """The kernel's notices, by watchfiles.

    Raises:
        ImportError: it isn't installed, or not for this machine.
    """
    from watchfiles import awatch  # noqa: PLC0415  nothing heavy before the daemon listens

    # It logs a line for every batch of changes, also of other files in the folder.
    logging.getLogger("watchfiles").setLevel(logging.WARNING)

    def notices(folders: tuple[str, ...], stop: anyio.Event) -> AsyncIterator[Iterable[tuple[object, str]]]:
        return awatch(
            *folders,
            watch_filter=None,
            step=_STEP_MS,
            stop_event=stop,
            rust_timeout=60_000,
            force_polling=False,
            recursive=False,
            ignore_permission_denied=True,
        )

    return notices
