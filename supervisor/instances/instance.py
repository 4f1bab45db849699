"""One model's engine over its launches: the owner of its state, its process and its restarts.

Others read properties and call ``want``, ``stop`` and ``drain``; only ``run`` changes the state.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import anyio
from anyio.abc import TaskStatus

from engines.contract import LaunchPlan
from engines.declared import DeclaredMemory
from supervisor.errors import InstanceError, SupervisorError
from supervisor.events import InstanceChanged, InternalError
from supervisor.instances.attempt import Attempt, Told
from supervisor.instances.awaited import Waiters
from supervisor.instances.events import GpuNotUsed
from supervisor.instances.exit_report import ExitReport, LaunchEnd, exit_event, failure_of
from supervisor.instances.launch import Launch
from supervisor.instances.lifecycle import InstanceState, Trigger, advance
from supervisor.instances.pool_memory import PoolMemory, pool_memory
from supervisor.instances.restart_policy import RestartDecision, after_exit, after_request_crash
from supervisor.instances.second_chance import SecondChance
from supervisor.instances.tools import InstanceLimits, InstanceTools, attempt_tools
from supervisor.models.catalog import ModelEntry

_STATE, _DO = InstanceState, Trigger
_WITH_PROCESS = (_STATE.STARTING, _STATE.READY, _STATE.UNRESPONSIVE, _STATE.STOPPING)
# SDKs obey Retry-After blindly, so it is never more than a minute.
_LONGEST_RETRY_AFTER = 60.0
# The same start would end the same way: it is not tried again for this long, unless the owner or the config says so.
_HOPELESS_SECONDS = 600.0


class Instance:
    """See the module. ``run`` must be running for anything to happen."""

    def __init__(self, entry: ModelEntry, tools: InstanceTools, limits: InstanceLimits) -> None:
        self.entry = entry
        self.id = f"{entry.id}-1"
        self.state = InstanceState.STOPPED
        self.since = tools.clock.wall()
        self.generation = 0
        self.plan: LaunchPlan | None = None
        self.launch: Launch | None = None
        self.last_exit: ExitReport | None = None
        self.failure: SupervisorError | None = None
        self._tools = tools
        self.limits = limits
        self._attempt: Attempt | None = None
        self._wanted = self._closed = False
        self._draining = False
        self._wake = anyio.Event()
        self._stop = anyio.Event()
        self._waiters = Waiters()
        self._stop_reason = ""
        self._failures: tuple[float, ...] = ()
        self._second_chance = SecondChance(tools.made_of, tools.look_interval, tools.bus)
        self._failed_at: dict[str, float] = {}  # of those failures, by launch
        self._retry_at = 0.0
        self._load_began = self._load_ended = 0.0

    @property
    def model_id(self) -> str:
        """The id of the model that it serves."""
        return self.entry.id

    @property
    def is_ready(self) -> bool:
        """Whether its engine answers."""
        return self.state is _STATE.READY

    @property
    def has_failed(self) -> bool:
        """Given up, until something changes or its time has come."""
        return self.state is _STATE.FAILED

    @property
    def accepting(self) -> bool:
        """READY, not draining, and not asked to stop."""
        return self.is_ready and not self._draining and not self._stop.is_set()

    @property
    def slots(self) -> int:
        """Requests it serves at once; 0 before its first plan."""
        return self.plan.slots if self.plan else 0

    @property
    def can_start(self) -> bool:
        """Whether wanting it can help now: FAILED only after its time, so that a broken model costs nothing."""
        return self.state is not _STATE.FAILED or self._tools.clock.monotonic() >= self._retry_at

    @property
    def at_rest(self) -> bool:
        """There is no process and none is being started."""
        return self.state in {_STATE.STOPPED, _STATE.BACKOFF, _STATE.FAILED}

    @property
    def is_starting(self) -> bool:
        """A launch has begun and is not ready yet."""
        return self.state is _STATE.STARTING

    @property
    def backing_off(self) -> bool:
        """It has ended by itself, and makes a pause before it may be launched again."""
        return self.state is _STATE.BACKOFF

    @property
    def is_wanted(self) -> bool:
        """Somebody has asked for it, and that holds."""
        return self._wanted

    @property
    def load_seconds(self) -> float:
        """What its last load took; 0 before the first."""
        return max(0.0, self._load_ended - self._load_began)

    def retry_after(self) -> float:
        """Seconds until another start makes sense, 1 to 60."""
        return min(_LONGEST_RETRY_AFTER, max(1.0, self._retry_at - self._tools.clock.monotonic()))

    @property
    def pid(self) -> int | None:
        """Its engine's process, also while that loads or stops; None when there is none."""
        return self._attempt.pid if self._attempt is not None and self.state in _WITH_PROCESS else None

    @property
    def declared(self) -> DeclaredMemory:
        """What its running engine's log has told of memory; empty: there is none, or it said nothing."""
        return self._attempt.declared if self._attempt is not None and self.pid is not None else DeclaredMemory()

    @property
    def memory(self) -> Mapping[str, PoolMemory]:
        """What was predicted, declared and seen, by pool; the last two of a running engine only."""
        observed = self._attempt.observed if self._attempt is not None and self.pid is not None else {}
        return {} if self.plan is None else pool_memory(self.plan, self.declared.places, observed)

    def note_memory(self, observed: Mapping[str, int]) -> None:
        """Its engine was seen to hold this much, in bytes by pool."""
        if self._attempt is not None:
            self._attempt.observed = dict(observed)

    @property
    def load_share(self) -> float | None:
        """Share of the model's bytes in memory while it loads, 0 to 1; None where it can't be told."""
        return self._attempt.share if self._attempt is not None and self.state is _STATE.STARTING else None

    @property
    def saving(self) -> float:
        """See ``Launch.saving``; 0 without one."""
        return self.launch.saving if self.launch is not None else 0.0

    def current_launch(self) -> Launch:
        """The launch, which must be READY: an AssertionError is a bug in the caller."""
        if self.launch is None or not self.is_ready:
            raise AssertionError(f"{self.id} is {self.state}")
        return self.launch

    def load_overlap(self, since: float) -> float:
        """Seconds that someone who came at ``since`` waited for the current launch to load."""
        return max(0.0, self._load_ended - max(since, self._load_began))

    def want(self) -> bool:
        """Ask for it to run; true when this call is what starts it. The wish outlives a stop that is under way."""
        if self._wanted or self._closed or not self.can_start:
            return False
        self._wanted = True
        self._wake.set()
        return self._stop.is_set() or self.state in {_STATE.STOPPED, _STATE.FAILED, _STATE.BACKOFF, _STATE.STOPPING}

    def close(self, reason: str) -> None:
        """Stop it for good: nobody's wish starts it again."""
        self._closed, self._wanted = True, False
        self.request_stop(reason)

    def use(self, entry: ModelEntry) -> None:
        """Launch by this entry from the next launch on; the one that runs is not touched."""
        self.entry = entry

    def forgive(self) -> None:
        """Forget past failures: an operator asks for another start."""
        self._failures, self._retry_at = (), 0.0

    def drain(self) -> None:
        """Take no new requests; running ones go on."""
        self._draining = True

    def request_stop(self, reason: str) -> None:
        """Stop it, without waiting for the end; one that rests stays as it is, but for an old failure."""
        if self.state is _STATE.STOPPED:
            return  # a wish that has just come is not lost
        self._wanted = False
        self._stop_reason = reason
        self._stop.set()
        self._wake.set()

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Serve wishes until cancelled; a running engine is then stopped."""
        task_status.started()
        while True:
            await self._until_wanted()
            self._draining = False
            self._move("wanted", _DO.START)
            await self._launch()
            while self.state is _STATE.BACKOFF:
                await self._back_off()

    async def _until_wanted(self) -> None:
        while not self._wanted:
            self._wake = anyio.Event()  # before anything that could make someone want it
            if self._stop.is_set():
                self._stop = anyio.Event()
                if self.state is _STATE.FAILED:
                    self.failure = None
                    self._move(self._stop_reason, _DO.STOP)
                continue
            if self.can_start:
                await self._wake.wait()
            elif await self._second_chance.look(self.entry, self._wake):
                self.forgive()
        self._stop = anyio.Event()  # whoever wanted it came after whoever stopped it

    async def _launch(self) -> None:
        """Launch, and again at once as long as another build is there to be tried."""
        while self.state is _STATE.STARTING:
            await self._launch_once()

    async def _launch_once(self) -> None:
        """STARTING to STOPPED, BACKOFF or FAILED; a fault of our own ends this launch, not the daemon."""
        self._second_chance.forget()
        self._load_began = self._tools.clock.monotonic()
        attempt = self._attempt = Attempt(
            self.entry,
            attempt_tools(self.id, self._tools, self.limits, lambda: self.limits.liveness),
            self.generation + 1,
        )
        told = Told(self._became_ready, self._stopping, self._unresponsive)
        try:
            self.plan = await attempt.prepare(self._stop)
            if self.plan is None:
                self._stopped()
                return
            self.generation += 1
            self._ended(await attempt.run(self.plan, self._stop, told), attempt)
        except SupervisorError as error:
            if error.facts.get("admit_anew") and self.state is _STATE.STARTING:
                self._pause(error.message, 0.0)
            else:
                self._give_up(error, retry_in=0.0)
        except Exception as error:  # noqa: BLE001  see above
            self._tools.bus.publish(InternalError.of(f"launch of {self.id}", error))
            failure = InstanceError("start_failed", f"{self.model_id}: an internal error ended the launch: {error!r}")
            self._give_up(failure, self.limits.restart.longest)

    def _became_ready(self, launch: Launch) -> None:
        self.launch = launch
        self.failure = None
        self._load_ended = self._tools.clock.monotonic()
        self._note_the_cpu(launch)
        self._move("answers", _DO.BECAME_READY)

    def _note_the_cpu(self, launch: Launch) -> None:
        """A plan that counts on a GPU is worth a warning when the engine found none: it is many times slower."""
        said = self._attempt.no_gpu if self._attempt is not None else None
        if said is None or self.plan is None or not self.plan.counts_on_gpu:
            return
        warning = f"it was planned with a GPU and computes on the CPU; the engine said: {said}"
        self.plan = replace(self.plan, warnings=(*self.plan.warnings, warning))
        self._tools.bus.publish(GpuNotUsed(self.id, self.model_id, launch.id, said))

    def _stopping(self) -> None:
        self._move(self._stop_reason, _DO.STOP)

    def _unresponsive(self, reason: str) -> None:
        """Its leases break in this step; the process is ended next."""
        if self._attempt is not None:
            self._tools.crashed(self.model_id, self._attempt.launch_id)
        self._move(reason, _DO.MISSED_PROBES)

    def _stopped(self) -> None:
        """It was asked to stop before there was a process."""
        self._move(self._stop_reason, _DO.STOP)
        self._after_stop()
        self._move("nothing had been started", _DO.EXITED)

    def _after_stop(self) -> None:
        self._stop = anyio.Event()
        self._failures = ()

    def _ended(self, report: ExitReport, attempt: Attempt) -> None:
        blamed = self._blamed_on_requests(report, attempt.launch_id)
        if attempt.launch_id in blamed:
            report = replace(report, blamed_on_request=True)
        self.launch = None
        self.last_exit = report
        self._tools.bus.publish(exit_event(self.id, self.model_id, attempt.launch_id, report))
        other_build = self.plan is not None and self._tools.ended(
            self.entry, self.plan, LaunchEnd(attempt.launch_id, report, blamed)
        )
        if self.state is _STATE.STOPPING:
            self._after_stop()
            self._move("stopped", _DO.EXITED)
            return
        if other_build:
            self._fall_back(report)
            return
        now = self._tools.clock.monotonic()
        decision = self._decide(report, attempt.launch_id, blamed, now)
        error = failure_of(self.model_id, report, attempt.given_up)
        if report.hopeless:
            error.facts["hopeless"] = True
            self._give_up(error, _HOPELESS_SECONDS)
        elif decision.gave_up:
            wait = f"{decision.reason}, so it is left alone for {decision.delay:.0f} s, unless it is loaded by hand"
            self._give_up(type(error)(error.code, f"{error.message} {wait}.", **error.facts), decision.delay)
        else:
            self.failure = error
            self._pause(f"{report.ending}: {report.verdict.why}; {decision.reason}", decision.delay)

    def _blamed_on_requests(self, report: ExitReport, launch_id: str) -> frozenset[str]:
        """Launches whose ends are a request's doing, as far as this end tells; asked while its leases still stand."""
        return self._tools.crashed(self.model_id, launch_id) if report.may_be_a_requests else frozenset()

    def _decide(self, report: ExitReport, launch_id: str, blamed: frozenset[str], now: float) -> RestartDecision:
        """What follows from an exit that nobody asked for; those that requests are to blame for are not counted."""
        forgiven = {self._failed_at[launch] for launch in blamed if launch in self._failed_at}
        failures = tuple(at for at in self._failures if at not in forgiven)
        if report.blamed_on_request:
            decision = after_request_crash(self.limits.restart, failures, now)
        else:
            decision = after_exit(self.limits.restart, failures, now, report.ready_for, self._tools.jitter())
            self._failed_at[launch_id] = now
        self._failures = decision.failures
        self._failed_at = {launch: at for launch, at in self._failed_at.items() if at in decision.failures}
        return decision

    def _fall_back(self, report: ExitReport) -> None:
        """The next launch is with another build: at once, as the first of its kind, for whoever waits."""
        why = f"{report.ending}: {report.verdict.why}; this build is not used again"
        if self.state is _STATE.STARTING:
            self._move(why, _DO.EXITED, _DO.RETRY)
        else:
            self._pause(why, 0.0)

    def _pause(self, why: str, seconds: float) -> None:
        """Rest for so long; whoever waits wants it again then."""
        self._retry_at = self._tools.clock.monotonic() + seconds
        self._wanted = False
        self._move(why, _DO.EXITED)

    def _give_up(self, error: SupervisorError, retry_in: float) -> None:
        """From whatever it was running as to FAILED in one step; whoever waits is told why."""
        self.launch = None
        if self.state is _STATE.STOPPING:
            self._after_stop()
            self._move(error.message, _DO.EXITED)
            return
        self.failure = error
        self._retry_at = self._tools.clock.monotonic() + retry_in
        self._wanted = False
        self._move(error.message, _DO.EXITED, _DO.GAVE_UP)

    async def _back_off(self) -> None:
        """Wait out the delay; then start again if anyone wants it, else rest."""
        delay = max(0.0, self._retry_at - self._tools.clock.monotonic())
        with anyio.move_on_after(delay):
            await self._stop.wait()
        if self._stop.is_set() or not self._wanted:
            reason = self._stop_reason if self._stop.is_set() else "the pause is over"
            self._stop = anyio.Event()
            self._move(reason, _DO.STOP)
            return
        self._move("another try", _DO.RETRY)
        await self._launch()

    def _move(self, reason: str, *triggers: Trigger) -> None:
        """One or more arrows in one sync step; observers see the last state only."""
        old = self.state
        for trigger in triggers:
            self.state = advance(self.state, trigger)
        self.since = self._tools.clock.wall()
        self._tools.bus.publish(
            InstanceChanged(self.id, self.model_id, old.value, self.state.value, reason, self.generation)
        )
        self._waiters.look(self.state)
        self._tools.changed(self)

    async def next(self, *states: InstanceState) -> InstanceState:
        """Wait until it comes into one of ``states``, not counting the one it is in now; tells which."""
        return await self._waiters.wait(states)

    async def until(self, *states: InstanceState) -> InstanceState:
        """Wait until it is in one of ``states``, be it only for a moment; tells which."""
        return await self._waiters.wait(states, self.state)
