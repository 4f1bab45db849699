"""The grammar of log patterns: how an engine's folder writes down what its lines mean, and how a log is searched.

A rule never decides alone. It says what one line means and how near to the cause that line stands (`Rank`);
``engines.evidence`` weighs the findings against the exit.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum, IntEnum
from functools import cache

from engines.contract import Blame, ExitEvidence, FailureKind, RunsHere


class Rank(IntEnum):
    """How near to the cause a line stands; the lowest wins, and of equals the last.

    ``ROOT`` names the cause. ``GENERAL`` names the step that failed. ``ABORT`` tells how the process died.
    ``AFTERMATH`` is printed after any failure. ``SOFT`` is printed by engines that go on without the thing, so it
    explains an exit only if nothing better does. ``HINT`` is weaker still.
    """

    ROOT = 0
    GENERAL = 1
    ABORT = 2
    AFTERMATH = 3
    SOFT = 4
    HINT = 5


class Level(Enum):
    """Who printed a line, and how loudly; ``RAW`` lines come from a run-time library, a shell or the loader."""

    ERROR = "error"
    WARNING = "warning"
    QUIET = "quiet"
    RAW = "raw"


@dataclass(frozen=True, slots=True)
class Line:
    """One log line without its prefix."""

    level: Level
    text: str


@dataclass(frozen=True, slots=True)
class Meaning:
    """What a line or an exit says; ``says`` is the first half of the owner's sentence."""

    kind: FailureKind
    blames: Blame
    says: str
    runs_here: RunsHere | None = None


Refine = Callable[[re.Match[str], ExitEvidence], Meaning | None]
"""Decides by the matched text; None means that the line says nothing after all."""


@dataclass(frozen=True, slots=True)
class Rule:
    """What lines with ``needle`` in them mean.

    Attributes:
        needle: literal text that every match has: the cheap test. It begins at the beginning of a word, or at none.
        pattern: regular expression, searched when the needle is there; None when the needle is enough. Compiled when
            it is first needed, since most never are and the daemon starts often.
        raw: also lines without an engine's prefix; then ``pattern`` should be anchored, since a line without a
            prefix may also be text of a user or of a model.
        warnings: also warnings.
    """

    needle: str
    meaning: Meaning | Refine
    pattern: str | None = None
    rank: Rank = Rank.ROOT
    raw: bool = False
    warnings: bool = False


@dataclass(frozen=True, slots=True)
class Finding:
    """A rule that matched."""

    meaning: Meaning
    rank: Rank
    position: int
    line: Line


def said(needle: str, meaning: Meaning | Refine, *, rank: Rank = Rank.ROOT, warnings: bool = False) -> Rule:
    """An error line of the engine's own logger that holds ``needle``."""
    return Rule(needle, meaning, rank=rank, warnings=warnings)


def says(
    needle: str, pattern: str, meaning: Meaning | Refine, *, rank: Rank = Rank.ROOT, warnings: bool = False
) -> Rule:
    """An error line of the engine's own logger that matches ``pattern`` somewhere."""
    return Rule(needle, meaning, pattern, rank, warnings=warnings)


def raw(needle: str, pattern: str, meaning: Meaning | Refine, *, rank: Rank = Rank.ROOT) -> Rule:
    """A line, with an engine's prefix or without any, that matches ``pattern`` from its start."""
    return Rule(needle, meaning, "^(?:" + pattern + ")", rank, raw=True)


class RuleIndex:
    """Rules by a word that their needle must bring, so that a line meets only the few that can match."""

    def __init__(self, rules: Iterable[Rule]) -> None:
        self._by_word: dict[str, list[tuple[int, int, Rule]]] = {}
        self._always: list[tuple[int, int, Rule]] = []
        for order, rule in enumerate(rules):
            entry = (int(rule.rank), order, rule)
            whole_words = _WHOLE_WORD.findall(rule.needle)
            if whole_words:
                self._by_word.setdefault(max(whole_words, key=len), []).append(entry)
            else:
                self._always.append(entry)

    def find(self, lines: Sequence[Line], evidence: ExitEvidence) -> list[Finding]:
        """Every finding, in the order of the lines; of each line only the nearest to the cause."""
        findings = []
        seen: dict[Line, tuple[Meaning, Rank] | None] = {}
        for position, line in enumerate(lines):
            if line.level is Level.QUIET:
                continue
            if line not in seen:
                seen[line] = self._best(line, evidence)
            best = seen[line]
            if best is not None:
                findings.append(Finding(best[0], best[1], position, line))
        return findings

    def _best(self, line: Line, evidence: ExitEvidence) -> tuple[Meaning, Rank] | None:
        """The first match in the order of rank, then of writing."""
        candidates = list(self._always)
        for word in set(_WORD.findall(line.text)):
            candidates += self._by_word.get(word, ())
        candidates = [entry for entry in candidates if entry[2].needle in line.text]
        candidates.sort(key=_by_rank_and_order)
        for _, _, rule in candidates:
            if _applies(rule, line.level):
                meaning = _meaning(rule, line.text, evidence)
                if meaning is not None:
                    return meaning, rule.rank
        return None


_WORD = re.compile(r"\w+")
_WHOLE_WORD = re.compile(r"(?<!\w)\w+(?=\W)")


def _by_rank_and_order(entry: tuple[int, int, Rule]) -> tuple[int, int]:
    return entry[:2]


def _applies(rule: Rule, level: Level) -> bool:
    """Whether a rule reads lines of this level."""
    return level is Level.ERROR or (level is Level.RAW and rule.raw) or (level is Level.WARNING and rule.warnings)


def _meaning(rule: Rule, text: str, evidence: ExitEvidence) -> Meaning | None:
    """What the rule makes of the text; None if it does not match."""
    if rule.pattern is None and isinstance(rule.meaning, Meaning):
        return rule.meaning
    match = _compiled(rule.pattern or re.escape(rule.needle)).search(text)
    if match is None:
        return None
    return rule.meaning if isinstance(rule.meaning, Meaning) else rule.meaning(match, evidence)


@cache
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern)


@dataclass(frozen=True, slots=True)
class LogPatterns:
    """All that one engine's folder knows of its log.

    Attributes:
        read: takes a line apart; None for noise, such as a debugger's back trace.
        loaded: a line that only an engine with a loaded model prints: what failed before it did not end the process.
        leaving: a line of an orderly exit.
        at_exit: the engine's own habits that no line tells, asked when no line explains the exit.
    """

    rules: RuleIndex
    read: Callable[[str], Line | None]
    loaded: re.Pattern[str] | None = None
    leaving: re.Pattern[str] | None = None
    at_exit: Callable[[ExitEvidence, Sequence[Line]], Meaning | None] | None = None


def nearest(findings: Iterable[Finding]) -> Finding | None:
    """The finding nearest to the cause; of equals the last, since an engine survives its earlier errors."""
    best: Finding | None = None
    for finding in findings:
        if best is None or finding.rank <= best.rank:
            best = finding
    return best


def option(argv: Sequence[str], *names: str) -> str | None:
    """The value of the last of these options in an argv, ``--name value`` or ``--name=value``; None if absent."""
    value = None
    for index, word in enumerate(argv):
        name, equals, rest = word.partition("=")
        if name in names:
            value = rest if equals else (argv[index + 1] if index + 1 < len(argv) else "")
    return value


def has_option(argv: Sequence[str], *names: str) -> bool:
    """Whether an argv has any of these options."""
    return any(word.partition("=")[0] in names for word in argv)


_HIGHEST_PORT = 65535


def bad_port(evidence: ExitEvidence) -> bool:
    """Whether the plan gives a port above 65535, with which some servers hang without a word."""
    port = option(evidence.argv, "--port", "--listen-port")
    return port is not None and port.strip().isdecimal() and int(port.strip()[:9]) > _HIGHEST_PORT


OUT_OF_HOST_MEMORY = Meaning(
    FailureKind.OUT_OF_HOST_MEMORY, Blame.PLAN, "Host memory ran out: an allocation of the engine failed"
)
NO_MORE_THREADS = Meaning(
    FailureKind.OUT_OF_HOST_MEMORY,
    Blame.HOST,
    "The host refused another thread or process: raise its process limit or free memory",
)
OUT_OF_DEVICE_MEMORY = Meaning(
    FailureKind.OUT_OF_DEVICE_MEMORY, Blame.PLAN, "Device memory ran out: plan fewer layers or a smaller context"
)
MODEL_UNREADABLE = Meaning(FailureKind.MODEL_UNREADABLE, Blame.MODEL, "The model's files can't be read")
MODEL_DAMAGED = Meaning(
    FailureKind.MODEL_UNREADABLE, Blame.MODEL, "The model's file is damaged or cut short: fetch it again"
)
MODEL_HELD_BACK = Meaning(
    FailureKind.MODEL_UNREADABLE, Blame.HOST, "The host does not let the engine read the model's file"
)
MODEL_UNSUPPORTED = Meaning(
    FailureKind.MODEL_UNSUPPORTED, Blame.MODEL, "This build does not support the model as its file describes it"
)
BAD_ARGUMENT = Meaning(FailureKind.BAD_ARGUMENT, Blame.PLAN, "The engine refused one of its arguments")
DEVICE_LOST = Meaning(FailureKind.DEVICE_LOST, Blame.HOST, "The device was lost, hung or reset")
KERNEL_FAULT = Meaning(FailureKind.CRASH, Blame.BUILD, "A computation on the device crashed")
NO_CODE_FOR_DEVICE = Meaning(
    FailureKind.INCOMPATIBLE_DRIVER, Blame.BUILD, "This build has no code for this device: use another build"
)
NO_DRIVER = Meaning(
    FailureKind.INCOMPATIBLE_DRIVER, Blame.HOST, "The device's driver is absent, too old, or does not answer"
)
ADDRESS_IN_USE = Meaning(FailureKind.ADDRESS_IN_USE, Blame.HOST, "The engine could not listen: its address is taken")
ENGINE_ASSERT = Meaning(FailureKind.ENGINE_ASSERT, Blame.BUILD, "The engine stopped itself at a failed check")
CRASH = Meaning(FailureKind.CRASH, Blame.BUILD, "The engine crashed")

_REFUSALS: tuple[tuple[re.Pattern[str], Meaning], ...] = (
    (
        re.compile(r"cannot allocate memory|not enough (?:space|memory)|out of memory", re.IGNORECASE),
        OUT_OF_HOST_MEMORY,
    ),
    (
        re.compile(r"too many open files|file table overflow", re.IGNORECASE),
        Meaning(
            FailureKind.MODEL_UNREADABLE, Blame.HOST, "The host's limit of open files was reached", RunsHere.UNKNOWN
        ),
    ),
    (
        re.compile(
            r"permission denied|access is denied|operation not permitted|input/output error|stale (?:nfs )?file handle"
            r"|transport endpoint|connection timed out|remote i/o error|no such device|key has|host is down"
            r"|network|resource deadlock|device not configured|structure needs cleaning",
            re.IGNORECASE,
        ),
        MODEL_HELD_BACK,
    ),
)


def of_refusal(text: str) -> Meaning:
    """What the system's own words for a failed open, read or map of a model's file mean."""
    for pattern, meaning in _REFUSALS:
        if pattern.search(text):
            return meaning
    return MODEL_UNREADABLE
