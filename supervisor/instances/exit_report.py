"""How a launch ended, and why."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from engines.contract import ExitEvidence, LaunchPlan, RunsHere, Verdict
from supervisor.errors import InstanceError, SupervisorError
from supervisor.events import LaunchExited
from supervisor.processes.held_memory import Resident

Phase = Literal["starting", "ready", "stopping"]

# Failures that the same plan on the same build meets again: no retry helps.
_HOPELESS = frozenset(
    {
        "BAD_ARGUMENT",
        "MODEL_UNREADABLE",
        "MODEL_UNSUPPORTED",
        "MISSING_LIBRARY",
        "INCOMPATIBLE_CPU",
        "INCOMPATIBLE_DRIVER",
    }
)
LOG_LINES = 40


@dataclass(frozen=True, slots=True)
class ExitReport:
    """One ended launch; ``planned`` when we had asked for the stop, ``by_itself`` when we had not ended it.

    ``blamed_on_request``: a request that was on it had been on another crash: this one counts against nobody else.
    ``memory``: what it held when it was last seen.
    """

    phase: Phase
    exit_code: int | None
    signal: int | None
    verdict: Verdict
    planned: bool
    log: tuple[str, ...]
    at: float
    ready_for: float | None
    blamed_on_request: bool = False
    memory: Resident | None = None
    by_itself: bool = True

    @property
    def may_be_a_requests(self) -> bool:
        """Whether a request may be what ended it: it served, nobody asked for the end, and the build can run here."""
        return self.ready_for is not None and not self.planned and self.verdict.runs_here is not RunsHere.NO

    @property
    def hopeless(self) -> bool:
        """Whether the same start would end the same way."""
        return self.phase == "starting" and self.verdict.kind in _HOPELESS

    @property
    def ending(self) -> str:
        """``exit code 1`` or ``signal 9``."""
        if self.signal is not None:
            return f"signal {self.signal}"
        return "no start" if self.exit_code is None else f"exit code {self.exit_code}"


@dataclass(frozen=True, slots=True)
class LaunchEnd:
    """One ended launch by its id, and the launches that a request is to blame for, as this end tells."""

    launch: str
    report: ExitReport
    excused: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Ending:
    """The raw facts of an end, before they are explained."""

    phase: Phase
    exit_code: int | None
    signal: int | None
    log: tuple[str, ...]
    at: float
    elapsed: float
    ready_for: float | None
    planned: bool
    stopped_by_supervisor: bool
    spawn_errno: int | None = None
    spawn_error: str | None = None
    memory: Resident | None = None
    host_hints: tuple[str, ...] = ()


def explain(plan: LaunchPlan, ending: Ending) -> ExitReport:
    """Classify the end of a launch."""
    from engines.evidence import classify  # noqa: PLC0415  large, and no daemon needs it to listen

    evidence = ExitEvidence(
        engine=plan.engine.value,
        argv=(str(plan.executable), *plan.argv),
        env=plan.env,
        exit_code=ending.exit_code,
        signal=ending.signal,
        spawn_errno=ending.spawn_errno,
        spawn_error=ending.spawn_error,
        elapsed_seconds=ending.elapsed,
        reached_ready=ending.ready_for is not None,
        stopped_by_supervisor=ending.stopped_by_supervisor,
        asked_to_stop=ending.planned,
        log=ending.log,
        host_hints=ending.host_hints,
    )
    verdict = classify(evidence)
    return ExitReport(
        phase=ending.phase,
        exit_code=ending.exit_code,
        signal=ending.signal,
        verdict=verdict,
        planned=ending.planned,
        log=ending.log,
        at=ending.at,
        ready_for=ending.ready_for,
        memory=ending.memory,
        by_itself=not ending.stopped_by_supervisor,
    )


def failure_of(model: str, report: ExitReport, given_up: InstanceError | None) -> SupervisorError:
    """What waiting requests are told of it; ``given_up``: why we ended it, if we did."""
    verdict = report.verdict
    facts = {"kind": verdict.kind.value, "blames": verdict.blames.value, "log": list(report.log[-10:])}
    if given_up is not None:
        return InstanceError(given_up.code, f"{model}: {given_up.message}", **facts)
    if report.phase == "starting":
        return InstanceError("start_failed", f"{model} did not start ({report.ending}): {verdict.why}", **facts)
    return InstanceError("instance_failed", f"{model} ended ({report.ending}): {verdict.why}", **facts)


def exit_event(instance: str, model: str, launch: str, report: ExitReport) -> LaunchExited:
    """What is published of it."""
    verdict = report.verdict
    return LaunchExited(
        instance=instance,
        model=model,
        launch=launch,
        phase=report.phase,
        exit_code=report.exit_code,
        signal=report.signal,
        kind=verdict.kind,
        blames=verdict.blames,
        why=verdict.why,
        planned=report.planned,
        log=report.log,
        blamed_on_request=report.blamed_on_request,
        anonymous_bytes=report.memory.anonymous if report.memory else None,
        resident_bytes=report.memory.resident if report.memory else None,
    )
