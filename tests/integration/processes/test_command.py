"""Short commands: kept apart, bounded, and killed at their limit."""

import time

import anyio
import pytest

from supervisor.processes.child_process import Exit, SpawnFailed, SpawnSpec
from supervisor.processes.command import run_command
from tests.integration.processes.children import GRANDCHILD, IGNORES_SIGTERM, python, wait_gone

_PATH = {"PATH": "/usr/bin:/bin"}


async def test_both_streams_and_the_end_are_kept() -> None:
    """Both outputs are apart, and the exit is raw."""
    output = await run_command(python("import sys; print('out'); print('err', file=sys.stderr); sys.exit(2)"), 20)
    assert (output.exit, output.stdout, output.stderr) == (Exit(2, None), "out\n", "err\n")


async def test_a_command_is_killed_at_its_limit_with_what_it_started() -> None:
    """What was printed until then is kept; the exit is None; nothing is left."""
    output = await run_command(SpawnSpec(("/bin/sh", "-c", "sleep 600 & echo child $!; wait"), _PATH), 1.0)
    assert output.exit is None
    assert wait_gone(int(output.stdout.split()[1]))


async def test_a_grandchild_that_holds_the_pipe_does_not_cost_the_limit() -> None:
    """The command's end is enough."""
    begin = time.monotonic()
    output = await run_command(python(GRANDCHILD.replace("{session}", "{}")), 60)
    assert output.exit == Exit(0, None)
    assert time.monotonic() - begin < 30
    assert wait_gone(int(output.stdout.split()[1]))


async def test_endless_output_is_bounded() -> None:
    """Only the beginning is kept, and the command can still end."""
    output = await run_command(python("print('x' * 5_000_000); print('end')"), 20, max_bytes=1000)
    assert (output.exit, output.stdout) == (Exit(0, None), "x" * 1000)


async def test_a_cancelled_command_is_killed() -> None:
    """Cancellation leaves no process."""
    seen: list[str] = []
    with anyio.move_on_after(0.5) as scope:
        await run_command(python(IGNORES_SIGTERM), 600)
        seen.append("returned")
    assert scope.cancelled_caught
    assert seen == []


async def test_a_command_that_is_not_there_is_typed() -> None:
    """Nothing is started."""
    with pytest.raises(SpawnFailed):
        await run_command(SpawnSpec(("/no/such/program",), {}), 1)
