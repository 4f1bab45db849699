"""Who belongs to a child, and who counts as dead."""

import os
import signal
import subprocess
import sys

import anyio

from supervisor.processes.groups import end_family, living_members, signal_group


def test_a_zombie_is_no_living_member() -> None:
    """Prevents a stop from waiting for a process that is dead and only not reaped yet."""

    async def end() -> tuple[int, ...]:
        with anyio.fail_after(20):
            return await end_family(child.pid, frozenset(), anyio.current_time() + 60)

    child = subprocess.Popen([sys.executable, "-ISc", "pass"], start_new_session=True)
    try:
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert living_members(child.pid) == frozenset()
        assert anyio.run(end) == ()
    finally:
        child.wait()


def test_a_group_that_is_gone_can_be_signalled() -> None:
    """Nothing happens, and nothing is raised."""
    child = subprocess.Popen([sys.executable, "-ISc", "pass"], start_new_session=True)
    child.wait()
    signal_group(child.pid, signal.SIGTERM)


def test_we_are_no_member_of_our_own_group() -> None:
    """Prevents the supervisor from ever counting itself among those to be killed."""
    assert os.getpid() not in {member.pid for member in living_members(os.getpgid(0))}
