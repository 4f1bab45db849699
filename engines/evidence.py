"""Why a process ended: `classify`, a pure function from what is known of an exit to a verdict.

The engines' folders say what their log lines mean (``log_patterns.py``); here the lines are weighed against the exit
and against what the host said. Nothing in here reads a file, a clock or a socket.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from engines.contract import Blame, ExitEvidence, FailureKind, RunsHere, Verdict
from engines.evidence_exits import (
    DISK_FAILED,
    ILLEGAL_INSTRUCTION,
    LEFT_UNASKED,
    LOST_BY_KERNEL,
    OOM_KILLED,
    REFUSED_SIGNATURE,
    STOPPED_OUTSIDE,
    Death,
    Hints,
    of_death,
    of_failed_start,
    read_death,
    read_hints,
)
from engines.evidence_rules import Finding, Level, Line, LogPatterns, Meaning, Rank, bad_port, nearest
from engines.llama_cpp import log_patterns as llama_cpp
from engines.mlx import log_patterns as mlx
from engines.sd_cpp import log_patterns as sd_cpp

_PATTERNS: Mapping[str, LogPatterns] = {
    "llama.cpp": llama_cpp.PATTERNS,
    "stable-diffusion.cpp": sd_cpp.PATTERNS,
    "mlx": mlx.PATTERNS,
    "mlx_lm": mlx.PATTERNS,
}
TAIL_LINES = 200
"""Lines of the log that are looked at: what ended a process stands near its end."""
_HEAD_CHARACTERS = 400
_END_CHARACTERS = 200
_PIECES = 4
_QUOTED_CHARACTERS = 200
_OVERTAKEN_LINES = 6
_COLOUR = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")

_ONLY_AT_START = frozenset(
    {
        FailureKind.MODEL_UNREADABLE,
        FailureKind.MODEL_UNSUPPORTED,
        FailureKind.BAD_ARGUMENT,
        FailureKind.ADDRESS_IN_USE,
    }
)
_OF_A_DEVICE = frozenset({FailureKind.CRASH, FailureKind.DEVICE_LOST, FailureKind.ENGINE_ASSERT})
_NEVER_RAN = frozenset({FailureKind.MISSING_LIBRARY, FailureKind.INCOMPATIBLE_CPU, FailureKind.INCOMPATIBLE_DRIVER})
_RAN = _ONLY_AT_START | {FailureKind.OUT_OF_DEVICE_MEMORY, FailureKind.OUT_OF_HOST_MEMORY}

_NO_REASON = Meaning(FailureKind.UNKNOWN, Blame.NOBODY, "Neither the log nor the exit says why the engine ended")
_STOPPED_BY_US = Meaning(
    FailureKind.UNKNOWN, Blame.NOBODY, "The supervisor ended the engine, and its log does not say what was wrong"
)
_ASKED = Meaning(FailureKind.KILLED, Blame.NOBODY, "The engine was asked to stop")
_BAD_PORT = Meaning(FailureKind.BAD_ARGUMENT, Blame.PLAN, "The plan gives a port above 65535")


@dataclass(frozen=True, slots=True)
class _Case:
    """An exit, and what its log and its host say, taken apart."""

    evidence: ExitEvidence
    death: Death
    hints: Hints
    patterns: LogPatterns
    lines: tuple[Line, ...]
    finding: Finding | None


@dataclass(frozen=True, slots=True)
class _Reason:
    """A meaning and the line or fact that decided for it."""

    meaning: Meaning
    fact: str | None = None
    from_log: bool = False


def classify(evidence: ExitEvidence) -> Verdict:
    """Says why a process ended, what has to change before a retry can work, and whether its build can run here.

    Pure and total: absurd or empty evidence gives UNKNOWN, never an exception. Takes below 5 ms for 200 lines.
    """
    death = read_death(evidence)
    reason = _reason(evidence, death)
    return Verdict(
        kind=reason.meaning.kind,
        blames=reason.meaning.blames,
        runs_here=_runs_here(evidence, reason),
        why=_sentence(reason, death),
    )


def _reason(evidence: ExitEvidence, death: Death) -> _Reason:
    """The steps in order: our own stop, no start, the processor's word, a stop from outside, then hints and log."""
    if evidence.asked_to_stop:
        return _Reason(_ASKED)
    if death.not_started:
        return _Reason(of_failed_start(evidence), evidence.spawn_error)
    hints = read_hints(evidence)
    if death.signal == "SIGILL" or (hints.invalid_opcode and death.by_fault):
        return _Reason(ILLEGAL_INSTRUCTION, hints.invalid_opcode)
    case = _case(evidence, death, hints)
    if death.by_stop and not evidence.stopped_by_supervisor:
        return _stopped_outside(case)
    return _by_hints(case) or _by_finding(case) or _by_exit(case)


def _case(evidence: ExitEvidence, death: Death, hints: Hints) -> _Case:
    """Takes the log apart by the engine's patterns; an unknown engine is read as llama.cpp, the strictest format."""
    patterns = _PATTERNS.get(evidence.engine, llama_cpp.PATTERNS)
    lines = _lines(evidence, patterns)
    return _Case(evidence, death, hints, patterns, lines, nearest(_relevant(evidence, patterns, lines)))


def _lines(evidence: ExitEvidence, patterns: LogPatterns) -> tuple[Line, ...]:
    """The tail of the log, taken apart, without noise and without repetition of the line before."""
    lines: list[Line] = []
    for text in evidence.log[-TAIL_LINES:]:
        for piece in _COLOUR.sub("", _shortened(text)).split("\r")[-_PIECES:]:
            line = patterns.read(piece.rstrip())
            if line is not None and line.text and (not lines or line != lines[-1]):
                lines.append(line)
    return tuple(lines)


def _shortened(text: str) -> str:
    """Head and end of a very long line: the function stands in front, the system's own words at the end."""
    if len(text) <= _HEAD_CHARACTERS + _END_CHARACTERS:
        return text
    return text[:_HEAD_CHARACTERS] + " … " + text[-_END_CHARACTERS:]


def _relevant(evidence: ExitEvidence, patterns: LogPatterns, lines: tuple[Line, ...]) -> list[Finding]:
    """Findings that can have ended this process: what a start survived did not, unless it is a death itself."""
    findings = patterns.rules.find(lines, evidence)
    if not evidence.reached_ready or patterns.loaded is None:
        return findings
    loaded_at = max((at for at, line in enumerate(lines) if patterns.loaded.match(line.text)), default=-1)
    return [
        finding
        for finding in findings
        if finding.meaning.kind not in _ONLY_AT_START
        and (finding.rank is Rank.ABORT or finding.position > loaded_at - _slack(finding))
    ]


def _slack(finding: Finding) -> int:
    """Lines by which a finding may stand before the line that tells of a loaded model.

    The output of a library overtakes the engine's own log, which a thread writes.
    """
    return _OVERTAKEN_LINES if finding.line.level is Level.RAW else 0


def _stopped_outside(case: _Case) -> _Reason:
    """A stop that the supervisor did not cause: by the kernel, by somebody, or the program's own good order."""
    death, hints, finding = case.death, case.hints, case.finding
    if death.signal == "SIGKILL" and hints.out_of_memory:
        return _Reason(OOM_KILLED, hints.out_of_memory)
    if death.signal == "SIGKILL" and hints.signature:
        return _Reason(REFUSED_SIGNATURE, hints.signature)
    if finding is not None and not case.evidence.reached_ready and finding.rank <= Rank.GENERAL:
        return _Reason(finding.meaning, finding.line.text, from_log=True)
    habit = _habit(case)
    if habit is not None:
        return habit
    if death.code == 0:
        leaving = case.patterns.leaving
        left = leaving is not None and any(leaving.match(line.text) for line in case.lines)
        return _Reason(STOPPED_OUTSIDE if left else LEFT_UNASKED)
    return _Reason(of_death(death, case.evidence.argv) or _NO_REASON)


def _by_hints(case: _Case) -> _Reason | None:
    """What the kernel saw and the engine could not: a lost device, a failing disk."""
    death, hints = case.death, case.hints
    kind = case.finding.meaning.kind if case.finding is not None else None
    if hints.device_lost and (kind in _OF_A_DEVICE or (kind is None and death.by_fault)):
        return _Reason(LOST_BY_KERNEL, hints.device_lost)
    if hints.disk and (death.signal == "SIGBUS" or kind is FailureKind.MODEL_UNREADABLE):
        return _Reason(DISK_FAILED, hints.disk)
    return None


def _by_finding(case: _Case) -> _Reason | None:
    """The log's word, unless the process died of a fault that the line does not explain."""
    finding = case.finding
    if finding is None:
        return None
    explains = finding.rank <= Rank.AFTERMATH or case.evidence.stopped_by_supervisor
    if explains or of_death(case.death, case.evidence.argv) is None:
        return _Reason(finding.meaning, finding.line.text, from_log=True)
    return None


def _by_exit(case: _Case) -> _Reason:
    """Nothing in the log explains it."""
    evidence, hints = case.evidence, case.hints
    if hints.out_of_memory and not case.death.by_fault:
        return _Reason(OOM_KILLED, hints.out_of_memory)
    habit = _habit(case)
    if habit is not None:
        return habit
    if not evidence.reached_ready and bad_port(evidence):
        return _Reason(_BAD_PORT)
    if evidence.stopped_by_supervisor:
        return _Reason(_STOPPED_BY_US)
    return _Reason(of_death(case.death, evidence.argv) or _NO_REASON)


def _habit(case: _Case) -> _Reason | None:
    """What this engine's exits mean by themselves."""
    meaning = case.patterns.at_exit(case.evidence, case.lines) if case.patterns.at_exit is not None else None
    return _Reason(meaning) if meaning is not None else None


def _runs_here(evidence: ExitEvidence, reason: _Reason) -> RunsHere:
    """``yes`` once it was ready or failed for reasons that show that it ran; ``no`` only where it can't start here."""
    if evidence.reached_ready:
        return RunsHere.YES
    meaning = reason.meaning
    if meaning.runs_here is not None:
        return meaning.runs_here
    if meaning.kind in _NEVER_RAN:
        return RunsHere.NO
    if meaning.kind in _RAN and (reason.from_log or evidence.log):
        return RunsHere.YES
    return RunsHere.UNKNOWN


def _sentence(reason: _Reason, death: Death) -> str:
    """The owner's sentence: what it means, and the line or fact that decided."""
    if reason.fact and reason.from_log:
        return f"{reason.meaning.says}; the log says: {_quoted(reason.fact)}"
    if reason.fact:
        return f"{reason.meaning.says}; the host says: {_quoted(reason.fact)}"
    return f"{reason.meaning.says} ({death.words})."


def _quoted(text: str) -> str:
    """A line short enough for a sentence."""
    text = " ".join(text.split())
    return text if len(text) <= _QUOTED_CHARACTERS else text[: _QUOTED_CHARACTERS - 1] + "…"
