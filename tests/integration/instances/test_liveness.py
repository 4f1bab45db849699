"""Engines that stop working, over real processes; the stage is that of the instance's other tests."""

from __future__ import annotations

import itertools
import os
import signal
from dataclasses import replace
from pathlib import Path

import anyio

from supervisor.instances.events import ProbeMissed
from supervisor.instances.lifecycle import InstanceState
from supervisor.instances.liveness import LivenessLimits
from tests.integration.instances.test_instance import QUICK, READY, STOPPED, stage


async def test_an_engine_that_is_stopped_in_its_tracks_is_replaced(tmp_path: Path) -> None:
    """SIGSTOP: found out within failures * (interval + timeout), killed, and the next wish starts a fresh one."""
    liveness = LivenessLimits(interval=0.2, timeout=1.0, failures=2)
    async with stage(tmp_path, replace(QUICK, liveness=liveness)) as there:
        there.instance.want()
        await there.until(READY)
        os.kill(there.instance.current_launch().pid, signal.SIGSTOP)
        with anyio.fail_after(liveness.longest + 10):  # the machine may be slow; the limit itself is a unit test's
            await there.until(InstanceState.UNRESPONSIVE)
        await there.until(STOPPED)
        [end] = there.exits()
        assert (end.phase, end.signal, end.planned) == ("ready", signal.SIGKILL, False)
        missed = [record.event for record in there.bus.since(0) if isinstance(record.event, ProbeMissed)]
        assert [event.missed for event in missed] == [1, 2]
        assert there.instance.failure is not None
        assert "no longer answered" in there.instance.failure.message
        assert there.states() == ["starting", "ready", "unresponsive", "backoff", "stopped"]
        there.instance.want()
        await there.until(READY)


async def test_progress_of_requests_excuses_missed_probes(tmp_path: Path) -> None:
    """A busy engine that does not answer its probes is left alone while requests hear of it, and no longer."""
    liveness = LivenessLimits(interval=0.1, timeout=0.2, failures=2)
    async with stage(tmp_path, replace(QUICK, liveness=liveness)) as there:
        there.instance.want()
        await there.until(READY)
        launch = there.instance.current_launch()
        os.kill(launch.pid, signal.SIGSTOP)
        until = anyio.current_time() + 2 * liveness.longest
        while anyio.current_time() < until:
            launch.progress_at = there.clock.monotonic()
            await anyio.sleep(0.02)  # as often as a request would hear of it; the time itself is the subject
        assert there.instance.state is READY
        await there.until(STOPPED)


async def test_a_machine_that_slept_fails_no_probe(tmp_path: Path) -> None:
    """Prevents the kill of a sound engine after a suspend: a look after sleep is a first one."""
    naps = itertools.count(step=100.0)
    looked = anyio.Event()

    def asleep() -> float:
        slept = next(naps)
        if slept > 600:
            looked.set()
        return slept

    liveness = LivenessLimits(interval=0.05, timeout=0.2, failures=1)
    async with stage(tmp_path, replace(QUICK, liveness=liveness)) as there:
        there.instance._tools = replace(there.instance._tools, asleep=asleep)
        there.instance.want()
        await there.until(READY)
        os.kill(there.instance.current_launch().pid, signal.SIGSTOP)
        with anyio.fail_after(30):
            await looked.wait()
        assert there.instance.state is READY
        assert not any(isinstance(record.event, ProbeMissed) for record in there.bus.since(0))
