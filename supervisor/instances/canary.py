"""One try of the canary: a tiny model loaded with one build, in a child of its own, within a bound."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Literal

import anyio

from engines.contract import LaunchPlan, RunsHere, Verdict
from supervisor.events import EventBus
from supervisor.instances.exit_report import ExitReport
from supervisor.instances.instance import Instance
from supervisor.instances.lifecycle import InstanceState
from supervisor.instances.race import first_of
from supervisor.instances.restart_policy import RestartLimits
from supervisor.instances.tools import InstanceLimits, InstanceTools, no_flush, no_other_build
from supervisor.models.catalog import ModelEntry

# It takes a tenth of a second where nothing is wrong; a busy machine gets more, and then no answer is an answer.
CANARY_SECONDS = 60.0
_ENDS = (InstanceState.READY, InstanceState.FAILED, InstanceState.BACKOFF, InstanceState.STOPPED)

Outcome = Literal["lived", "died", "unknown"]


@dataclass(frozen=True, slots=True)
class CanaryResult:
    """What came of it; ``why`` in words, ``verdict`` and ``log`` where it died."""

    outcome: Outcome
    why: str
    verdict: Verdict | None = None
    log: tuple[str, ...] = ()


async def try_canary(
    entry: ModelEntry,
    plan: LaunchPlan,
    tools: InstanceTools,
    give_up: anyio.Event,
    blames_build: Callable[[Verdict], bool],
) -> CanaryResult:
    """Launch it by this plan as any model is launched, and stop it; nothing of it is told on the bus.

    Args:
        entry: the canary as a model.
        plan: names the build that is tried.
        tools: as for a model; where its log goes, too.
        give_up: set when somebody needs the machine: the answer is ``unknown`` then.
        blames_build: whether a failure may be the build's fault.
    """
    quiet = replace(
        tools,
        prepare=_as_planned(plan),
        bus=EventBus(tools.clock),
        changed=lambda _instance: None,
        ended=no_other_build,
        flush=no_flush,
    )
    limits = InstanceLimits(stall_timeout=CANARY_SECONDS, stop_grace=0.0, restart=RestartLimits(budget=0))
    instance = Instance(entry, quiet, limits)
    lived = interrupted = False
    async with anyio.create_task_group() as tasks:
        await tasks.start(instance.run)
        instance.want()
        with anyio.move_on_after(CANARY_SECONDS):
            first = await first_of(ended=lambda: instance.next(*_ENDS), gave_up=give_up.wait)
            interrupted = first == "gave_up"
        lived = instance.is_ready
        tasks.cancel_scope.cancel()  # a running engine is stopped first
    if lived:
        return CanaryResult("lived", "it loaded a tiny model")
    if interrupted:
        return CanaryResult("unknown", "somebody needed the machine")
    return _result(instance.last_exit, blames_build)


def _result(report: ExitReport | None, blames_build: Callable[[Verdict], bool]) -> CanaryResult:
    if report is None or report.planned or not report.by_itself:
        return CanaryResult("unknown", "it was neither ready nor ended in time")
    verdict = report.verdict
    died = verdict.runs_here is RunsHere.NO or blames_build(verdict)
    return CanaryResult("died" if died else "unknown", verdict.why, verdict, report.log)


def _as_planned(plan: LaunchPlan) -> Callable[[ModelEntry], Awaitable[LaunchPlan]]:
    async def prepare(_entry: ModelEntry) -> LaunchPlan:
        return plan

    return prepare
