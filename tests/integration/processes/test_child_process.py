"""Real children: how they end, how they are stopped, and that nothing is left."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import anyio
import anyio.to_thread
import pytest

from supervisor.processes.child_process import Exit, SpawnFailed, SpawnSpec, spawn
from supervisor.processes.opening import death_signal_prefix
from tests.integration.processes.children import GRANDCHILD, IGNORES_SIGTERM, SLEEPS, Lines, python, started, wait_gone

has_setpriv = pytest.mark.skipif(not death_signal_prefix(), reason="no setpriv of util-linux here")


async def test_an_exit_code_is_kept_with_the_last_output() -> None:
    """When the end is known, both streams' output is there, in order, the unfinished last line too."""
    code = "import os; os.write(1, b'out\\n'); os.write(2, b'err\\n'); os.write(1, b'last words'); os._exit(7)"
    lines = Lines()
    async with started(python(code), lines.take) as child:
        assert await child.wait() == Exit(7, None)
    assert child.exit == Exit(7, None)
    assert child.exited.is_set()
    assert lines.seen == list(child.tail.lines(9)) == ["out", "err", "last words"]


async def test_a_signal_is_told_from_a_shells_code() -> None:
    """Death by SIGILL is a signal; a shell that says 128 + 4 ended with a code."""
    async with started(python("import os, signal; os.kill(os.getpid(), signal.SIGILL)")) as child:
        assert await child.wait() == Exit(None, signal.SIGILL)
    async with started(SpawnSpec(("/bin/sh", "-c", "exit 132"), {})) as child:
        assert await child.wait() == Exit(132, None)


async def test_a_child_leads_a_session_of_its_own_and_reads_nothing() -> None:
    """Terminal signals don't reach it, and reading its input ends at once."""
    code = "import os, sys; print(os.getsid(0) == os.getpgid(0) == os.getpid(), repr(sys.stdin.read()))"
    async with started(python(code)) as child:
        await child.wait()
    assert child.tail.lines(1) == ("True ''",)


async def test_the_recorded_command_is_what_was_asked_for() -> None:
    """Evidence shows the engine's command, not the words that set the parent-death signal."""
    spec = python("import sys; print(sys.argv)")
    async with started(spec) as child:
        await child.wait()
    assert child.argv == spec.argv
    assert child.tail.lines(1) == ("['-c']",)


async def test_stop_ends_a_well_behaved_child_within_the_grace() -> None:
    """SIGTERM is enough, and its exit says so."""
    lines = Lines()
    async with started(python(SLEEPS), lines.take) as child:
        await lines.wait_for("up")
        assert await child.stop(30) == Exit(None, signal.SIGTERM)
        assert await child.stop(30) == Exit(None, signal.SIGTERM)


async def test_stop_kills_a_child_that_ignores_sigterm() -> None:
    """After the grace comes SIGKILL."""
    lines = Lines()
    async with started(python(IGNORES_SIGTERM), lines.take) as child:
        await lines.wait_for("up")
        assert await child.stop(0.05) == Exit(None, signal.SIGKILL)


async def test_stop_reaches_a_child_that_is_stopped() -> None:
    """Prevents a SIGSTOPped engine from costing the whole grace: it is continued to see its SIGTERM."""
    lines = Lines()
    code = "import signal, sys, time; signal.signal(signal.SIGTERM, lambda *_: sys.exit(5))\n" + SLEEPS
    async with started(python(code), lines.take) as child:
        await lines.wait_for("up")
        os.kill(child.pid, signal.SIGSTOP)
        assert await child.stop(30) == Exit(5, None)


async def test_stop_works_without_run() -> None:
    """A process whose start was given up before anyone read its output is ended all the same."""
    child = await spawn(python(SLEEPS))
    assert await child.stop(0) == Exit(None, signal.SIGKILL)
    assert await child.wait() == Exit(None, signal.SIGKILL)
    await child.run()


async def test_a_cancelled_stop_kills_all_the_same() -> None:
    """The caller's cancellation ends the grace, not the killing."""
    lines = Lines()
    async with started(python(IGNORES_SIGTERM), lines.take) as child:
        await lines.wait_for("up")
        with anyio.move_on_after(0.05) as scope:
            await child.stop(600)
        assert scope.cancelled_caught
        assert child.exit == Exit(None, signal.SIGKILL)


async def test_a_child_goes_with_its_run() -> None:
    """Cancelling ``run`` kills: no process outlives the task that reads it."""
    lines = Lines()
    async with started(python(IGNORES_SIGTERM), lines.take) as child:
        await lines.wait_for("up")
    assert child.exit == Exit(None, signal.SIGKILL)


@pytest.mark.parametrize("session", ["{}", "{'process_group': 0}"])
async def test_a_grandchild_that_holds_the_pipe_does_not_hide_the_end(session: str) -> None:
    """The child's end is seen although its output never ends; the grandchild is ended too, by group or by session."""
    lines = Lines()
    code = GRANDCHILD.replace("{session}", session) + "raise SystemExit(3)"
    async with started(python(code), lines.take) as child:
        with anyio.fail_after(20):
            assert await child.wait() == Exit(3, None)
        grandchild = int(lines.seen[0].split()[1])
        assert wait_gone(grandchild)
    assert child.survivors == ()


@pytest.mark.parametrize("session", ["{}", "{'process_group': 0}", "{'start_new_session': True}"])
async def test_stop_ends_the_whole_family(session: str) -> None:
    """Grandchildren go with the child, also those in a group or session of their own that ignore SIGTERM."""
    lines = Lines()
    async with started(python(GRANDCHILD.replace("{session}", session) + "time.sleep(600)"), lines.take) as child:
        grandchild = int((await lines.wait_for("grandchild")).split()[1])
        await lines.wait_for("up")
        await child.stop(5)
        assert wait_gone(grandchild)


async def test_a_flood_of_output_is_read_and_bounded() -> None:
    """Twenty-five megabytes without a pause neither block the child nor are handed on line by line."""
    code = "import os\nfor _ in range(4000): os.write(1, b'noise noise noise noise noise\\n' * 208)\nprint('end')"
    lines = Lines()
    async with started(python(code), lines.take) as child:
        assert await child.wait() == Exit(0, None)
    assert child.tail.line_count == 4000 * 208 + 1
    assert child.tail.lines(1) == ("end",)
    assert child.tail.skipped_lines > 0


async def test_a_listener_that_fails_does_not_stop_the_reading() -> None:
    """Its errors are counted; every line is kept."""
    seen: list[str] = []

    def fail(lines: Sequence[str]) -> None:
        seen.extend(lines)
        raise ValueError(lines)

    async with started(python("print('a', flush=True); print('b')"), fail) as child:
        assert await child.wait() == Exit(0, None)
    assert seen == ["a", "b"]
    assert child.line_errors >= 1
    assert child.tail.lines(2) == ("a", "b")


async def test_a_calm_child_s_lines_all_come_in_order_and_its_end_is_seen_at_once() -> None:
    """Lines written one by one are handed on together, none is lost, and neither a flood nor the end waits."""
    batches: list[list[str]] = []
    ready = Lines()

    def take(lines: Sequence[str]) -> None:
        batches.append(list(lines))
        ready.take(lines)

    code = "import os\nos.write(1, b'up\\n')\nos.read(0, 1)\nfor n in range(400): os.write(1, b'%d\\n' % n)"
    async with started(python(code), take) as child:
        child.calm_down()
        assert await child.wait() == Exit(0, None)
    assert [line for batch in batches for line in batch] == ["up", *map(str, range(400))]
    assert len(batches) < 200


async def test_what_cannot_be_started_is_typed(tmp_path: Path) -> None:
    """A missing file, a missing folder to start in, and a zero byte are SpawnFailed and leave no process."""
    with pytest.raises(SpawnFailed):
        await spawn(SpawnSpec((str(tmp_path / "none"),), {}))
    with pytest.raises(SpawnFailed):
        await spawn(SpawnSpec(("/bin/sh",), {}, cwd=tmp_path / "none"))
    with pytest.raises(SpawnFailed):
        await spawn(SpawnSpec(("/bin/sh", "a\0b"), {}))
    with pytest.raises(SpawnFailed):
        await spawn(SpawnSpec(("/bin/sh",), {"A": "b\0c"}))


@has_setpriv
async def test_a_failure_of_the_last_step_is_told_from_an_exit(tmp_path: Path) -> None:
    """Prevents a busy file from reading as the engine's own exit code 126: setpriv's words become SpawnFailed."""
    program = tmp_path / "engine"
    shutil.copy("/bin/sh", program)
    with program.open("ab"):  # a program that is being written can't be executed
        async with started(SpawnSpec((str(program), "-c", "exit 1"), {"LC_ALL": "C"})) as child:
            await child.wait()
    failure = child.exec_failure
    assert failure is not None
    assert failure.text.endswith("Text file busy")
    async with started(SpawnSpec((str(program), "-c", "exit 126"), {})) as child:
        assert await child.wait() == Exit(126, None)
    assert child.exec_failure is None


async def test_without_setpriv_a_child_starts_unprotected_and_says_so() -> None:
    """On macOS and BusyBox there is no such setpriv: the process starts, and ``pdeathsig`` is False."""
    async with started(python("print('ok')"), prefix=()) as child:
        assert await child.wait() == Exit(0, None)
    assert not child.pdeathsig
    assert child.tail.lines(1) == ("ok",)


async def test_only_the_main_thread_may_start_a_process() -> None:
    """The parent-death signal fires when the starting thread ends: starting elsewhere is a bug, and raises."""

    def start_elsewhere() -> None:
        anyio.run(spawn, python("pass"))

    with pytest.raises(RuntimeError, match="main thread"):
        await anyio.to_thread.run_sync(start_elsewhere)


_SUPERVISOR = """
import sys
import anyio
sys.path.insert(0, {root!r})
from tests.integration.processes.children import SLEEPS, python
from supervisor.processes.child_process import spawn

async def main():
    child = await spawn(python(SLEEPS), on_lines=lambda lines: print(*lines, child.pid, flush=True))
    await child.run()

anyio.run(main, backend_options={{"use_uvloop": {uvloop}}})
"""


@has_setpriv
@pytest.mark.parametrize("uvloop", [False, True])
def test_a_child_dies_with_its_supervisor(uvloop: bool) -> None:
    """SIGKILL on the supervisor takes its children along, on both event loops."""
    code = _SUPERVISOR.format(root=str(Path(__file__).parents[3]), uvloop=uvloop)
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as supervisor:
        assert supervisor.stdout is not None
        child = int(supervisor.stdout.readline().split()[1])
        supervisor.kill()
    assert wait_gone(child)


@pytest.mark.parametrize("uvloop", [False, True])
def test_both_event_loops_start_read_stop_and_reap_alike(uvloop: bool) -> None:
    """The daemon runs on uvloop where it installs, and on asyncio's own loop elsewhere."""

    async def main() -> tuple[Exit, Exit, float]:
        lines = Lines()
        async with started(python("raise SystemExit(3)")) as child:
            code = await child.wait()
        begin = time.monotonic()
        async with started(python(GRANDCHILD.replace("{session}", "{}") + "time.sleep(600)"), lines.take) as child:
            await lines.wait_for("up")
            return code, await child.stop(30), time.monotonic() - begin

    code, stopped, seconds = anyio.run(main, backend_options={"use_uvloop": uvloop})
    assert (code, stopped) == (Exit(3, None), Exit(None, signal.SIGTERM))
    assert seconds < 20
