"""How a process ended, and what that means: the input and the output of ``engines.evidence.classify``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from engines.vocabulary import Blame, FailureKind, RunsHere


@dataclass(frozen=True, slots=True)
class ExitEvidence:
    """All that is known of how a process ended; the input of ``engines.evidence.classify``.

    Attributes:
        engine: the engine's kind, by its public name.
        exit_code, signal: at most one is set; both None when it could not be started, or still runs.
        spawn_errno: errno of the failed start.
        stopped_by_supervisor: it did not end by itself: its exit says nothing.
        asked_to_stop: the supervisor had asked for the stop.
        log: last lines of stdout and stderr, in order of arrival.
        host_hints: lines read elsewhere: kernel log, cgroup counters.
    """

    engine: str
    argv: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    platform: str = "linux"
    exit_code: int | None = None
    signal: int | None = None
    spawn_errno: int | None = None
    spawn_error: str | None = None
    elapsed_seconds: float | None = None
    reached_ready: bool = False
    stopped_by_supervisor: bool = False
    asked_to_stop: bool = False
    log: tuple[str, ...] = ()
    host_hints: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Verdict:
    """Why a process ended, what has to change, and whether its build can run here."""

    kind: FailureKind
    blames: Blame
    runs_here: RunsHere
    why: str
