"""One launch from its plan to its end: prepare, spawn, wait until ready, wait for the end, leave nothing."""

from __future__ import annotations

import traceback
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import anyio

from engines.contract import EngineAdapter, LaunchPlan
from engines.declared import DeclaredMemory
from supervisor.clock import Clock
from supervisor.errors import InstanceError
from supervisor.events import EventBus, InternalError, LaunchReady, LaunchStarted, LoadProgress
from supervisor.instances.exit_report import LOG_LINES, Ending, ExitReport, explain
from supervisor.instances.last_sight import LastSight
from supervisor.instances.launch import Launch, LaunchTicket, prepare_ticket
from supervisor.instances.liveness import LivenessLimits
from supervisor.instances.probes import ReadinessSignals, wait_until_ready
from supervisor.instances.race import first_of
from supervisor.instances.watching import LivenessWatch, WatchTools
from supervisor.models.catalog import ModelEntry
from supervisor.processes.child_process import ChildProcess, Exit, SpawnFailed, SpawnSpec, spawn
from supervisor.processes.events import EngineRemains, MemoryNotBack
from supervisor.processes.launch_records import LaunchRecords
from supervisor.processes.log_file import LogFile
from supervisor.processes.log_lines import LaunchEnd, LaunchStart
from supervisor.processes.proc_table import MARK_VARIABLE
from supervisor.processes.progress import ProgressSample, StallWatch, read_progress

Flush = Callable[[Launch], Awaitable[None]]
MemoryBack = Callable[[LaunchPlan], Awaitable[None]]
# Saving what an engine holds takes milliseconds to a second; a stop never waits longer for it.
FLUSH_SECONDS = 5.0
# Host memory is free when the last process is gone; a driver may take a moment more for a card's.
MEMORY_BACK_SECONDS = 10.0
# How often a load that takes long is told of.
_PROGRESS_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class AttemptTools:
    """What one launch needs of the outside; seconds where times are meant.

    ``flush`` is awaited, within ``FLUSH_SECONDS``, before a READY engine is told to stop: what it holds can be saved.
    """

    instance_id: str
    adapter: EngineAdapter
    prepare: Callable[[ModelEntry], Awaitable[LaunchPlan]]
    environment: Callable[[EngineAdapter, LaunchPlan, str], dict[str, str]]
    forget_key: Callable[[str], None]
    clean: Callable[[str], str]
    runtime_dir: Path
    clock: Clock
    bus: EventBus
    stall_timeout: float
    stop_grace: float
    flush: Flush
    log: LogFile
    records: LaunchRecords
    memory_back: MemoryBack
    liveness: Callable[[], LivenessLimits]
    asleep: Callable[[], float]


@dataclass(frozen=True, slots=True)
class Told:
    """Who is told of a launch, in the same sync step as what happens: it is ready, stops as asked, is given up."""

    became_ready: Callable[[Launch], None]
    stopping: Callable[[], None]
    unresponsive: Callable[[str], None]


class Attempt:
    """One launch.

    Attributes:
        launch_id: its id, once there is one.
        pid: its process, once there is one.
        declared: what its engine's log has told of its memory.
        observed: bytes by pool that it was last seen to hold.
        given_up: why it was ended unasked, by us: its load stood still, or it stopped answering.
        share: of the model's bytes that are in memory, 0 to 1; None where it can't be told, or not yet.
    """

    def __init__(self, entry: ModelEntry, tools: AttemptTools, generation: int) -> None:
        self.launch_id = ""
        self.pid: int | None = None
        self.declared = DeclaredMemory()
        self.observed: Mapping[str, int] = {}
        self.given_up: InstanceError | None = None
        self.share: float | None = None
        self._entry = entry
        self._tools = tools
        self._generation = generation
        self._signals = ReadinessSignals(tools.adapter)
        self._stall = StallWatch(tools.clock.monotonic())
        self._began = tools.clock.monotonic()
        self._ready_at: float | None = None
        self._told_at = self._began
        self._mark = ""
        self._survivors: tuple[int, ...] = ()
        self._sight: LastSight | None = None
        self._launch: Launch | None = None

    @property
    def no_gpu(self) -> str | None:
        """The line by which the engine says that it uses the CPU alone; None: it has not said so."""
        return None if self._signals.no_gpu is None else self._tools.clean(self._signals.no_gpu)

    async def prepare(self, stop: anyio.Event) -> LaunchPlan | None:
        """The plan; None when ``stop`` came first.

        Raises:
            SupervisorError: there is no build, or no plan that fits.
        """
        plans: list[LaunchPlan] = []

        async def plan() -> None:
            plans.append(await self._tools.prepare(self._entry))

        await first_of(plan=plan, stop=stop.wait)
        return plans[0] if plans else None

    async def run(
        self,
        plan: LaunchPlan,
        stop: anyio.Event,
        told: Told,
    ) -> ExitReport:
        """Spawn and stay until the process has ended and nothing of it is left."""
        tools = self._tools
        ticket = prepare_ticket(tools.adapter, tools.runtime_dir)
        self.launch_id = ticket.id
        try:
            self._mark = await tools.records.open(ticket.id, self._entry.id, ticket.endpoint.socket_path)
            report = await self._run(plan, ticket, stop, told)
            tools.log.ended(_log_end(ticket.id, report))
        finally:
            ticket.close()
            tools.forget_key(ticket.api_key)
            with anyio.CancelScope(shield=True):
                await self._take_back()
        await self._until_memory_is_back(plan)
        return report

    async def _run(
        self,
        plan: LaunchPlan,
        ticket: LaunchTicket,
        stop: anyio.Event,
        told: Told,
    ) -> ExitReport:
        tools = self._tools
        start = LaunchStart(ticket.id, self._generation, plan.build, None)
        try:
            child = await spawn(self._spec(plan, ticket), on_lines=self._read_lines)
        except SpawnFailed as error:
            tools.log.started(start)
            return explain(plan, self._ending("starting", None, log=(), planned=False, spawn=error))
        self.pid = child.pid
        launch = self._launch = Launch(ticket, plan, tools.instance_id, self._generation, child.pid)
        launch.unfinished = lambda: child.tail.unfinished
        reports: list[ExitReport] = []
        async with anyio.create_task_group() as tasks:
            try:
                tools.log.started(replace(start, pid=child.pid), skipped=lambda: child.tail.skipped_lines)
                tools.bus.publish(
                    LaunchStarted(tools.instance_id, self._entry.id, launch.id, child.pid, self._generation)
                )
                tasks.start_soon(tools.records.started, ticket.id, child.pid)
                self._sight = LastSight(child.pid)
                tasks.start_soon(self._sight.run)
                await tasks.start(child.run)
                reports.append(await self._live(child, launch, stop, told))
            finally:
                with anyio.CancelScope(shield=True):
                    await child.stop(0.0)
                    self._survivors = child.survivors
                    await launch.aclose()
                tasks.cancel_scope.cancel()
        return reports[0]

    async def _until_memory_is_back(self, plan: LaunchPlan) -> None:
        """Before anyone counts on what the engine held; bounded, and a fault of those who look ends nothing."""
        tools = self._tools
        began = tools.clock.monotonic()
        with anyio.move_on_after(MEMORY_BACK_SECONDS) as waiting:
            try:
                await tools.memory_back(plan)
            except Exception as error:  # noqa: BLE001  see above
                trace = traceback.format_exc()
                tools.bus.publish(InternalError(f"memory of {self.launch_id}", repr(error), trace))
        if waiting.cancelled_caught:
            waited = tools.clock.monotonic() - began
            tools.bus.publish(MemoryNotBack(tools.instance_id, self._entry.id, self.launch_id, waited))

    async def _take_back(self) -> None:
        """What was written down of the launch, unless something of it outlived even SIGKILL."""
        tools = self._tools
        if self._survivors:
            tools.bus.publish(EngineRemains(tools.instance_id, self._entry.id, self.launch_id, self._survivors))
        else:
            await tools.records.close(self.launch_id)

    async def _live(
        self,
        child: ChildProcess,
        launch: Launch,
        stop: anyio.Event,
        told: Told,
    ) -> ExitReport:
        async def ready() -> None:
            limit = self._tools.stall_timeout
            await wait_until_ready(launch, self._tools.adapter, self._signals, self._watch(child), limit)

        try:
            outcome = await first_of(exited=child.exited.wait, stop=stop.wait, ready=ready)
        except InstanceError as error:
            self.given_up = error
            outcome = "stalled"
        if outcome == "ready":
            self._ready_at = self._tools.clock.monotonic()
            child.calm_down(lambda: not launch.listeners)
            told.became_ready(launch)
            seconds = self._ready_at - self._began
            self._tools.bus.publish(LaunchReady(self._tools.instance_id, self._entry.id, launch.id, seconds))
            outcome = await self._serve(child, launch, stop, told)
        phase = "ready" if self._ready_at is not None else "starting"
        planned = outcome == "stop"
        if planned:
            told.stopping()
            launch.kept.close()
            if self._ready_at is not None:
                await self._flush(launch)
        ended_itself = child.exit is not None
        with anyio.CancelScope(shield=True):
            status = await child.stop(self._tools.stop_grace if planned else 0.0)
        failed = child.exec_failure
        ending = self._ending(
            "stopping" if planned else phase,
            status,
            log=tuple(map(self._tools.clean, child.tail.lines(LOG_LINES))),
            planned=planned,
            by_itself=ended_itself,
            spawn=failed,
        )
        return explain(launch.plan, ending)

    async def _serve(self, child: ChildProcess, launch: Launch, stop: anyio.Event, told: Told) -> str:
        """Until it ends, is asked to stop, or is given up because it no longer answers."""
        tools = self._tools
        watched = WatchTools(tools.adapter, tools.liveness, tools.clock, tools.bus, tools.asleep)
        watch = LivenessWatch(launch, self._entry.id, watched)
        outcome = await first_of(exited=child.exited.wait, stop=stop.wait, unresponsive=watch.run)
        if outcome == "unresponsive":
            self.given_up = InstanceError("instance_failed", f"it no longer answered: {watch.reason}")
            told.unresponsive(watch.reason)
        return outcome

    async def _flush(self, launch: Launch) -> None:
        """Let others save what the engine holds; their failure delays nothing but itself."""
        with anyio.move_on_after(FLUSH_SECONDS):
            try:
                await self._tools.flush(launch)
            except Exception as error:  # noqa: BLE001  the stop goes on
                trace = traceback.format_exc()
                self._tools.bus.publish(InternalError(f"flush of {launch.id}", repr(error), trace))

    def _spec(self, plan: LaunchPlan, ticket: LaunchTicket) -> SpawnSpec:
        adapter = self._tools.adapter
        argv = (str(plan.executable), *plan.argv, *adapter.endpoint_args(ticket.endpoint))
        env = {**self._tools.environment(adapter, plan, ticket.api_key), MARK_VARIABLE: self._mark}
        return SpawnSpec(argv=argv, env=env)

    def _read_lines(self, lines: Sequence[str]) -> None:
        if self._ready_at is None:
            for line in lines:
                self._signals.read_line(line)
                if (found := self._tools.adapter.read_declared(line)) is not None:
                    self.declared.add(found)
        self._tools.log.write_lines(lines)
        if self._launch is not None:
            self._launch.wrote(lines)

    def _watch(self, child: ChildProcess) -> Callable[[], float]:
        def standing_still() -> float:
            now = self._tools.clock.monotonic()
            sample = read_progress(child.pid)
            if self._sight is not None:
                self._sight.look()
            self._tell_progress(now, sample)
            return self._stall.observe(now, sample, child.tail.byte_count)

        return standing_still

    def _tell_progress(self, now: float, sample: ProgressSample | None) -> None:
        if now - self._told_at < _PROGRESS_SECONDS:
            return
        self._told_at = now
        size = self._entry.metadata.file_bytes if self._entry.metadata else 0
        self.share = min(1.0, sample.rss_bytes / size) if sample is not None and size else None
        tools = self._tools
        told = LoadProgress(tools.instance_id, self._entry.id, self.launch_id, now - self._began, self.share)
        tools.bus.publish(told)

    def _ending(
        self,
        phase: str,
        status: Exit | None,
        *,
        log: tuple[str, ...],
        planned: bool,
        by_itself: bool = True,
        spawn: SpawnFailed | None = None,
    ) -> Ending:
        now = self._tools.clock.monotonic()
        sight = self._sight if spawn is None else None
        by_kernel = sight.hints(status.code, status.signal) if sight and status and by_itself else ()
        return Ending(
            phase="ready" if phase == "ready" else "stopping" if phase == "stopping" else "starting",
            exit_code=status.code if status and not spawn else None,
            signal=status.signal if status and not spawn else None,
            log=log,
            at=self._tools.clock.wall(),
            elapsed=now - self._began,
            ready_for=None if self._ready_at is None else now - self._ready_at,
            planned=planned,
            stopped_by_supervisor=not by_itself,
            spawn_errno=spawn.errno if spawn else None,
            spawn_error=spawn.text if spawn else None,
            memory=sight.memory if sight else None,
            host_hints=by_kernel,
        )


def _log_end(launch_id: str, report: ExitReport) -> LaunchEnd:
    kind = "as asked" if report.planned else report.verdict.kind.value
    return LaunchEnd(launch_id, report.phase, report.exit_code, report.signal, kind, log=report.log)
