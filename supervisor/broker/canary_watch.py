"""When the canary is asked, and what its answer means: in the background, and never before somebody who waits.

It is asked when a build or a model may be to blame, when a build's cool-down is over, and once for a new or changed
build when nothing has happened for a while.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
from anyio.abc import TaskStatus

from engines.contract import Capability, EngineAdapter, EngineKind, LaunchPlan, LaunchSettings
from supervisor.builds.events import CanaryTried
from supervisor.builds.health import BuildBook
from supervisor.builds.inspect import FoundBuild
from supervisor.builds.shelf import BuildShelf
from supervisor.builds.standing import BuildHealth, CanaryDied, CanaryLived, CooldownOver
from supervisor.clock import Clock
from supervisor.errors import SupervisorError
from supervisor.events import EventBus, InternalError
from supervisor.instances.canary import CanaryResult
from supervisor.models.catalog import ModelEntry

CANARY_ID = "~canary"
# While somebody waits or a model loads, it is looked again so often whether they are done.
_LOOK_AGAIN_SECONDS = 2.0
# A build that gave no answer, as for want of memory, is asked again after this long.
_NO_ANSWER_SECONDS = 600.0
_NEW_BUILD = "it has not been tried yet"

Try = Callable[[ModelEntry, LaunchPlan, anyio.Event], Awaitable[CanaryResult]]


@dataclass(frozen=True, slots=True)
class CanaryTools:
    """What the watch needs of the outside.

    Attributes:
        plan: a plan for a model on this build.
        attempt: one try.
        settings_of: the launch settings of the model whose load is in question.
        busy: whether anybody waits for an engine, or one is loading or ending.
        idle_check: after so many idle seconds a build that was never tried is; None: not at all.
        folder: where the canary's files are put while it is tried.
    """

    adapter: Callable[[EngineKind], EngineAdapter]
    plan: Callable[[ModelEntry, FoundBuild], Awaitable[LaunchPlan]]
    attempt: Try
    settings_of: Callable[[str], LaunchSettings | None]
    busy: Callable[[], bool]
    idle_check: Callable[[], float | None]
    folder: Path


@dataclass(frozen=True, slots=True)
class _Job:
    build: FoundBuild
    cause: str


class CanaryWatch:
    """See the module; ``run`` must be running, and ``look`` is called when anything may have changed."""

    def __init__(self, shelf: BuildShelf, book: BuildBook, tools: CanaryTools, clock: Clock, bus: EventBus) -> None:
        self._shelf = shelf
        self._book = book
        self._tools = tools
        self._clock = clock
        self._bus = bus
        self._news = anyio.Event()
        self._give_up = anyio.Event()
        self._idle_since = clock.monotonic()
        self._unanswered: dict[tuple[str, str | None], float] = {}

    def look(self) -> None:
        """Something has changed: there may be work, or the work at hand may be in somebody's way."""
        if self._tools.busy():
            self._idle_since = self._clock.monotonic()
            self._give_up.set()
        self._news.set()

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Try, one after the other, until cancelled."""
        task_status.started()
        await self._book.load()
        while True:
            self._news = anyio.Event()
            job, wait = self._next()
            if job is not None:
                await self._try(job)
                continue
            with anyio.move_on_after(wait):
                await self._news.wait()

    def _next(self) -> tuple[_Job | None, float]:
        """What to do now; else how many seconds may pass until there is something."""
        now, wait = self._clock.monotonic(), math.inf
        builds = [build for build in self._shelf.builds() if build.fingerprint is not None and build.problem is None]
        for build in builds:
            if now < (until := self._unanswered.get((build.name, build.fingerprint), 0.0)):
                wait = min(wait, until - now)
            elif (cause := self._book.wants_canary(build)) is not None:
                return self._unless_busy(_Job(build, cause))
            else:
                wait = min(wait, self._book.seconds_until_due(build))
        job, rest = self._new_build(builds, now)
        return self._unless_busy(job) if job is not None else (None, min(wait, rest))

    def _unless_busy(self, job: _Job) -> tuple[_Job | None, float]:
        return (None, _LOOK_AGAIN_SECONDS) if self._tools.busy() else (job, 0.0)

    def _new_build(self, builds: list[FoundBuild], now: float) -> tuple[_Job | None, float]:
        limit = self._tools.idle_check()
        if limit is None:
            return None, math.inf
        for build in builds:
            standing = self._book.standing(build)
            asked = (build.name, build.fingerprint) in self._unanswered
            if standing.checked or asked or standing.health in {BuildHealth.QUARANTINED, BuildHealth.PROBATION}:
                continue
            if self._tools.adapter(build.engine).canary() is None:
                continue
            rest = self._idle_since + limit - now
            return (_Job(build, _NEW_BUILD), 0.0) if rest <= 0 else (None, rest)
        return None, math.inf

    async def _try(self, job: _Job) -> None:
        build, began = job.build, self._clock.monotonic()
        self._give_up = anyio.Event()
        try:
            result = await self._attempt(build)
        except (SupervisorError, OSError) as error:
            result = CanaryResult("unknown", str(error))
        except Exception as error:  # noqa: BLE001  a fault of ours must not end the watch
            self._bus.publish(InternalError(f"canary of {build.name}", repr(error), ""))
            result = CanaryResult("unknown", repr(error))
        if result is None:
            self._book.happened(build, CooldownOver(self._clock.wall()))
            self._unanswered[build.name, build.fingerprint] = self._clock.monotonic() + _NO_ANSWER_SECONDS
            return
        seconds = self._clock.monotonic() - began
        self._bus.publish(CanaryTried(build.name, build.engine, job.cause, result.outcome, result.why, seconds))
        if result.outcome == "lived":
            self._book.happened(build, CanaryLived(self._clock.wall()))
        elif result.outcome == "died" and result.verdict is not None:
            self._book.happened(build, CanaryDied(self._clock.wall(), result.verdict, result.log[-5:]))
        elif not self._give_up.is_set():
            self._unanswered[build.name, build.fingerprint] = self._clock.monotonic() + _NO_ANSWER_SECONDS

    async def _attempt(self, build: FoundBuild) -> CanaryResult | None:
        """None where this engine has no canary."""
        adapter = self._tools.adapter(build.engine)
        files = adapter.canary()
        if files is None:
            return None
        with _written(self._tools.folder, dict(files)) as paths:
            entry = self._entry(adapter, build, tuple(paths))
            plan = await self._tools.plan(entry, build)
            return await self._tools.attempt(entry, plan, self._give_up)

    def _entry(self, adapter: EngineAdapter, build: FoundBuild, files: tuple[Path, ...]) -> ModelEntry:
        """The canary as a model, on the devices that the model in question was given."""
        known = adapter.settings_type.model_fields
        pairs = self._book.standing(build).in_question
        questioned = self._tools.settings_of(pairs[0].of.model) if pairs else None
        wishes: dict[str, Any] = {"ctx_size": 256, "slots": 1}
        wishes |= {name: getattr(questioned, name, None) for name in ("devices", "n_gpu_layers")}
        settings = {name: value for name, value in wishes.items() if name in known and value is not None}
        return ModelEntry(
            id=CANARY_ID,
            engine=build.engine,
            files=files,
            aliases=(),
            serves=frozenset({Capability.CHAT}),
            settings=adapter.settings_type(**settings),
            defaults=adapter.settings_type(),
            metadata=adapter.read_metadata(files),
            broken=None,
            build=build.name,
            keep_alive=0.0,
            pinned=False,
            preload=False,
            allow_paging=True,
        )


@contextmanager
def _written(folder: Path, files: dict[str, bytes]) -> Iterator[list[Path]]:
    """The files, for as long as they are needed: a third of a megabyte, as a rule in memory."""
    with tempfile.TemporaryDirectory(prefix="canary-", dir=folder) as place:
        paths = [Path(place, name) for name in files]
        for path in paths:
            path.write_bytes(files[path.name])
        yield paths
