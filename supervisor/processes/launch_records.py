"""What is written down of each launch, so that the next supervisor knows what a killed one left behind.

One small file for each launch, written before the process is started and removed when all of it is gone, and one for
the whole run, whose mark every child carries. They are not flushed to the disk: they say something about this boot
only, and while the machine runs, what was written is there also after SIGKILL.
"""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Any

import anyio.to_thread

from supervisor.events import EventBus, StateFileUnusable
from supervisor.processes.events import LaunchRecordFailed
from supervisor.processes.proc_table import started_at
from supervisor.storage import JsonFile

FOLDER_NAME = "launches"
_SCHEMA = 1


@dataclass(frozen=True, slots=True)
class Here:
    """Where process numbers mean the same.

    Attributes:
        boot: the kernel's id of this boot; empty where it has none: there, start times are unique over boots.
        namespace: the namespace of process numbers; empty where there are none.
        folder: the state folder itself, so that a copy of it claims nothing.
    """

    boot: str
    namespace: str
    folder: str

    @classmethod
    def of(cls, folder: Path | None, root: Path = Path("/")) -> Here:
        """This machine, and a folder."""
        boot = namespace = where = ""
        with contextlib.suppress(OSError):
            boot = (root / "proc/sys/kernel/random/boot_id").read_text().strip()
        with contextlib.suppress(OSError):
            namespace = str((root / "proc/self/ns/pid").readlink())
        if folder is not None:
            with contextlib.suppress(OSError):
                found = folder.stat()
                where = f"{found.st_dev}:{found.st_ino}"
        return cls(boot, namespace, where)


@dataclass(frozen=True, slots=True)
class LaunchRecord:
    """One launch, or a whole run.

    Attributes:
        launch: its id, which names the file.
        mark: what it and all that it starts carry in the environment; a run's is the beginning of its launches'.
        pid, started: of the process that was started, None before it was and for a run; see ``ProcessRow``.
        socket: its address, if it is a file.
    """

    launch: str
    model: str
    mark: str
    here: Here
    pid: int | None = None
    started: int | None = None
    socket: str | None = None


class LaunchRecords:
    """The folder of records; without one, marks are given out and nothing is written.

    A record that can't be written is told of and stops no launch: on a full disk engines still start.
    """

    def __init__(self, state_dir: Path | None = None, bus: EventBus | None = None) -> None:
        self.run_mark = secrets.token_hex(8)
        self.here = Here.of(state_dir)
        self._folder = None if state_dir is None else state_dir / FOLDER_NAME
        self._bus = bus
        self._open: dict[str, LaunchRecord] = {}
        self._run = LaunchRecord(f"run-{self.run_mark}", "", self.run_mark, self.here)

    async def begin_run(self) -> None:
        """Write down that this run began."""
        await self._in_thread(self._write, self._run)

    def end_run(self) -> None:
        """Forget the run, unless something of it is left."""
        if not self._open:
            with contextlib.suppress(OSError):
                self._remove(self._run)

    async def open(self, launch: str, model: str, socket: Path | None) -> str:
        """Write a launch down before it is started; its mark."""
        mark = f"{self.run_mark}.{secrets.token_hex(8)}"
        record = LaunchRecord(launch, model, mark, self.here, socket=None if socket is None else str(socket))
        self._open[launch] = record
        await self._in_thread(self._write, record)
        return mark

    async def started(self, launch: str, pid: int) -> None:
        """Write down which process it became; to be called before that one can be reaped."""
        record = self._open[launch] = replace(self._open[launch], pid=pid, started=started_at(pid))
        await self._in_thread(self._write, record)

    async def close(self, launch: str) -> None:
        """All of it is gone."""
        record = self._open.pop(launch, None)
        if record is not None:
            await self._in_thread(self._remove, record)

    async def left(self) -> list[LaunchRecord]:
        """What earlier runs wrote down and did not take back; an unusable file is set aside, and told."""
        records, unusable = await anyio.to_thread.run_sync(self._read_all)
        for path, reason in unusable:
            self._publish(StateFileUnusable(str(path), reason))
        return records

    async def drop(self, records: Iterable[LaunchRecord]) -> None:
        """Nothing is left of these; their sockets go too."""
        await anyio.to_thread.run_sync(self._drop, tuple(records))

    async def _in_thread(self, work: Any, record: LaunchRecord) -> None:
        if self._folder is None:
            return
        try:
            await anyio.to_thread.run_sync(partial(work, record))
        except OSError as error:
            path = str(self._path(record))
            self._publish(LaunchRecordFailed(record.launch, path, error.strerror or str(error)))

    def _publish(self, event: Any) -> None:
        if self._bus is not None:
            self._bus.publish(event)

    def _path(self, record: LaunchRecord) -> Path:
        assert self._folder is not None
        return self._folder / f"{record.launch}.json"

    def _write(self, record: LaunchRecord) -> None:
        path = self._path(record)
        path.parent.mkdir(mode=0o700, exist_ok=True)
        JsonFile(path, _SCHEMA).write(asdict(record), durable=False)

    def _remove(self, record: LaunchRecord) -> None:
        if self._folder is not None:
            self._path(record).unlink(missing_ok=True)

    def _drop(self, records: tuple[LaunchRecord, ...]) -> None:
        for record in records:
            with contextlib.suppress(OSError):
                self._remove(record)
                if record.socket is not None and record.here == self.here:
                    Path(record.socket).unlink(missing_ok=True)

    def _read_all(self) -> tuple[list[LaunchRecord], list[tuple[Path, str]]]:
        records: list[LaunchRecord] = []
        unusable: list[tuple[Path, str]] = []
        for path in sorted(self._folder.glob("*.json")) if self._folder is not None else ():
            file = JsonFile(path, _SCHEMA)
            document, reason = file.read()
            record = None if document is None else _record(document)
            if record is not None and record.launch == path.stem:
                records.append(record)
            elif document is not None or reason is not None:
                file.set_aside()
                unusable.append((path, reason or "it holds no launch"))
        for path in self._folder.glob(".*.json.*") if self._folder is not None else ():
            with contextlib.suppress(OSError):
                path.unlink()  # a write that was cut off
        return records, unusable


_TEXTS = ("launch", "model", "mark")
_NUMBERS = ("pid", "started")
# A short mark could be anybody's.
_SHORTEST_MARK = 16


def _record(document: dict[str, Any]) -> LaunchRecord | None:
    """The record in a document; None when anything in it is not as it was written."""
    place, socket = document.get("here"), document.get("socket")
    texts, numbers = ({name: document.get(name) for name in names} for names in (_TEXTS, _NUMBERS))
    if not isinstance(place, dict) or not isinstance(socket, str | None):
        return None
    where = {field.name: place.get(field.name) for field in fields(Here)}
    if not all(isinstance(text, str) for text in (*texts.values(), *where.values())):
        return None
    if not all(number is None or (type(number) is int and number > 0) for number in numbers.values()):
        return None
    if len(str(texts["mark"])) < _SHORTEST_MARK:
        return None
    values: dict[str, Any] = {**texts, **numbers, "socket": socket}
    return LaunchRecord(here=Here(**{name: str(text) for name, text in where.items()}), **values)
