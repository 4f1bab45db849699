"""Engines that a killed supervisor left behind: found by what they can't share with a stranger, and ended.

A number alone proves nothing, since the kernel gives it away again. A process is a leftover of a launch when it has the
number *and* the start time that were written down, or carries the launch's mark in its environment, or hangs on one
that does: as its descendant, or in the session that it began. All of it counts only for the same boot, the same
namespace of numbers and the same state folder.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import anyio
import anyio.to_thread

from supervisor.events import EventBus
from supervisor.processes.events import LeftoversFound, OrphanReaped, OrphanRemains
from supervisor.processes.groups import KILL_SECONDS
from supervisor.processes.launch_records import Here, LaunchRecord, LaunchRecords
from supervisor.processes.proc_table import ProcessRow, Table, bears, read_table, started_at

_FIRST_PAUSE_SECONDS = 0.005
_LAST_PAUSE_SECONDS = 0.1
BY_NUMBER = "its number and start time were written down"
BY_MARK = "it carries the launch's mark"
BY_KINSHIP = "it was started by the launch"


@dataclass(frozen=True, slots=True)
class Orphan:
    """A leftover of a launch, and how it is known to be one."""

    record: LaunchRecord
    row: ProcessRow
    why: str


def find_orphans(records: Iterable[LaunchRecord], here: Here, table: Table, own: int) -> tuple[Orphan, ...]:
    """Living leftovers of the launches, each process once.

    Args:
        records: what was written down; those of another boot, namespace or folder say nothing about this table.
        here: where the table was read.
        table: every process.
        own: the supervisor's number; it and what it descends from are never leftovers.
    """
    spared = _line_of(own, table)
    found: dict[int, Orphan] = {}
    # A launch's own record first: it knows the model, which the record of the whole run doesn't.
    for record in sorted(records, key=lambda record: record.pid is None):
        if record.here == here:
            for orphan in _of_record(record, [row for row in table if row.pid not in spared]):
                found.setdefault(orphan.row.pid, orphan)
    return tuple(found.values())


def _of_record(record: LaunchRecord, rows: list[ProcessRow]) -> list[Orphan]:
    leader = next((row for row in rows if row.pid == record.pid and row.started == record.started), None)
    known: dict[int, str] = {}
    for row in rows:
        if row is leader:
            known[row.pid] = BY_NUMBER
        elif bears(row, record.mark):
            known[row.pid] = BY_MARK
    # A session's number is not given away while anyone is in it, so one sure member makes the session ours.
    sessions = set(known)
    if leader is not None or any(row.session == record.pid for row in rows if row.pid in known):
        sessions.add(record.pid or -1)
    while True:
        kin = [row for row in rows if row.pid not in known and (row.parent in known or row.session in sessions)]
        if not kin:
            break
        known |= dict.fromkeys((row.pid for row in kin), BY_KINSHIP)
        sessions |= {row.pid for row in kin}
    return [Orphan(record, row, known[row.pid]) for row in rows if row.pid in known and not row.dead]


def _line_of(own: int, table: Table) -> frozenset[int]:
    """A process and all that it descends from."""
    parents = {row.pid: row.parent for row in table}
    line = {own}
    while (parent := parents.get(own, 0)) > 0 and parent not in line:
        line.add(parent)
        own = parent
    return frozenset(line)


class OrphanSweep:
    """Ends leftovers once, at the start, while the state folder is locked and nothing has been launched yet.

    Attributes:
        done: set when launches may begin.
    """

    def __init__(
        self, records: LaunchRecords, grace: float, bus: EventBus, look: Callable[[], Table] = read_table
    ) -> None:
        """``grace``: seconds between SIGTERM and SIGKILL."""
        self.done = anyio.Event()
        self._records = records
        self._grace = grace
        self._bus = bus
        self._look = look

    async def run(self) -> None:
        """End what was left; also when that fails, launches may begin."""
        try:
            records = await self._records.left()
            mine = [record for record in records if record.here == self._records.here]
            if mine:
                remaining = await self._end(mine)
                gone = [record for record in records if record not in remaining]
            else:
                gone = records
            await self._records.drop(gone)
        finally:
            await self._records.begin_run()
            self.done.set()

    async def _end(self, records: list[LaunchRecord]) -> set[LaunchRecord]:
        """SIGTERM, grace, SIGKILL to every leftover; the records of those that even that did not end."""
        began = anyio.current_time()
        orphans = await self._find(records)
        if not orphans:
            return set()
        named = {orphan.record.launch for orphan in orphans if orphan.record.pid is not None}
        self._bus.publish(LeftoversFound(tuple(sorted(named)), tuple(orphan.row.pid for orphan in orphans)))
        _signal_all(orphans, signal.SIGTERM)
        _signal_all(orphans, signal.SIGCONT)  # a stopped process would not see it
        seen = {orphan.row.pid: orphan for orphan in orphans}
        left = await self._until_gone(records, seen, began + self._grace, None)
        killed = frozenset(orphan.row.pid for orphan in left)
        if left:
            left = await self._until_gone(records, seen, anyio.current_time() + KILL_SECONDS, signal.SIGKILL)
        remaining = {orphan.row.pid for orphan in left}
        for pid, orphan in seen.items():
            record, row = orphan.record, orphan.row
            if pid in remaining:
                self._bus.publish(OrphanRemains(record.launch, record.model, pid, row.name))
            else:
                forced = pid in killed
                self._bus.publish(OrphanReaped(record.launch, record.model, pid, row.name, orphan.why, forced=forced))
        return {orphan.record for orphan in left}

    async def _until_gone(
        self, records: list[LaunchRecord], seen: dict[int, Orphan], deadline: float, number: signal.Signals | None
    ) -> tuple[Orphan, ...]:
        """Look again and again, and signal each time, until nothing is left; what is left at the deadline."""
        pause = _FIRST_PAUSE_SECONDS
        while left := await self._find(records):
            for orphan in left:
                seen.setdefault(orphan.row.pid, orphan)
            if number is not None:
                _signal_all(left, number)
            if anyio.current_time() >= deadline:
                break
            # They are not our children, so nothing tells when they are gone.
            await anyio.sleep(pause)
            pause = min(2 * pause, _LAST_PAUSE_SECONDS)
        return left

    async def _find(self, records: list[LaunchRecord]) -> tuple[Orphan, ...]:
        table = await anyio.to_thread.run_sync(self._look)
        return find_orphans(records, self._records.here, table, os.getpid())


def _signal_all(orphans: Iterable[Orphan], number: signal.Signals) -> None:
    for orphan in orphans:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            _signal(orphan.row, number)


def _signal(row: ProcessRow, number: signal.Signals) -> None:
    """Signal this very process: one that got its number meanwhile is not hit."""
    if not hasattr(os, "pidfd_open"):
        if started_at(row.pid) == row.started:
            os.kill(row.pid, number)
        return
    fd = os.pidfd_open(row.pid)
    try:
        if started_at(row.pid) == row.started:
            signal.pidfd_send_signal(fd, number)
    finally:
        os.close(fd)
