"""ConfigWatch on real folders: by looking alone, by the kernel's notices alone, and where one of them fails."""

from __future__ import annotations

import os
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import anyio
import anyio.from_thread
import pytest

from supervisor.config.watch import ConfigWatch, Notices, Sight, WatchTiming, load_watchfiles, look_at
from supervisor.events import ConfigMissing, ConfigWatchLimited, Event, EventBus, InternalError
from tests.fakes.clock import HandClock

PATIENCE = 20.0
QUICK = WatchTiming(poll=0.02, settle=0.01)
# A look comes with a notice, or too late for the test.
NOTICES_ONLY = WatchTiming(poll=3600, settle=0.01)

Change = Callable[[Path], None]


@dataclass
class Eyes:
    """Looks as the watch does, and lets a test wait for looks that began after its change."""

    count: int = 0
    turned: anyio.Event = field(default_factory=anyio.Event)

    def __call__(self, path: Path) -> Sight:
        """Look; called in a worker thread, the first time in the test's own."""
        sight = look_at(path)
        if self.count:
            anyio.from_thread.run_sync(self.seen)
        else:
            self.seen()
        return sight

    def seen(self) -> None:
        """Count, and wake who waits."""
        self.count += 1
        self.turned.set()
        self.turned = anyio.Event()

    async def look_again(self) -> None:
        """Two more looks: the second began after now."""
        wanted = self.count + 2
        with anyio.fail_after(PATIENCE):
            while self.count < wanted:
                await self.turned.wait()


@dataclass
class Watched:
    """A running watch; ``contents`` has what the file held at each call."""

    path: Path
    events: list[Event] = field(default_factory=list)
    contents: list[str] = field(default_factory=list)
    eyes: Eyes = field(default_factory=Eyes)
    fail: bool = False
    changed: anyio.Event = field(default_factory=anyio.Event)

    async def on_change(self) -> None:
        """The reload."""
        self.contents.append(self.path.read_text(encoding="utf-8") if self.path.is_file() else "unreadable")
        self.changed.set()
        self.changed = anyio.Event()
        if self.fail:
            raise RuntimeError("a bug in the reload")

    async def calls(self, *contents: str) -> None:
        """Wait until there were as many calls as ``contents``, and compare."""
        with anyio.fail_after(PATIENCE):
            while len(self.contents) < len(contents):
                await self.changed.wait()
        assert self.contents == list(contents)

    async def says(self, kind: type[Event]) -> Event:
        """Wait for an event."""
        with anyio.fail_after(PATIENCE):
            while not (found := [event for event in self.events if isinstance(event, kind)]):
                await self.eyes.turned.wait()
        return found[0]


@dataclass
class Arming:
    """Counts how often folders were watched anew."""

    inner: Notices
    folders: list[tuple[str, ...]] = field(default_factory=list)
    again: anyio.Event = field(default_factory=anyio.Event)

    def __call__(self, folders: tuple[str, ...], stop: anyio.Event) -> AsyncIterator[Iterable[tuple[object, str]]]:
        """Watch them."""
        self.folders.append(folders)
        self.again.set()
        self.again = anyio.Event()
        return self.inner(folders, stop)

    async def times(self, count: int) -> None:
        """Wait until they were watched so often."""
        with anyio.fail_after(PATIENCE):
            while len(self.folders) < count:
                await self.again.wait()

    async def on(self, *folders: str) -> None:
        """Wait until these are watched."""
        with anyio.fail_after(PATIENCE):
            while self.folders[-1] != folders:
                await self.again.wait()


@asynccontextmanager
async def watching(
    path: Path, timing: WatchTiming = QUICK, load: Callable[[], Notices] | None = None
) -> AsyncIterator[Watched]:
    """A watch that runs."""
    watched = Watched(path)
    bus = EventBus(HandClock())
    bus.listen(lambda record: watched.events.append(record.event))
    watch = ConfigWatch(path, bus, timing, load_notices=load, look=watched.eyes)
    async with anyio.create_task_group() as tasks:
        await tasks.start(watch.run, watched.on_change)
        yield watched
        tasks.cancel_scope.cancel()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A config in a folder of its own."""
    folder = tmp_path / "etc"
    folder.mkdir()
    path = folder / "config.yaml"
    path.write_text("old", encoding="utf-8")
    return path


def write_in_place(path: Path) -> None:
    """``echo new > file``."""
    path.write_text("new", encoding="utf-8")


def write_rename(path: Path) -> None:
    """Most editors: a new file, in the old one's place."""
    fresh = path.with_name(".config.yaml.swp")
    fresh.write_text("new", encoding="utf-8")
    fresh.replace(path)


def keep_backup(path: Path) -> None:
    """Vim with ``backup``: the old file goes aside, a new one is made."""
    path.rename(path.with_name("config.yaml~"))
    path.write_text("new", encoding="utf-8")


def same_size_and_time(path: Path) -> None:
    """What a look at size and time alone would miss, as on file systems with coarse times."""
    before = path.stat()
    path.write_text("new", encoding="utf-8")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


WAYS = [write_in_place, write_rename, keep_backup, same_size_and_time]


@pytest.mark.parametrize("change", WAYS)
async def test_looking_alone_sees_every_way_to_write_a_file(file: Path, change: Change) -> None:
    """Bind mounts and network file systems give no notices; each change calls once."""
    async with watching(file) as watched:
        change(file)
        await watched.calls("new")
        await watched.eyes.look_again()
        assert watched.contents == ["new"]


@pytest.mark.parametrize("change", WAYS)
async def test_notices_alone_see_every_way_to_write_a_file(file: Path, change: Change) -> None:
    """A change is seen without waiting for the next look."""
    pytest.importorskip("watchfiles")
    async with watching(file, NOTICES_ONLY, load_watchfiles) as watched:
        change(file)
        await watched.calls("new")


def put(path: Path, text: str) -> None:
    """Write in place."""
    path.write_text(text, encoding="utf-8")


def replace_folder(path: Path, aside: str, text: str) -> None:
    """Another folder under the same name, with another file."""
    path.parent.rename(path.parent.with_name(aside))
    path.parent.mkdir()
    put(path, text)


def read(path: Path) -> str:
    """The whole text."""
    return path.read_text(encoding="utf-8")


def remove(path: Path) -> None:
    """The file alone."""
    path.unlink()


def folder_to_file(path: Path, text: str) -> None:
    """And back."""
    path.rmdir()
    put(path, text)


def file_to_folder(path: Path) -> None:
    """A folder where the file was."""
    path.unlink()
    path.mkdir()


async def test_a_touch_and_a_rewrite_of_the_same_text_are_no_change(file: Path) -> None:
    """Configuration managers write files anew every half hour."""
    async with watching(file) as watched:
        os.utime(file, (1, 1))
        await watched.eyes.look_again()
        put(file, "old")
        await watched.eyes.look_again()
        write_rename(file)
        await watched.calls("new")


async def test_each_new_content_calls(file: Path) -> None:
    """The watch goes on after a call, also back to what was there before."""
    async with watching(file) as watched:
        for count, text in enumerate(["1", "2", "old"], 1):
            put(file, text)
            await watched.calls(*["1", "2", "old"][:count])


def config_map(folder: Path) -> Path:
    """A folder as Kubernetes mounts a ConfigMap: file → ..data/file, ..data → a folder with a time in its name."""
    (folder / "..2024_1").mkdir(parents=True)
    (folder / "..2024_1" / "config.yaml").write_text("old", encoding="utf-8")
    (folder / "..data").symlink_to("..2024_1")
    (folder / "config.yaml").symlink_to("..data/config.yaml")
    return folder / "config.yaml"


def swap(path: Path, name: str, text: str) -> None:
    """A new version, as the kubelet brings it: the link is replaced, then the old folder removed."""
    folder = path.parent
    before = (folder / "..data").readlink()
    (folder / name).mkdir()
    (folder / name / "config.yaml").write_text(text, encoding="utf-8")
    (folder / "..data_tmp").symlink_to(name)
    (folder / "..data_tmp").replace(folder / "..data")
    shutil.rmtree(folder / before)


async def test_a_config_map_that_is_swapped(tmp_path: Path) -> None:
    """The file's own link never changes; what is behind it does, again and again."""
    path = config_map(tmp_path / "mounted")
    async with watching(path) as watched:
        swap(path, "..2024_2", "second")
        await watched.calls("second")
        swap(path, "..2024_3", "second")
        await watched.eyes.look_again()
        swap(path, "..2024_4", "third")
        await watched.calls("second", "third")


async def test_notices_come_from_a_config_map_as_well(tmp_path: Path) -> None:
    """Also after the folder behind the link was replaced: the watch moves on with it."""
    pytest.importorskip("watchfiles")
    path = config_map(tmp_path / "mounted")
    armed = Arming(load_watchfiles())
    async with watching(path, NOTICES_ONLY, lambda: armed) as watched:
        swap(path, "..2024_2", "second")
        await watched.calls("second")
        await armed.on(str(path.parent), str(path.parent / "..2024_2"))
        swap(path, "..2024_3", "third")
        await watched.calls("second", "third")


async def test_a_file_behind_a_link_is_watched_where_it_lies(file: Path, tmp_path: Path) -> None:
    """Dotfile managers link the config from a repository."""
    pytest.importorskip("watchfiles")
    link = tmp_path / "linked.yaml"
    link.symlink_to(file)
    async with watching(link, NOTICES_ONLY, load_watchfiles) as watched:
        write_in_place(file)
        await watched.calls("new")


@pytest.fixture(params=["looks", "looks and notices"])
def load(request: pytest.FixtureRequest) -> Callable[[], Notices] | None:
    """With and without the kernel's notices."""
    if request.param == "looks":
        return None
    pytest.importorskip("watchfiles")
    return load_watchfiles


async def test_a_file_that_goes_and_comes_back(file: Path, load: Callable[[], Notices] | None) -> None:
    """Gone is no content: nothing is called until other content is there."""
    async with watching(file, load=load) as watched:
        remove(file)
        await watched.eyes.look_again()
        put(file, "old")
        await watched.eyes.look_again()
        remove(file)
        await watched.eyes.look_again()
        assert not watched.contents
        write_in_place(file)
        await watched.calls("new")


async def test_a_folder_that_goes_and_comes_back(file: Path, load: Callable[[], Notices] | None) -> None:
    """A disk that is mounted later, or a folder that was moved in another's place."""
    async with watching(file, load=load) as watched:
        shutil.rmtree(file.parent)
        await watched.eyes.look_again()
        file.parent.mkdir()
        write_in_place(file)
        await watched.calls("new")
        replace_folder(file, "aside", "third")
        await watched.calls("new", "third")
        assert {type(event) for event in watched.events} <= {ConfigMissing}


async def test_a_folder_that_was_replaced_gives_notices_again(file: Path) -> None:
    """The kernel watches a folder, not its name: the watch is set up anew on the one that has the name now."""
    pytest.importorskip("watchfiles")
    armed = Arming(load_watchfiles())
    async with watching(file, load=lambda: armed) as watched:
        replace_folder(file, "aside", "new")
        await watched.calls("new")
        await armed.times(2)


async def test_a_notice_of_the_folder_itself_sets_the_watch_up_anew(file: Path) -> None:
    """Regression: a folder that is made again at once can have its old inode, and looks like the old one."""

    async def play(folders: tuple[str, ...], stop: anyio.Event) -> AsyncIterator[Iterable[tuple[object, str]]]:
        if len(armed.folders) == 1:
            yield [("deleted", folders[0])]
        await stop.wait()

    armed = Arming(play)
    async with watching(file, NOTICES_ONLY, lambda: armed):
        await armed.times(2)


async def test_a_file_that_is_no_file_any_more_calls_once(file: Path) -> None:
    """Its owner must hear why the new config isn't taken."""
    async with watching(file) as watched:
        file_to_folder(file)
        await watched.calls("unreadable")
        await watched.eyes.look_again()
        folder_to_file(file, "old")
        await watched.calls("unreadable", "old")


async def test_a_pipe_is_never_read(tmp_path: Path) -> None:
    """A config can come from a process substitution; a second read would wait for ever."""
    path = tmp_path / "pipe"
    os.mkfifo(path)
    async with watching(path) as watched:
        await watched.eyes.look_again()
    assert not watched.contents


async def test_an_exception_of_the_reload_is_told_and_the_watch_goes_on(file: Path) -> None:
    """A bug in a reload must not leave the daemon blind."""
    async with watching(file) as watched:
        watched.fail = True
        put(file, "1")
        await watched.calls("1")
        event = await watched.says(InternalError)
        assert isinstance(event, InternalError)
        assert "a bug in the reload" in event.traceback
        put(file, "2")
        await watched.calls("1", "2")


async def test_without_watchfiles_looking_goes_on_and_says_so(file: Path) -> None:
    """It is an ordinary dependency, but not built for every machine."""

    def missing() -> Notices:
        raise ImportError("No module named 'watchfiles'")

    async with watching(file, load=missing) as watched:
        event = await watched.says(ConfigWatchLimited)
        assert isinstance(event, ConfigWatchLimited)
        assert "watchfiles" in event.reason
        write_rename(file)
        await watched.calls("new")


async def test_without_kernel_watches_looking_goes_on_and_says_so_once(file: Path) -> None:
    """fs.inotify.max_user_watches is used up on many desktops."""

    def full(folders: tuple[str, ...], stop: anyio.Event) -> AsyncIterator[Iterable[tuple[object, str]]]:
        raise OSError(28, "No space left on device")

    async with watching(file, load=lambda: full) as watched:
        for count, text in enumerate("12", 1):
            replace_folder(file, f"aside{count}", text)
            await watched.calls(*"12"[:count])
        assert [type(event) for event in watched.events] == [ConfigWatchLimited]


async def test_content_is_taken_when_it_has_settled(file: Path) -> None:
    """Looks between the pieces of a write, played in order: only the whole text calls, once."""
    played: Iterator[bytes | None] = iter([b"old", b"old", b"", b"half", b"whole", b"whole"])
    called: list[bytes] = []
    last = b"?"
    done = anyio.Event()

    def look(_: Path) -> Sight:
        nonlocal last
        last = next(played, last) or b""
        return Sight(last, ())

    async def on_change() -> None:
        called.append(last)
        done.set()

    watch = ConfigWatch(file, EventBus(HandClock()), WatchTiming(0.001, 0.001), look=look)
    with anyio.fail_after(PATIENCE):
        async with anyio.create_task_group() as tasks:
            await tasks.start(watch.run, on_change)
            await done.wait()
            tasks.cancel_scope.cancel()
    assert called == [b"whole"]


async def test_a_file_that_never_settles_is_taken_all_the_same(file: Path) -> None:
    """Something that writes all the time must not keep its owner's change from being seen."""
    looks = 0
    called = anyio.Event()

    def look(_: Path) -> Sight:
        nonlocal looks
        looks += 1
        return Sight(str(looks).encode(), ())

    async def on_change() -> None:
        called.set()

    watch = ConfigWatch(file, EventBus(HandClock()), WatchTiming(0.001, 0.001, rounds=3), look=look)
    with anyio.fail_after(PATIENCE):
        async with anyio.create_task_group() as tasks:
            await tasks.start(watch.run, on_change)
            await called.wait()
            tasks.cancel_scope.cancel()
    assert looks >= 4


async def test_the_watch_ends_at_once(file: Path) -> None:
    """Regression: the thread that waits for notices can't be cancelled, and held a stop up for its whole time-out."""
    pytest.importorskip("watchfiles")
    with anyio.fail_after(5):  # its time-out is a minute
        async with watching(file, NOTICES_ONLY, load_watchfiles):
            pass


async def test_a_change_before_the_start_is_seen(file: Path) -> None:
    """What counts as old is what the file held when the watch was built, next to the reading of the config."""
    called: list[str] = []
    done = anyio.Event()

    async def on_change() -> None:
        called.append(read(file))
        done.set()

    watch = ConfigWatch(file, EventBus(HandClock()), QUICK)
    write_in_place(file)
    on: Callable[[], Awaitable[None]] = on_change
    with anyio.fail_after(PATIENCE):
        async with anyio.create_task_group() as tasks:
            await tasks.start(watch.run, on)
            await done.wait()
            tasks.cancel_scope.cancel()
    assert called == ["new"]


async def test_a_file_that_stays_away_is_told_once(file: Path) -> None:
    """Once nothing said so, and the owner learnt of it at the next start, which failed; each loss is told again."""
    async with watching(file) as watched:
        for losses in (1, 2):
            remove(file)
            with anyio.fail_after(PATIENCE):
                while len(watched.events) < losses:
                    await watched.eyes.look_again()
            await watched.eyes.look_again()
            assert watched.events == [ConfigMissing(str(file))] * losses
            put(file, f"back {losses}")
            await watched.calls(*(f"back {number + 1}" for number in range(losses)))
