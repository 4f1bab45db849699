"""Which build a model gets, with what is held against each; and what a launch's end means for the build under it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any

import anyio
from anyio.abc import TaskGroup, TaskStatus

from engines.contract import EngineAdapter, EngineKind, LaunchPlan
from supervisor.broker.pump import contained
from supervisor.builds.events import BuildFellBack
from supervisor.builds.health import BuildBook
from supervisor.builds.inspect import FoundBuild
from supervisor.builds.selection import Selection, choose
from supervisor.builds.shelf import BuildShelf
from supervisor.builds.standing import (
    BuildHealth,
    LaunchBegan,
    LaunchEnded,
    LaunchesExcused,
    LaunchGood,
    LaunchReady,
    ModelMark,
    Standing,
    Strike,
)
from supervisor.clock import Clock
from supervisor.errors import PlanError
from supervisor.events import EventBus
from supervisor.instances.exit_report import LaunchEnd
from supervisor.instances.instance import Instance
from supervisor.instances.launch import Launch
from supervisor.instances.lifecycle import InstanceState
from supervisor.models.catalog import ModelEntry

_AT_REST = frozenset({InstanceState.STOPPED, InstanceState.FAILED, InstanceState.BACKOFF})
_KEEP_LINES = 5
_SHOWN_STRIKES = 3


class BuildCare:
    """Tells the book of builds what happens to launches, and asks it before the next one.

    Args:
        stable_after: seconds that a launch must stay ready to count as good.
    """

    def __init__(
        self,
        adapter: Callable[[EngineKind], EngineAdapter],
        shelf: BuildShelf,
        book: BuildBook,
        clock: Clock,
        bus: EventBus,
        stable_after: Callable[[], float],
    ) -> None:
        self._adapter = adapter
        self._shelf = shelf
        self._book = book
        self._clock = clock
        self._bus = bus
        self._stable_after = stable_after
        self._tasks: TaskGroup | None = None

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Own the tasks that wait until launches count as good; ends when cancelled."""
        async with anyio.create_task_group() as tasks:
            self._tasks = tasks
            task_status.started()
            try:
                await anyio.sleep_forever()
            finally:
                self._tasks = None

    async def load(self) -> None:
        """Know what was known before; before the first ``select``."""
        await self._book.load()

    def select(self, entry: ModelEntry, builds: Sequence[FoundBuild]) -> Selection:
        """The build for the model's next launch, of those of its engine."""
        mark = model_mark(entry)
        return choose(
            builds,
            entry.build,
            preferred=self._book.pinned(entry.engine),
            advice=lambda build: self._book.advice(build, mark),
        )

    def why(self, entry: ModelEntry, selection: Selection, build: FoundBuild) -> str:
        """Why this build was chosen, in words for the plan."""
        if selection.warning is not None:
            return selection.warning
        if entry.build is not None:
            return "named by the model's config"
        if self._book.pinned(entry.engine) == build.name:
            return "put first by an operator (builds pin)"
        passed = [f"{name}: {reason}" for name, reason in selection.reasons if name != build.name]
        return "first in order" if not passed else f"first that can be used ({'; '.join(passed)})"

    def refusal(self, entry: ModelEntry, builds: Sequence[FoundBuild], selection: Selection) -> PlanError:
        """What is said where no build is left: each one with its reason and its evidence."""
        reasons = dict(selection.reasons)
        if not reasons:
            return PlanError(
                "no_build",
                f"there is no {entry.engine} build: put its executable on PATH, name it under "
                f"engines.{entry.engine}.builds, or install the extra `demo` (Linux x86-64).",
            )
        words = [f"{name}: {reason}" for name, reason in selection.reasons]
        rows = [
            _evidence(build, reasons[build.name], self._book.standing(build), model_mark(entry))
            for build in builds
            if build.name in reasons
        ]
        return PlanError(
            "build_unusable",
            f"no {entry.engine} build can be used for {entry.id}. {'; '.join(words)}. Install another build, or see "
            "`enginehouse builds list` and `builds clear`.",
            reasons=words,
            extras={"builds": rows},
        )

    def began(self, entry: ModelEntry, plan: LaunchPlan) -> None:
        """A launch is about to begin by this plan."""
        build = self._build_of(plan)
        if build is not None:
            self._book.happened(build, LaunchBegan(self._clock.wall(), model_mark(entry)))

    def ended(self, entry: ModelEntry, plan: LaunchPlan, end: LaunchEnd) -> bool:
        """Note how a launch ended; whether the next one is to begin at once, since this build is not used again.

        That one's plan says with which build, or that none is left.
        """
        report = end.report
        for excused in self._shelf.of(entry.engine) if end.excused else ():
            self._book.happened(excused, LaunchesExcused(self._clock.wall(), end.excused))
        build = self._build_of(plan)
        if build is None:
            return False
        now, mark = self._clock.wall(), model_mark(entry)
        if report.ready_for is not None and report.ready_for >= self._stable_after():
            self._book.happened(build, LaunchGood(now, mark, now - report.ready_for))
        counts = report.by_itself and not report.planned and not report.blamed_on_request
        happening = LaunchEnded(
            now,
            mark,
            report.verdict if counts else None,
            was_ready=report.ready_for is not None,
            log=report.log[-_KEEP_LINES:],
            can_check=self._adapter(entry.engine).canary() is not None,
            launch=end.launch,
        )
        self._book.happened(build, happening)
        advised = self._book.advice(build, mark)
        against = advised.refused or advised.last_resort
        if not counts or against is None:
            return False
        following = self.select(entry, self._shelf.of(entry.engine)).build
        if following is not None and following.name == build.name:
            return False
        self._bus.publish(
            BuildFellBack(entry.id, build.name, following.name if following else None, report.verdict.why)
        )
        return True

    def instance_changed(self, instance: Instance) -> None:
        """Observer of every instance: what became ready, and what ended without a launch."""
        plan = instance.plan
        build = self._build_of(plan) if plan is not None else None
        if build is None:
            return
        mark = model_mark(instance.entry)
        now = self._clock.wall()
        if instance.state is InstanceState.READY and instance.launch is not None:
            self._book.happened(build, LaunchReady(now, mark))
            if self._tasks is not None:
                watching = self._watch_stable(instance, instance.launch, build, mark)
                self._tasks.start_soon(contained, self._bus, f"stability of {instance.id}", watching)
        elif instance.state in _AT_REST and self._book.standing(build).trial == instance.model_id:
            self._book.happened(build, LaunchEnded(now, mark, None, was_ready=False))

    async def _watch_stable(self, instance: Instance, launch: Launch, build: FoundBuild, mark: ModelMark) -> None:
        began = self._clock.wall()
        await anyio.sleep(self._stable_after())
        if instance.launch is launch and instance.is_ready:
            self._book.happened(build, LaunchGood(self._clock.wall(), mark, began))

    def _build_of(self, plan: LaunchPlan) -> FoundBuild | None:
        """The build as it was planned with; None when its bytes have changed since."""
        for build in self._shelf.of(plan.engine):
            if build.name == plan.build and build.fingerprint == plan.fingerprint:
                return build
        return None


def model_mark(entry: ModelEntry) -> ModelMark:
    """What a pair of build and model holds for: other files or other settings are another try."""
    size = entry.metadata.file_bytes if entry.metadata else None
    whole = f"{[str(file) for file in entry.files]} {size} {entry.settings!r}"
    return ModelMark(entry.id, hashlib.sha256(whole.encode(errors="surrogateescape")).hexdigest()[:12])


def strike_row(strike: Strike) -> dict[str, Any]:
    """A strike as a document."""
    at = datetime.fromtimestamp(strike.at, UTC).isoformat(timespec="milliseconds")
    return {"at": at, "kind": strike.kind, "model": strike.model, "why": strike.why, "log": list(strike.log)}


def _evidence(build: FoundBuild, reason: str, standing: Standing, mark: ModelMark) -> dict[str, Any]:
    strikes = list(standing.all_strikes)
    strikes += [crash for pair in standing.pairs if pair.of == mark for crash in pair.crashes if crash not in strikes]
    return {
        "name": build.name,
        "health": BuildHealth.QUARANTINED.value if build.problem else standing.health.value,
        "reason": reason,
        "strikes": [strike_row(strike) for strike in strikes[-_SHOWN_STRIKES:]],
    }
