"""Everything that a child started: found by group, session and descent, and signalled as one."""

from __future__ import annotations

import contextlib
import os
import signal
from typing import TYPE_CHECKING, TypeAlias

import anyio
import anyio.to_thread

from supervisor.processes.proc_table import pids_with_mark

if TYPE_CHECKING:
    import psutil

Family: TypeAlias = "frozenset[psutil.Process]"

# SIGKILL works at once, unless a driver holds the process in the kernel: then nobody can end it.
KILL_SECONDS = 5.0
_FIRST_PAUSE_SECONDS = 0.001
_LAST_PAUSE_SECONDS = 0.1


def signal_group(leader: int, number: signal.Signals) -> None:
    """Send a signal to the process group of ``leader``; nothing happens when it is gone.

    To be called only while the leader has not been reaped: until then its number can't be given away.
    """
    # PermissionError: macOS answers so for a group of zombies.
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, number)


def living_members(leader: int) -> Family:
    """Living processes of the group or session that ``leader`` began, and its descendants; zombies are dead.

    A descendant that began a session of its own is found only while ``leader`` lives. The answers know when their
    process began, so a later ``kill`` can't hit another one that got its number. Reads the whole process table: some
    milliseconds.
    """
    import psutil  # noqa: PLC0415  not needed before the first stop

    found = {pid for pid in psutil.pids() if _belongs(pid, leader)}
    members: set[psutil.Process] = set()
    for pid in found:
        with contextlib.suppress(psutil.Error):
            members.add(psutil.Process(pid))
    with contextlib.suppress(psutil.Error):
        members.update(psutil.Process(leader).children(recursive=True))
    return frozenset(member for member in _still_living(members) if member.pid != os.getpid())


async def end_family(leader: int, family: Family, deadline: float, mark: str | None = None) -> tuple[int, ...]:
    """SIGKILL to whatever lives of the group of ``leader`` and of ``family``, until nothing does.

    Args:
        leader: a process that has ended, or was sent SIGKILL.
        family: more processes, found while the leader lived.
        deadline: on ``anyio.current_time``; then those that still live are given up.
        mark: of the launch; whoever carries it is ended too, in whatever session it hid.

    Returns:
        Process ids of those given up.
    """
    pause = _FIRST_PAUSE_SECONDS
    while True:
        left = living_members(leader) | _still_living(family)
        if not left and mark is not None:
            left = family = await _bearers(mark, deadline)
        if not left:
            break
        _kill_all(left)
        if anyio.current_time() >= deadline:
            break
        # They are not our children, so nothing tells when they are gone.
        await anyio.sleep(pause)
        pause = min(2 * pause, _LAST_PAUSE_SECONDS)
    return tuple(sorted(member.pid for member in left))


async def _bearers(mark: str, deadline: float) -> Family:
    """Living processes with the mark; none when they can't be looked for in time."""
    import psutil  # noqa: PLC0415  see living_members

    pids: list[tuple[int, ...]] = []
    # A process that hangs in the kernel can hold up whoever reads its environment.
    with anyio.move_on_after(max(_LAST_PAUSE_SECONDS, deadline - anyio.current_time())):
        pids.append(await anyio.to_thread.run_sync(pids_with_mark, mark, abandon_on_cancel=True))
    found: set[psutil.Process] = set()
    for pid in pids[0] if pids else ():
        with contextlib.suppress(psutil.Error):
            found.add(psutil.Process(pid))
    return _still_living(found) - {member for member in found if member.pid == os.getpid()}


def _still_living(members: Family | set[psutil.Process]) -> Family:
    return frozenset(member for member in members if _lives(member))


def _kill_all(members: Family) -> None:
    import psutil  # noqa: PLC0415  see living_members

    for member in members:
        with contextlib.suppress(psutil.Error):
            member.kill()


def _belongs(pid: int, leader: int) -> bool:
    try:
        return leader in {os.getpgid(pid), os.getsid(pid)}
    except OSError:
        return False


def _lives(member: psutil.Process) -> bool:
    import psutil  # noqa: PLC0415  see living_members

    try:
        return member.is_running() and member.status() not in {psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD}
    except psutil.Error:
        return False
