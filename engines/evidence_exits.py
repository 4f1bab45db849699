"""How a process ended, without its log: signals, exit codes of shells and of Windows, failed starts, kernel lines."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from engines.contract import Blame, ExitEvidence, FailureKind, RunsHere
from engines.evidence_rules import (
    CRASH,
    ENGINE_ASSERT,
    MODEL_HELD_BACK,
    NO_MORE_THREADS,
    OUT_OF_HOST_MEMORY,
    Meaning,
)

_LINUX = {
    1: "SIGHUP", 2: "SIGINT", 3: "SIGQUIT", 4: "SIGILL", 5: "SIGTRAP", 6: "SIGABRT", 7: "SIGBUS", 8: "SIGFPE",
    9: "SIGKILL", 10: "SIGUSR1", 11: "SIGSEGV", 12: "SIGUSR2", 13: "SIGPIPE", 14: "SIGALRM", 15: "SIGTERM",
    16: "SIGSTKFLT", 24: "SIGXCPU", 25: "SIGXFSZ", 26: "SIGVTALRM", 27: "SIGPROF", 29: "SIGIO", 30: "SIGPWR",
    31: "SIGSYS",
}  # fmt: skip
_MACOS = _LINUX | {
    7: "SIGEMT", 10: "SIGBUS", 12: "SIGSYS", 16: "SIGURG", 23: "SIGIO", 29: "SIGINFO", 30: "SIGUSR1", 31: "SIGUSR2",
}  # fmt: skip

STOP_SIGNALS = frozenset(
    {"SIGHUP", "SIGINT", "SIGQUIT", "SIGTERM", "SIGKILL", "SIGPIPE", "SIGALRM", "SIGUSR1", "SIGUSR2", "SIGVTALRM"}
    | {"SIGPROF", "SIGIO", "SIGPWR", "SIGINFO"}
)
"""Sent by somebody, rather than earned by a fault of the program."""

_SHELL_OFFSET = 128
_LOADER_FAILED = 127
_SHELL = re.compile(r"(?:sh|env|busybox|docker|podman|nice|timeout|setpriv|numactl|taskset)$")
_INVALID_CPU = Meaning(
    FailureKind.INCOMPATIBLE_CPU, Blame.BUILD, "This CPU does not have an instruction that the build uses"
)
_WRONG_PROGRAM = Meaning(
    FailureKind.INCOMPATIBLE_CPU, Blame.BUILD, "The program is damaged or made for another processor", RunsHere.NO
)
_LIMIT = Meaning(FailureKind.KILLED, Blame.HOST, "A limit of the host ended the engine")
_FORBIDDEN_CALL = Meaning(FailureKind.CRASH, Blame.HOST, "The host forbade a system call: loosen its seccomp profile")
_NOT_STARTED = Meaning(
    FailureKind.UNKNOWN, Blame.BUILD, "The program could not be started: it is missing or not executable", RunsHere.NO
)
_MISSING_LIBRARY = Meaning(
    FailureKind.MISSING_LIBRARY, Blame.BUILD, "A library that the build needs is missing or does not fit", RunsHere.NO
)
_STOPPED = Meaning(FailureKind.KILLED, Blame.NOBODY, "The engine was stopped from outside")

_WINDOWS: dict[int, Meaning] = {
    0xC0000005: CRASH,  # access violation
    0xC0000006: MODEL_HELD_BACK,  # in-page error: the disk under a mapped file failed
    0xC0000017: OUT_OF_HOST_MEMORY,
    0xC000001D: _INVALID_CPU,
    0xC0000022: Meaning(FailureKind.UNKNOWN, Blame.HOST, "Windows denied access to a part of the program"),
    0xC000007B: _MISSING_LIBRARY,  # a library of another architecture, or damaged
    0xC000009A: OUT_OF_HOST_MEMORY,
    0xC0000096: _INVALID_CPU,
    0xC000012D: OUT_OF_HOST_MEMORY,  # commit limit
    0xC0000130: _WRONG_PROGRAM,
    0xC0000135: _MISSING_LIBRARY,
    0xC0000138: _MISSING_LIBRARY,
    0xC0000139: _MISSING_LIBRARY,
    0xC000013A: _STOPPED,  # Ctrl+C
    0xC0000142: _MISSING_LIBRARY,
    0xC0000420: ENGINE_ASSERT,
    0xC06D007E: _MISSING_LIBRARY,  # delay-loaded module
    0xC06D007F: _MISSING_LIBRARY,
    0xC000026B: _STOPPED,  # the session ends
    0xC0000044: OUT_OF_HOST_MEMORY,  # quota
}
_WINDOWS_ERROR_BASE = 0x80000000
_FATAL_APP_EXIT = 0x40000015
_WINDOWS_ABORT = 3


@dataclass(frozen=True, slots=True)
class Death:
    """An exit in one form: a signal's name (also behind a shell's 128 + n), else a code, else a failed start."""

    signal: str | None = None
    code: int | None = None
    not_started: bool = False

    @property
    def by_stop(self) -> bool:
        """Ended as by a stop from outside, or in good order."""
        return self.signal in STOP_SIGNALS or self.code == 0

    @property
    def by_fault(self) -> bool:
        """Ended by a fault that the processor, the kernel or the program itself raised."""
        return self.signal is not None and self.signal not in STOP_SIGNALS

    @property
    def words(self) -> str:
        """``SIGSEGV``, ``exit code 1`` or ``exit code 0xC0000005``."""
        if self.signal:
            return self.signal
        if self.code is None:
            return "no exit code"
        return f"exit code {self.code:#X}".replace("0X", "0x") if self.code > 0xFFFF else f"exit code {self.code}"  # noqa: PLR2004  statuses are read in hex


def signal_names(platform: str) -> dict[int, str]:
    """Signal numbers of a platform and their names."""
    return _MACOS if platform.lower() in {"macos", "darwin"} else _LINUX


def read_death(evidence: ExitEvidence) -> Death:
    """The exit in one form; absurd numbers count as a plain failure."""
    names = signal_names(evidence.platform)
    if evidence.signal is not None:
        return Death(signal=names.get(evidence.signal, f"signal {evidence.signal}"))
    code = evidence.exit_code
    if code is None:
        return Death(not_started=evidence.spawn_errno is not None or bool(evidence.spawn_error))
    if _is_windows(evidence):
        return Death(signal="SIGABRT") if code == _WINDOWS_ABORT else Death(code=code & 0xFFFFFFFF)
    if -64 <= code < 0:  # noqa: PLR2004  Python's form of a signal
        return Death(signal=names.get(-code, f"signal {-code}"))
    if code - _SHELL_OFFSET in names:
        return Death(signal=names[code - _SHELL_OFFSET])
    return Death(code=code)


def _is_windows(evidence: ExitEvidence) -> bool:
    return evidence.platform.lower() in {"windows", "win32"} or (evidence.exit_code or 0) >= _WINDOWS_ERROR_BASE


def of_death(death: Death, argv: Sequence[str] = ()) -> Meaning | None:
    """What an exit means that no line and no hint explains; None if it says nothing.

    127 is the loader's, unless a shell stands between: then it is the shell's word for a program that it can't find.
    """
    if death.signal is not None:
        return _of_signal(death.signal)
    code = death.code or 0
    if code >= _WINDOWS_ERROR_BASE or code == _FATAL_APP_EXIT:
        return _WINDOWS.get(code, CRASH)
    if code == _LOADER_FAILED and argv and not _SHELL.search(argv[0]):
        return _MISSING_LIBRARY
    if code in {126, 127}:
        return _NOT_STARTED
    return None


def _of_signal(name: str) -> Meaning:
    if name == "SIGILL":
        return _INVALID_CPU
    if name == "SIGSYS":
        return _FORBIDDEN_CALL
    if name in {"SIGXCPU", "SIGXFSZ"}:
        return _LIMIT
    return _STOPPED if name in STOP_SIGNALS else CRASH


_HOST_REFUSED = Meaning(FailureKind.UNKNOWN, Blame.HOST, "The host refused to start the program")
_TOO_LONG = Meaning(FailureKind.BAD_ARGUMENT, Blame.PLAN, "The command is too long for the host")
_ERRNOS: dict[int, Meaning] = {
    1: _HOST_REFUSED,  # EPERM
    2: _NOT_STARTED,  # ENOENT: the program, or the loader that it names
    5: _HOST_REFUSED,  # EIO
    7: _TOO_LONG,  # E2BIG
    8: _WRONG_PROGRAM,  # ENOEXEC
    11: NO_MORE_THREADS,  # EAGAIN
    12: NO_MORE_THREADS,  # ENOMEM: fork failed, nothing of the plan was tried
    13: Meaning(
        FailureKind.UNKNOWN,
        Blame.HOST,
        "The host may not execute the program: mode bits or a noexec mount",
        RunsHere.NO,
    ),
    20: _NOT_STARTED,  # ENOTDIR
    23: _HOST_REFUSED,  # ENFILE
    24: _HOST_REFUSED,  # EMFILE
    26: _HOST_REFUSED,  # ETXTBSY
    35: NO_MORE_THREADS,  # EAGAIN of macOS
    79: _MISSING_LIBRARY,  # ELIBACC
    80: _MISSING_LIBRARY,  # ELIBBAD
    85: _WRONG_PROGRAM,  # EBADEXEC of macOS
    86: _WRONG_PROGRAM,  # EBADARCH of macOS
}
_SPAWN_WORDS: tuple[tuple[re.Pattern[str], Meaning], ...] = (
    (
        re.compile(r"bad cpu type|exec format|EBADARCH|EBADEXEC|not a valid win32|machine type", re.IGNORECASE),
        _WRONG_PROGRAM,
    ),
    (re.compile(r"memory|temporarily unavailable", re.IGNORECASE), NO_MORE_THREADS),
    (re.compile(r"permission|access is denied|not permitted", re.IGNORECASE), _ERRNOS[13]),
)


def of_failed_start(evidence: ExitEvidence) -> Meaning:
    """What a start means that the system refused."""
    known = _ERRNOS.get(evidence.spawn_errno) if evidence.spawn_errno is not None else None
    if known is not None:
        return known
    for pattern, meaning in _SPAWN_WORDS:
        if pattern.search(evidence.spawn_error or ""):
            return meaning
    return _NOT_STARTED


_OOM_HINT = re.compile(
    r"oom-kill|oom_(?:group_)?kill[ =:]+[1-9]|out of memory:|oom killer|oomd\b|oomkilled(?!\W*false)"
    r"|earlyoom|memorystatus: killing|jetsam|low memory: kill",
    re.IGNORECASE,
)
_NAME_IN_HINT = re.compile(
    r"(?:task=|Killed process \d+ \(|name=|killing_\w+ pid \d+ \[|traps: |kernel: (?:\[[ \d.]+\] )?)"
    r"(?P<name>[^\s,()\[\]:=]+)(?=[,)\[\] ])"
)
_LOST_DEVICE_HINT = re.compile(
    r"Xid[^:]*(?:\([^)]*\))?: *(?:8|32|38|46|48|54|56|61|62|63|64|69|74|79|92|94|95|110|119|120|121|136|140|143|154)\b"
    r"|fallen off the bus|GPU (?:reset|hang|recovery)|amdgpu.*(?:ring \S+ timeout|reset)|i915.*(?:hang|reset)"
    r"|\bxe\b.*(?:hang|reset|wedged)|\[drm\].*(?:hung|hang|reset)|GPURestart|device (?:lost|removed|wedged)"
    r"|nvidia.*(?:removed|suspend)|MMU fault.*unrecoverable",
    re.IGNORECASE,
)
_DISK_HINT = re.compile(
    r"I/O error|critical medium error|Buffer I/O|EXT4-fs error|BTRFS.*(?:csum|error)|nfs: server .* not responding"
    r"|XFS.*(?:error|corruption)|ata\d.*failed command|Unrecovered read error|ZFS.*error|failed to read page",
    re.IGNORECASE,
)
_INVALID_OPCODE_HINT = re.compile(r"trap invalid opcode|illegal instruction|EXC_BAD_INSTRUCTION", re.IGNORECASE)
_SIGNATURE_HINT = re.compile(r"code.?sign|AMFI|not valid: 0x|Gatekeeper|quarantine", re.IGNORECASE)
_SECCOMP_HINT = re.compile(r"type=1326|audit.*seccomp|sig=31", re.IGNORECASE)

_COMM_LENGTH = 15
_OURS = re.compile(r"llama|sd-server|^sd$|mlx|python|server_wrapper", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Hints:
    """The first line read elsewhere that tells of each thing; None if there is none."""

    out_of_memory: str | None = None
    device_lost: str | None = None
    disk: str | None = None
    invalid_opcode: str | None = None
    signature: str | None = None
    forbidden_call: str | None = None


def read_hints(evidence: ExitEvidence) -> Hints:
    """Lines of the kernel log, of cgroup counters and of the service manager, without those about other programs."""
    words = {word.rsplit("/", 1)[-1][:_COMM_LENGTH] for text in evidence.argv for word in text.split()}
    lines = [line[:1000] for line in evidence.host_hints[-200:] if _is_ours(line, words)]
    return Hints(
        out_of_memory=_first(lines, _OOM_HINT),
        device_lost=_first(lines, _LOST_DEVICE_HINT),
        disk=_first(lines, _DISK_HINT),
        invalid_opcode=_first(lines, _INVALID_OPCODE_HINT),
        signature=_first(lines, _SIGNATURE_HINT),
        forbidden_call=_first(lines, _SECCOMP_HINT),
    )


def _first(lines: Sequence[str], pattern: re.Pattern[str]) -> str | None:
    return next((line for line in lines if pattern.search(line)), None)


def _is_ours(line: str, words: set[str]) -> bool:
    """Whether a line names our program, or none at all."""
    names = [name for name in _NAME_IN_HINT.findall(line[:1000]) if not name.endswith(":")]
    if not names or not re.search(r"Killed process|oom-kill|killing_|traps|segfault|trap ", line):
        return True
    return any(name[:_COMM_LENGTH] in words or _OURS.search(name) for name in names)


OOM_KILLED = Meaning(
    FailureKind.OUT_OF_HOST_MEMORY, Blame.PLAN, "The kernel killed the engine because host memory ran out"
)
LOST_BY_KERNEL = Meaning(FailureKind.DEVICE_LOST, Blame.HOST, "The kernel lost the device")
DISK_FAILED = Meaning(
    FailureKind.MODEL_UNREADABLE, Blame.HOST, "The disk under the model failed while the engine read it"
)
REFUSED_SIGNATURE = Meaning(
    FailureKind.UNKNOWN, Blame.BUILD, "The system does not accept the program's signature", RunsHere.NO
)
ILLEGAL_INSTRUCTION = _INVALID_CPU
LEFT_UNASKED = Meaning(
    FailureKind.UNKNOWN, Blame.NOBODY, "The engine left with exit code 0 although nobody asked it to"
)
STOPPED_OUTSIDE = _STOPPED
