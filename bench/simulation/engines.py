"""Engines that exist only in a simulation: they load slowly, lie about memory, leak, hang and crash, by a seed."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from typing import Any, Protocol, Self, cast

from bench.simulation.models import ModelSpec, entry_of
from engines.contract import EngineAdapter, LaunchPlan
from supervisor.errors import InstanceError, SupervisorError
from supervisor.instances.launch import Launch
from supervisor.instances.lifecycle import InstanceState, Trigger, advance
from supervisor.models.catalog import ModelEntry

_S, _T = InstanceState, Trigger
# Supervision's defaults, near enough: a load that makes no progress is ended, and one that failed so often is left.
_STALL, _GIVEN_UP, _BACKOFF = 60.0, 60.0, 2.0
_TRIES = 3
# How often the daemon looks at what engines hold.
_WATCH = 15.0
# An engine notices that its client left after its current batch.
NOTICES = 0.7


class Owner(Protocol):
    """Who decides over the engines: the broker, or what it is compared with."""

    async def plan_for(self, entry: ModelEntry) -> LaunchPlan:
        """The plan of a beginning launch."""
        ...

    def instance_changed(self, instance: SimulatedInstance) -> None:
        """The instance is in another state."""
        ...

    def memory_seen(self, instance_id: str, declared: Mapping[str, int], observed: Mapping[str, int]) -> None:
        """What it was seen to hold."""
        ...


class _Answer:
    """What an engine says of its slots."""

    status = 200

    def __init__(self, busy: int) -> None:
        self._busy = busy

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        return None

    async def read(self) -> bytes:
        """How many work."""
        return str(self._busy).encode()


class SimulatedLaunch:
    """As much of a launch as the broker asks for."""

    base_url = "http://simulated"
    headers: Mapping[str, str] = {}

    def __init__(self, instance: SimulatedInstance) -> None:
        self.instance_id = instance.id
        self.calls = nullcontext()
        self.session = self
        self._instance = instance
        self.rebuild = self.saving = 0.0

    def get(self, _url: str, **_options: object) -> _Answer:
        """The engine's slots."""
        return _Answer(self._instance.busy)


class SimulatedAdapter:
    """As much of an adapter as the broker asks for."""

    slots_path = "/slots"

    def busy_slots(self, body: bytes) -> int:
        """As ``_Answer`` wrote it."""
        return int(body)


class SimulatedInstance:
    """Keeps to ``instances.instance.Instance`` in every state; its process is a few timers.

    Attributes:
        busy: requests that the engine works on.
        leaked: bytes that its requests have left behind.
        lagging: bytes of its ended process that are not free yet.
    """

    def __init__(self, spec: ModelSpec, world: EngineWorld) -> None:
        self.spec = spec
        self.id = f"{spec.name}-1"
        self.model_id = spec.name
        self.entry = entry_of(spec)
        self.state = _S.STOPPED
        self.failure: SupervisorError | None = None
        self.busy = self.leaked = self.lagging = self.launches = 0
        self.stop_reason = ""
        self.slots = 0
        self._world = world
        self._wanted = self._draining = self._stop = False
        self._failures = 0
        self._retry_at = self._load_began = self._load_ended = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._planning: asyncio.Task[None] | None = None

    @property
    def is_ready(self) -> bool:
        """As ``Instance``; so are the rest of these."""
        return self.state is _S.READY

    @property
    def has_failed(self) -> bool:
        """Given up."""
        return self.state is _S.FAILED

    @property
    def accepting(self) -> bool:
        """READY, and staying so."""
        return self.is_ready and not self._draining and not self._stop

    @property
    def at_rest(self) -> bool:
        """No process."""
        return self.state in {_S.STOPPED, _S.BACKOFF, _S.FAILED}

    @property
    def is_starting(self) -> bool:
        """It loads."""
        return self.state is _S.STARTING

    @property
    def backing_off(self) -> bool:
        """It makes a pause after a failure."""
        return self.state is _S.BACKOFF

    @property
    def is_wanted(self) -> bool:
        """Asked for."""
        return self._wanted

    @property
    def saving(self) -> float:
        """None is simulated."""
        return 0.0

    @property
    def load_seconds(self) -> float:
        """Of the last load."""
        return max(0.0, self._load_ended - self._load_began)

    @property
    def can_start(self) -> bool:
        """Whether wanting it helps now."""
        return self.state is not _S.FAILED or self._world.now() >= self._retry_at

    def retry_after(self) -> float:
        """Seconds, 1 to 60."""
        return min(60.0, max(1.0, self._retry_at - self._world.now()))

    def current_launch(self) -> Launch:
        """The one that is READY."""
        return cast("Launch", SimulatedLaunch(self))

    def load_overlap(self, since: float) -> float:
        """Seconds of the load that somebody waited for."""
        return max(0.0, self._load_ended - max(since, self._load_began))

    def want(self) -> bool:
        """Ask for it to run."""
        if self._wanted or not self.can_start:
            return False
        self._wanted = True
        if self.state in {_S.STOPPED, _S.FAILED}:
            self._world.soon(self._begin)
        return self._stop or self.state in {_S.STOPPED, _S.FAILED, _S.BACKOFF, _S.STOPPING}

    def use(self, entry: ModelEntry) -> None:
        """From the next launch on."""
        self.entry = entry

    def forgive(self) -> None:
        """Past failures are forgotten."""
        self._failures, self._retry_at = 0, 0.0

    def drain(self) -> None:
        """Nobody new."""
        self._draining = True

    def request_stop(self, reason: str) -> None:
        """Stop it."""
        if self.state is _S.STOPPED:
            return
        if not self._stop:
            self._world.asked_to_stop(self, reason)
        self._wanted, self._stop, self.stop_reason = False, True, reason
        self._world.soon(self._obey)

    def work(self, seconds: float, done: Callable[[], None]) -> asyncio.TimerHandle:
        """Begin a request, which may be the engine's last; ``done`` is called at its end, unless that is a crash."""
        self.busy += 1
        launch = self.launches
        crash = self._world.random.random() < self.spec.crashes

        def ends() -> None:
            if launch != self.launches or not self.is_ready:
                return
            if crash:
                self._exit_by_itself("it crashed")
                return
            self.busy -= 1
            self.leaked += self.spec.leaks
            done()

        return self._world.later(seconds, ends)

    def cut(self, timer: asyncio.TimerHandle) -> None:
        """The client left: the engine notices after a while."""
        timer.cancel()
        launch = self.launches

        def noticed() -> None:
            if launch == self.launches and self.is_ready:
                self.busy -= 1

        self._world.later(NOTICES, noticed)

    def _begin(self) -> None:
        if not self._wanted or self.state not in {_S.STOPPED, _S.FAILED}:
            return
        self._stop = self._draining = False
        self._move(_T.START)
        self._launch()

    def _launch(self) -> None:
        self._load_began = self._world.now()
        self._planning = self._world.task(self._prepare())

    async def _prepare(self) -> None:
        try:
            await self._world.owner.plan_for(self.entry)
        except SupervisorError as error:
            self._give_up(error, 0.0)
            return
        if self._stop:
            return
        self.launches += 1
        self._world.launched(self)
        self.slots, self.busy, self.leaked = self.spec.slots, 0, 0
        dice, load = self._world.random, self.spec.load * self._world.random.uniform(0.5, 1.5)
        if dice.random() < self.spec.hangs:
            self._timer = self._world.later(_STALL, lambda: self._exit_by_itself("its load made no progress"))
        elif dice.random() < self.spec.fails:
            self._timer = self._world.later(load / 2, lambda: self._exit_by_itself("it crashed while it loaded"))
        else:
            self._timer = self._world.later(load, self._ready)

    def _ready(self) -> None:
        self._load_ended = self._world.now()
        self.failure = None
        self._move(_T.BECAME_READY)
        self._watch(self.launches)

    def _watch(self, launch: int) -> None:
        if launch == self.launches and self.is_ready:
            held = self.spec.size + self.spec.lies + self.leaked
            self._world.owner.memory_seen(self.id, {}, {self._world.pool: held})
            self._world.later(_WATCH, lambda: self._watch(launch))

    def _obey(self) -> None:
        if not self._stop:
            return
        if self.state in {_S.STARTING, _S.READY}:
            self._cancel()
            self._move(_T.STOP)
            self._timer = self._world.later(0.3, self._stopped)
        elif self.state in {_S.BACKOFF, _S.FAILED}:
            self._stop = False
            self._cancel()
            self._move(_T.STOP)
            self._world.soon(self._begin)

    def _stopped(self) -> None:
        self._stop = False
        self._failures = 0
        self._gone()
        self._move(_T.EXITED)
        self._world.soon(self._begin)

    def _exit_by_itself(self, why: str) -> None:
        """A crash, in the middle of whatever it did."""
        self._cancel()
        self._gone()
        error = InstanceError("instance_failed", f"{self.model_id}: {why}")
        self._failures = 1 if self.state is _S.READY else self._failures + 1
        self._stop = False
        if self._failures > _TRIES:
            self._give_up(error, _GIVEN_UP)
            return
        self.failure, self._wanted = error, False
        self._retry_at = self._world.now() + _BACKOFF
        self._move(_T.EXITED)
        self._timer = self._world.later(_BACKOFF, self._again)

    def _again(self) -> None:
        if not self._wanted:
            self._move(_T.STOP)
            return
        self._draining = False
        self._move(_T.RETRY)
        self._launch()

    def _give_up(self, error: SupervisorError, retry_in: float) -> None:
        self.failure, self._wanted = error, False
        self._retry_at = self._world.now() + retry_in
        self._move(_T.EXITED, _T.GAVE_UP)

    def _cancel(self) -> None:
        for pending in (self._timer, self._planning):
            if pending is not None and pending is not asyncio.current_task():
                pending.cancel()
        self._timer = self._planning = None

    def _gone(self) -> None:
        self.busy = 0
        if self.spec.lags:
            bytes_left = self.spec.size
            self.lagging += bytes_left

            def back() -> None:
                self.lagging -= bytes_left

            self._world.later(self.spec.lags, back)

    def _move(self, *triggers: Trigger) -> None:
        for trigger in triggers:
            self.state = advance(self.state, trigger)
        self._world.owner.instance_changed(self)
        self._world.changed(self)


class EngineWorld:
    """What engines share: the loop's time, the dice, the pool, and who owns them.

    Attributes:
        asked_to_stop: called before an engine obeys; ``changed``: when its owner has heard of a change; ``launched``:
            when a process begins to load.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, seed: int, pool: str) -> None:
        self.random = random.Random(seed)
        self.pool = pool
        self.owner: Owner = cast("Owner", None)
        self.asked_to_stop: Callable[[SimulatedInstance, str], None] = lambda _instance, _reason: None
        self.changed: Callable[[SimulatedInstance], None] = lambda _instance: None
        self.launched: Callable[[SimulatedInstance], None] = lambda _instance: None
        self._loop = loop
        self._tasks: set[asyncio.Task[None]] = set()
        self.now = loop.time
        self.soon = loop.call_soon

    def later(self, seconds: float, call: Callable[[], None]) -> asyncio.TimerHandle:
        """A timer."""
        return self._loop.call_later(seconds, call)

    def task(self, coroutine: Any) -> asyncio.Task[None]:
        """A task, held until it ends."""
        task: asyncio.Task[None] = self._loop.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


class SimulatedFleet:
    """Instances by model."""

    def __init__(self, specs: Mapping[str, ModelSpec], world: EngineWorld) -> None:
        self.instances = {name: SimulatedInstance(spec, world) for name, spec in specs.items()}

    def instance(self, entry: ModelEntry) -> SimulatedInstance:
        """The model's."""
        return self.instances[entry.id]

    def adapter(self, _entry: ModelEntry) -> EngineAdapter:
        """The same for all."""
        return cast("EngineAdapter", SimulatedAdapter())
