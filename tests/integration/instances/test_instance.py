"""An instance over real processes: starts, crashes, stalls, stops, and whoever wants it meanwhile."""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread

from engines.contract import EngineAdapter, EngineKind, LaunchPlan
from engines.llama_cpp.adapter import LlamaCppAdapter
from supervisor.clock import SystemClock
from supervisor.errors import AdmissionError, InstanceError, PlanError
from supervisor.events import EventBus, InstanceChanged, InternalError, LaunchExited, LoadProgress
from supervisor.instances.exit_report import LaunchEnd
from supervisor.instances.instance import Instance
from supervisor.instances.launch import Launch
from supervisor.instances.lifecycle import InstanceState
from supervisor.instances.restart_policy import RestartLimits
from supervisor.instances.tools import InstanceLimits, InstanceTools
from supervisor.models.catalog import ModelEntry
from supervisor.processes.environment import child_environment
from supervisor.processes.log_folder import LogFolder
from tests.fakes.instances import model_entry
from tests.integration.processes.children import wait_gone
from tests.support.fake_engine import fake_build, set_faults, tiny_model
from tests.support.sockets import short_socket_folder

READY, FAILED, STOPPED = InstanceState.READY, InstanceState.FAILED, InstanceState.STOPPED
QUICK = InstanceLimits(
    stall_timeout=20, stop_grace=3, restart=RestartLimits(initial=0.05, factor=2, longest=1, budget=2, window=60)
)


class Stage:
    """One instance over the fake engine, with everything it published."""

    def __init__(self, folder: Path, runtime: Path, limits: InstanceLimits, faults: dict[str, Any]) -> None:
        self.model = tiny_model(folder)
        if faults:
            set_faults(self.model, **faults)
        self.build = fake_build(folder)
        self.clock = SystemClock()
        self.bus = EventBus(self.clock)
        self.fault: Exception | None = None
        self.n_gpu_layers: int | None = None
        self.flush_fault: Exception | None = None
        self.end_fault: Exception | None = None
        self.observer: Callable[[], object] = lambda: None
        self.memory_is_back = anyio.Event()
        self.memory_is_back.set()
        self.flushed: list[int] = []
        tools = InstanceTools(
            adapter=LlamaCppAdapter(),
            prepare=self.prepare,
            environment=self.environment,
            forget_key=lambda _key: None,
            clean=lambda line: line.replace("listening on", "***"),
            runtime_dir=runtime,
            clock=self.clock,
            bus=self.bus,
            changed=self.changed,
            ended=self.ended,
            log=LogFolder(folder / "logs", self.clock, self.bus, lambda line: line).of("m"),
            flush=self.flush,
            memory_back=self.memory_back,
        )
        self.instance = Instance(model_entry(), tools, limits)

    def changed(self, _instance: Instance) -> None:
        """Whoever observes it."""
        self.observer()

    def ended(self, _entry: ModelEntry, _plan: LaunchPlan, _end: LaunchEnd) -> bool:
        """No other build is there to be tried."""
        if self.end_fault is not None:
            raise self.end_fault
        return False

    async def flush(self, launch: Launch) -> None:
        """Note that the engine still answered when it was asked."""
        async with launch.session.get(f"{launch.base_url}/slots", headers=launch.headers) as answer:
            self.flushed.append(answer.status)
        if self.flush_fault is not None:
            raise self.flush_fault

    async def memory_back(self, plan: LaunchPlan) -> None:
        """When the test says so."""
        assert plan.build == "fake"
        await self.memory_is_back.wait()

    async def prepare(self, entry: ModelEntry) -> LaunchPlan:
        """A plan without planning."""
        if self.fault is not None:
            raise self.fault
        return LaunchPlan(
            model_id=entry.id,
            engine=EngineKind.LLAMA_CPP,
            build="fake",
            fingerprint="f",
            executable=self.build.executable,
            argv=("--model", str(self.model), "--alias", entry.id),
            env={},
            threads=1,
            threads_batch=1,
            n_gpu_layers=self.n_gpu_layers,
            ctx_size=512,
            slots=1,
            cache_type="f16",
            memory={},
            fits=True,
            rationale=(),
        )

    def environment(self, adapter: EngineAdapter, plan: LaunchPlan, key: str) -> dict[str, str]:
        """The child's environment."""
        return child_environment(os.environ, adapter.pass_through_environment, {"LLAMA_API_KEY": key})

    async def until(self, *states: InstanceState) -> InstanceState:
        """Wait for a state, within a bound."""
        with anyio.fail_after(30):
            return await self.instance.until(*states)

    def states(self) -> list[str]:
        """Every state it went through."""
        return [record.event.new for record in self.bus.since(0) if isinstance(record.event, InstanceChanged)]

    def exits(self) -> list[LaunchExited]:
        """How its launches ended."""
        return [record.event for record in self.bus.since(0) if isinstance(record.event, LaunchExited)]


@asynccontextmanager
async def stage(folder: Path, limits: InstanceLimits = QUICK, **faults: Any) -> AsyncIterator[Stage]:
    """A running instance; its engine is gone afterwards."""
    with short_socket_folder() as runtime:
        there = Stage(folder, runtime, limits, faults)
        async with anyio.create_task_group() as tasks:
            await tasks.start(there.instance.run)
            yield there
            tasks.cancel_scope.cancel()
        assert list(runtime.iterdir()) == []


async def test_it_starts_when_wanted_and_stops_when_told(tmp_path: Path) -> None:
    """STOPPED, STARTING, READY, STOPPING, STOPPED; the launch answers with its key while it is READY."""
    async with stage(tmp_path) as there:
        assert there.instance.want()
        assert not there.instance.want()
        await there.until(READY)
        launch = there.instance.current_launch()
        async with launch.session.get(f"{launch.base_url}/slots", headers=launch.headers) as answer:
            assert answer.status == 200
        there.instance.request_stop("test")
        await there.until(STOPPED)
        assert there.states() == ["starting", "ready", "stopping", "stopped"]
        assert there.instance.generation == 1
        assert [(end.phase, end.planned) for end in there.exits()] == [("stopping", True)]


async def test_it_is_stopped_when_its_memory_is_back(tmp_path: Path) -> None:
    """Prevents the next launch from counting on memory that a driver has not freed yet."""
    async with stage(tmp_path) as there:
        there.instance.want()
        await there.until(READY)
        pid = there.instance.current_launch().pid
        there.memory_is_back = anyio.Event()
        there.instance.request_stop("test")
        await there.until(InstanceState.STOPPING)
        assert await anyio.to_thread.run_sync(wait_gone, pid)
        assert there.instance.state is InstanceState.STOPPING
        there.memory_is_back.set()
        await there.until(STOPPED)


async def test_what_an_engine_holds_is_saved_before_it_stops(tmp_path: Path) -> None:
    """Two stages: the flush meets a living engine, then it is stopped; a flush that fails stops nothing."""
    async with stage(tmp_path) as there:
        there.flush_fault = OSError("disk full")
        there.instance.want()
        await there.until(READY)
        there.instance.request_stop("test")
        await there.until(STOPPED)
        assert there.flushed == [200]
        assert any(isinstance(record.event, InternalError) for record in there.bus.since(0))


async def test_a_wish_during_a_stop_is_not_lost(tmp_path: Path) -> None:
    """Prevents the field's lost wake-up: who wants it while it stops gets it started again."""
    async with stage(tmp_path) as there:
        there.instance.want()
        await there.until(READY)
        there.instance.request_stop("test")
        assert there.instance.want()
        assert not there.instance.accepting
        await there.until(STOPPED)
        await there.until(READY)
        assert there.instance.generation == 2


async def test_a_wish_right_after_a_stop_of_a_stopped_one_is_not_lost(tmp_path: Path) -> None:
    """A stop that meets nothing to stop must not stop the next start."""
    async with stage(tmp_path) as there:
        there.instance.request_stop("nothing there")
        there.instance.want()
        await there.until(READY)
        assert there.states() == ["starting", "ready"]


async def test_a_crash_in_service_is_started_again_for_who_wants_it(tmp_path: Path) -> None:
    """Killed while READY: the exit is told with its signal, and the next wish starts a fresh launch."""
    async with stage(tmp_path) as there:
        there.instance.want()
        await there.until(READY)
        os.kill(there.instance.current_launch().pid, signal.SIGKILL)
        await there.until(STOPPED)
        [end] = there.exits()
        assert (end.phase, end.signal, end.planned) == ("ready", signal.SIGKILL, False)
        assert there.instance.want()
        await there.until(READY)
        assert there.instance.generation == 2


async def test_a_hopeless_start_is_not_repeated(tmp_path: Path) -> None:
    """SIGILL at start: FAILED at once, with the evidence, and wanting it again within its time does nothing."""
    async with stage(tmp_path, die="start", signal="SIGILL") as there:
        there.instance.want()
        await there.until(FAILED)
        assert isinstance(there.instance.failure, InstanceError)
        assert there.instance.failure.facts["kind"] == "INCOMPATIBLE_CPU"
        assert not there.instance.can_start
        assert not there.instance.want()
        assert len(there.exits()) == 1
        there.instance.forgive()
        assert there.instance.want()


async def test_an_unclear_failure_is_retried_until_the_budget_is_spent(tmp_path: Path) -> None:
    """Exits without a clear cause are tried again while someone wants it, then it is FAILED."""
    async with stage(tmp_path, die="start", exit=3) as there:
        there.instance.want()
        for _ in range(2):
            await there.until(InstanceState.BACKOFF)
            there.instance.want()
            await there.until(InstanceState.STARTING)
        await there.until(FAILED)
        assert len(there.exits()) == 3
        assert there.instance.failure is not None
        assert there.instance.failure.code == "start_failed"


async def test_a_load_that_stands_still_is_ended(tmp_path: Path) -> None:
    """Nothing moves for `stall_timeout`: the process is killed, and the reason is the stall."""
    limits = replace(QUICK, stall_timeout=0.6)
    async with stage(tmp_path, limits, load_seconds=30, load_log=False) as there:
        there.instance.want()
        await there.until(InstanceState.STARTING)
        await there.until(InstanceState.BACKOFF, STOPPED)
        assert there.instance.failure is not None
        assert there.instance.failure.code == "start_stalled"


async def test_a_slow_load_that_moves_is_not_ended(tmp_path: Path) -> None:
    """A load far longer than `stall_timeout` lives on its log lines."""
    limits = replace(QUICK, stall_timeout=1.0)
    async with stage(tmp_path, limits, load_seconds=2.5, load_log=True) as there:
        there.instance.want()
        await there.until(READY)
        assert there.exits() == []
        told = [record.event for record in there.bus.since(0) if isinstance(record.event, LoadProgress)]
        assert len(told) >= 1
        assert all(event.seconds >= 1 for event in told)


async def test_a_stop_while_it_loads_ends_the_load(tmp_path: Path) -> None:
    """Nobody waits for a load that is no longer wanted."""
    async with stage(tmp_path, load_seconds=30, load_log=True) as there:
        there.instance.want()
        await there.until(InstanceState.STARTING)
        there.instance.request_stop("test")
        await there.until(STOPPED)
        assert all(end.planned for end in there.exits())


async def test_an_engine_that_ignores_sigterm_is_killed_with_its_family(tmp_path: Path) -> None:
    """After the grace comes SIGKILL to the group, grandchildren included; the leftover guard sees that none lives."""
    limits = replace(QUICK, stop_grace=0.3)
    async with stage(tmp_path, limits, ignore_sigterm=True, grandchild="group") as there:
        there.instance.want()
        await there.until(READY)
        there.instance.request_stop("test")
        await there.until(STOPPED)
        [end] = there.exits()
        assert (end.signal, end.planned) == (signal.SIGKILL, True)


async def test_a_plan_that_can_not_be_made_fails_without_a_process(tmp_path: Path) -> None:
    """The planner's own error is the failure, and another request may ask again at once."""
    async with stage(tmp_path) as there:
        error = there.fault = PlanError("no_build", "none")
        there.instance.want()
        await there.until(FAILED)
        assert there.instance.failure is error
        assert there.instance.can_start
        there.fault = None
        there.instance.want()
        await there.until(READY)


async def test_a_fault_of_our_own_ends_the_launch_and_not_the_daemon(tmp_path: Path) -> None:
    """An unexpected exception while preparing is told as an internal error; the instance can be wanted again."""
    async with stage(tmp_path) as there:
        there.fault = ZeroDivisionError("oops")
        there.instance.want()
        await there.until(FAILED)
        assert there.instance.failure is not None
        assert "ZeroDivisionError" in there.instance.failure.message
        there.fault = None
        there.instance.forgive()
        there.instance.want()
        await there.until(READY)


async def test_an_executable_that_can_not_be_started_is_told(tmp_path: Path) -> None:
    """No such file: FAILED with a sentence, not an exception."""
    async with stage(tmp_path) as there:
        there.build.executable.unlink()
        there.instance.want()
        await there.until(FAILED, InstanceState.BACKOFF)
        assert there.instance.failure is not None
        assert there.instance.failure.code == "start_failed"


async def test_a_wish_in_the_step_of_a_stop_of_a_failed_one_is_not_lost(tmp_path: Path) -> None:
    """Prevents a model that nobody can start any more: an observer wants it while FAILED becomes STOPPED."""
    async with stage(tmp_path) as there:
        there.fault = PlanError("no_build", "none")
        there.instance.want()
        await there.until(FAILED)
        there.fault = None
        there.observer = lambda: there.instance.state is STOPPED and there.instance.want()
        there.instance.request_stop("unloaded")
        await there.until(READY)


async def test_secrets_are_cleaned_from_what_is_told_of_an_exit(tmp_path: Path) -> None:
    """Prevents the key of a launch from standing in status, events and logs when its engine prints it."""
    async with stage(tmp_path) as there:
        there.instance.want()
        await there.until(READY)
        there.instance.request_stop("test")
        await there.until(STOPPED)
        assert there.instance.last_exit is not None
        assert any("***" in line for line in there.instance.last_exit.log)
        assert not any("listening on" in line for end in there.exits() for line in end.log)


async def test_a_start_that_finds_no_room_any_more_rests(tmp_path: Path) -> None:
    """It is not given up: whoever waits has it admitted anew, as soon as there is room."""
    async with stage(tmp_path) as there:
        there.fault = AdmissionError("no_room", "b needs more than is free", admit_anew=True)
        there.instance.want()
        await there.until(InstanceState.BACKOFF)
        await there.until(STOPPED)
        assert there.instance.failure is None
        there.fault = None
        assert there.instance.want()
        await there.until(READY)
        assert there.states() == ["starting", "backoff", "stopped", "starting", "ready"]


async def test_a_fault_where_an_end_is_told_ends_the_launch_alone(tmp_path: Path) -> None:
    """Regression: who hears of ended launches could end the instance's task by a fault, and the daemon with it."""
    async with stage(tmp_path, die="ready", signal="SIGKILL") as there:
        there.end_fault = LookupError("no such thing")
        there.instance.want()
        await there.until(FAILED)
        assert there.instance.failure is not None
        assert "internal error" in there.instance.failure.message
        assert any(isinstance(record.event, InternalError) for record in there.bus.since(0))
