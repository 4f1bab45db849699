"""Log lines that no engine prints: the loader's, the shells', the C and C++ run-time's, the debuggers' noise."""

from __future__ import annotations

import re

from engines.contract import Blame, ExitEvidence, FailureKind, RunsHere
from engines.evidence_rules import (
    CRASH,
    ENGINE_ASSERT,
    NO_MORE_THREADS,
    OUT_OF_HOST_MEMORY,
    Meaning,
    Rank,
    Rule,
    raw,
)

_OF_THE_HOST = re.compile(
    r"libcuda\.|nvcuda|libnvidia|libnvoptix|nvml\.dll|libamdhip|amdhip64|libhip|hipblas|librocm|librocblas|rocblas"
    r"|librocsolver|librocsparse|librocfft|librocrand|libhsa|libhsakmt|libamd_comgr|amd_comgr|librccl|libMIOpen"
    r"|libze_|ze_loader|libsycl|sycl\d*\.dll|libur_|ur_loader|libpi_|libmkl|mkl_|libsvml|libimf|libirng|libirc|libintlc"
    r"|libiomp5|libtbb|libdnnl|dnnl|libccl|libOpenCL|OpenCL\.dll|libigdgmm|libigc|libvulkan|vulkan-1\.dll|libMoltenVK"
    r"|libmusa|libmublas|libmusart|libascend|libacl|libhccl|libcnrt|libdrm|libGL\.|libEGL|libnuma|libcdsprpc"
)
"""Libraries that belong to a driver or to a toolkit of the host; all others should have come with the build."""

_MISSING_ON_HOST = Meaning(
    FailureKind.MISSING_LIBRARY, Blame.HOST, "A library of the host's driver or toolkit is not installed", RunsHere.NO
)
_MISSING_OF_BUILD = Meaning(
    FailureKind.MISSING_LIBRARY, Blame.BUILD, "A library that the build needs is missing or damaged", RunsHere.NO
)
_NEWER_SYSTEM = Meaning(
    FailureKind.MISSING_LIBRARY, Blame.BUILD, "The build was made for a newer system than this host has", RunsHere.NO
)
_MIXED = Meaning(
    FailureKind.MISSING_LIBRARY,
    Blame.BUILD,
    "Libraries of different versions are mixed: a symbol is missing",
    RunsHere.NO,
)
_NOT_ALLOWED = Meaning(
    FailureKind.MISSING_LIBRARY, Blame.HOST, "The host does not let the engine load a library", RunsHere.NO
)
_NOT_MAPPED = Meaning(
    FailureKind.OUT_OF_HOST_MEMORY,
    Blame.HOST,
    "The host refused to map a library: a memory limit is too small, or the folder is mounted noexec",
    RunsHere.NO,
)
_NO_MEMORY_TO_LOAD = Meaning(
    FailureKind.OUT_OF_HOST_MEMORY, Blame.PLAN, "Host memory ran out while libraries were loaded", RunsHere.UNKNOWN
)
_TOO_NEW_FOR_CPU = Meaning(
    FailureKind.INCOMPATIBLE_CPU, Blame.BUILD, "The build needs a newer processor than this host has", RunsHere.NO
)
_OTHER_PROCESSOR = Meaning(
    FailureKind.INCOMPATIBLE_CPU, Blame.BUILD, "The program is made for another processor", RunsHere.NO
)
_NO_PROGRAM = Meaning(FailureKind.UNKNOWN, Blame.BUILD, "The program could not be started", RunsHere.NO)
_ILLEGAL = Meaning(
    FailureKind.INCOMPATIBLE_CPU, Blame.BUILD, "This CPU does not have an instruction that the build uses"
)
_BAD_NUMBER = Meaning(FailureKind.BAD_ARGUMENT, Blame.PLAN, "An argument is not a number, or out of range")


_COMPLAINTS: tuple[tuple[re.Pattern[str], Meaning], ...] = (
    (
        re.compile(r"cannot allocate memory|out of memory|cannot create .*object descriptor", re.IGNORECASE),
        _NO_MEMORY_TO_LOAD,
    ),
    (re.compile(r"CPU ISA level"), _TOO_NEW_FOR_CPU),
    (re.compile(r"Permission denied|not permitted"), _NOT_ALLOWED),
    (re.compile(r"failed to map segment"), _NOT_MAPPED),
    (re.compile(r"version `[^']*' not found|newer than running"), _NEWER_SYSTEM),
    (re.compile(r"undefined symbol|symbol not found", re.IGNORECASE), _MIXED),
)


def of_library(text: str) -> Meaning:
    """What a loader's complaint means; ``text`` has the library's name, and the reason if it is said."""
    for pattern, meaning in _COMPLAINTS:
        if pattern.search(text):
            return meaning
    return _MISSING_ON_HOST if _OF_THE_HOST.search(text.split(": cannot", 1)[0]) else _MISSING_OF_BUILD


def _loader(match: re.Match[str], _: ExitEvidence) -> Meaning:
    return of_library(match["why"])


def _execution(match: re.Match[str], _: ExitEvidence) -> Meaning:
    """A shell's reason for not running the program."""
    why = match["why"].lower()
    if "exec format" in why or "cpu type" in why:
        return _OTHER_PROCESSOR
    if "required file not found" in why:
        return _MISSING_OF_BUILD
    if "memory" in why or "temporarily unavailable" in why:
        return NO_MORE_THREADS
    return _NO_PROGRAM


def _uncaught(match: re.Match[str], evidence: ExitEvidence) -> Meaning | None:
    """An exception that nobody caught, by its type; the line with its text may say more."""
    name = match["type"]
    if "bad_alloc" in name:
        return OUT_OF_HOST_MEMORY
    if "system_error" in name:
        return NO_MORE_THREADS
    if not evidence.reached_ready and ("invalid_argument" in name or "out_of_range" in name):
        return _BAD_NUMBER
    return CRASH


def _what(match: re.Match[str], evidence: ExitEvidence) -> Meaning | None:
    """The text of an exception that nobody caught."""
    text = match["text"]
    if "Resource temporarily unavailable" in text or "thread constructor failed" in text:
        return NO_MORE_THREADS
    if "bad_alloc" in text or "Cannot allocate memory" in text:
        return OUT_OF_HOST_MEMORY
    if not evidence.reached_ready and re.fullmatch(r"sto(?:i|l|ll|ul|ull|f|d|ld)(?:: .*)?", text.strip()):
        return _BAD_NUMBER
    return None


_SHELL = r"(?:\S*sh: (?:line \d+: |\d+: )?|env: |exec: |Failed to execute )"

LOADER_RULES: tuple[Rule, ...] = (
    raw(
        "error while loading shared libraries",
        r"(?!gdb|lldb)[^\s:]+: error while loading shared libraries: (?P<why>.*)",
        _loader,
    ),
    raw("' not found", r"(?!gdb|lldb)[^\s:]+: \S+: (?P<why>version `[^']+' not found.*)", _loader),
    raw("symbol lookup error", r"(?!gdb|lldb)[^\s:]+: symbol lookup error: .*(?P<why>undefined symbol.*)", _loader),
    raw("relocation error", r"(?!gdb|lldb)[^\s:]+: relocation error: ", _MIXED),
    raw("CPU ISA level", r"[^\s:]+: (?:\S+: )?(?P<why>.*CPU ISA level is lower than required)", _loader),
    raw("CPU does not support x86-64-v", r"Fatal glibc error: CPU does not support", _TOO_NEW_FOR_CPU),
    raw("kernel too old", r"FATAL: kernel too old", _NEWER_SYSTEM),
    raw("Error loading shared library", r"Error loading shared library (?P<why>.*)", _loader),
    raw("Error relocating", r"Error relocating \S+: (?P<why>.*symbol not found)", _loader),
    raw("Library not loaded", r"(?:dyld\S*[ :]+)+Library not loaded: (?P<why>.*)", _loader),
    raw(
        "Symbol not found",
        r"(?:dyld\S*[ :]+)+(?:lazy )?(?:symbol binding failed: )?(?P<why>Symbol not found.*)",
        _loader,
    ),
    raw(
        "newer than running OS", r"\s*(?:dyld|Reason|Referenced|Library|Expected).*newer than running OS", _NEWER_SYSTEM
    ),
    raw("Referenced from: ", r"\s*Referenced from: <[0-9A-F-]+> ", _MISSING_OF_BUILD, rank=Rank.GENERAL),
    raw("Reason: tried: ", r"\s*Reason: tried: '", _MISSING_OF_BUILD, rank=Rank.GENERAL),
    raw(
        "dyld",
        r"dyld\S*[ :]+(?P<why>.*(?:not loaded|not found|cannot load|missing symbol).*)",
        _loader,
        rank=Rank.GENERAL,
    ),
    raw(".dll was not found", r".*(?P<why>\S+\.dll) was not found", _loader),
    raw(
        "could not be located in the dynamic link library",
        r".*could not be located in the dynamic link library",
        _MIXED,
    ),
    raw("not a valid Win32 application", r".*not a valid Win32 application", _OTHER_PROCESSOR),
    raw(
        "not compatible with the version of Windows", r".*not compatible with the version of Windows", _OTHER_PROCESSOR
    ),
    raw("exec format error", r"\S*sh: exec format error: ", _OTHER_PROCESSOR),
    raw("bad CPU type in executable", r".*bad CPU type in executable", _OTHER_PROCESSOR),
    raw("Bad CPU type in executable", r".*Bad CPU type in executable", _OTHER_PROCESSOR),
    raw("rosetta error", r"rosetta error: ", _OTHER_PROCESSOR),
    raw("qemu", r"qemu-\S+: (?:Could not open|.*unsupported)", _MISSING_OF_BUILD),
    raw("cannot execute", _SHELL + r".*?: (?P<why>cannot execute.*)", _execution),
    raw("bad interpreter", _SHELL + r"?.*: bad interpreter: ", _MISSING_OF_BUILD),
    raw("Exec format error", r".*: (?P<why>Exec format error)", _execution, rank=Rank.GENERAL),
    raw("Permission denied", _SHELL + r"[^'\"]*: (?P<why>Permission denied)$", _execution),
    raw("No such file or directory", _SHELL + r"[^'\"]*: (?P<why>No such file or directory)$", _execution),
    raw("not found", _SHELL + r"\S+: (?P<why>(?:command )?not found)$", _execution),
    raw("not found", r"\S*sh: command (?P<why>not found): ", _execution),
    raw("fork", _SHELL + r".*fork: (?P<why>.*)", _execution),
)

_JOB = r"(?:\S*sh: (?:line )?\d+: +\d+ (?:\[\w+\] )?|/\S+: line \d+: +\d+ )?"

RUNTIME_RULES: tuple[Rule, ...] = (
    raw(
        "exception of type",
        r"libc\+\+abi: terminat\w+ due to uncaught exception of type (?P<type>[\w:]+)(?:: (?P<text>.*))?",
        _uncaught,
        rank=Rank.ABORT,
    ),
    raw(
        "terminate called after throwing",
        r".*?terminate called after throwing an instance of '(?P<type>[^']+)'",
        _uncaught,
        rank=Rank.ABORT,
    ),
    raw("what():", r"\s*what\(\):\s+(?P<text>.*)", _what, rank=Rank.GENERAL),
    raw("std::bad_alloc", r"\s*what\(\):\s+std::bad_alloc", OUT_OF_HOST_MEMORY),
    raw("'std::bad_alloc'", r"terminate called .* 'std::bad_alloc'", OUT_OF_HOST_MEMORY),
    raw("std::bad_alloc", r"libc\+\+abi: .*std::bad_alloc", OUT_OF_HOST_MEMORY),
    raw("thread constructor failed", r"libc\+\+abi: .*thread constructor failed", NO_MORE_THREADS, rank=Rank.ABORT),
    raw("terminate called", r"terminate called (?:without an active exception|recursively)", CRASH, rank=Rank.ABORT),
    raw("pure virtual method called", r"pure virtual method called", CRASH, rank=Rank.ABORT),
    raw(
        "double free or corruption",
        r"(?:\S+: )?(?:\*\*\* Error in .*)?double free or corruption",
        CRASH,
        rank=Rank.ABORT,
    ),
    raw("malloc", r"(?:\S+: )?malloc(?:_consolidate)?\(\): \w+", CRASH, rank=Rank.ABORT),
    raw("free(): ", r"(?:\S+: )?free\(\): \w+", CRASH, rank=Rank.ABORT),
    raw("realloc(): ", r"(?:\S+: )?realloc\(\): \w+", CRASH, rank=Rank.ABORT),
    raw("munmap_chunk()", r"(?:\S+: )?munmap_chunk\(\)", CRASH, rank=Rank.ABORT),
    raw("corrupted ", r"corrupted (?:size vs|double-linked)", CRASH, rank=Rank.ABORT),
    raw(
        "pointer being freed was not allocated",
        r".*malloc: \*\*\* error for object .* not allocated",
        CRASH,
        rank=Rank.ABORT,
    ),
    raw(" detected ***", r"\*\*\* (?:stack smashing|buffer overflow) detected \*\*\*", CRASH, rank=Rank.ABORT),
    raw("Assertion", r"\S.*: Assertion [`'].*' failed\.?$", ENGINE_ASSERT, rank=Rank.ABORT),
    raw("Assertion failed: ", r"Assertion failed: \(?.*, (?:function|file) ", ENGINE_ASSERT, rank=Rank.ABORT),
    raw(
        "cannot allocate memory in static TLS block", r".*cannot allocate memory in static TLS block", _MISSING_OF_BUILD
    ),
    raw("memory allocation of", r"memory allocation of \d+ bytes failed", OUT_OF_HOST_MEMORY),
    raw("Cannot allocate memory for thread", r"libgomp: .*", NO_MORE_THREADS),
    raw("Thread creation failed", r"libgomp: Thread creation failed", NO_MORE_THREADS),
    raw("OMP: Error", r"OMP: Error #\d+: .*(?:thread|resource)", NO_MORE_THREADS),
    raw("Illegal instruction", _JOB + r"Illegal instruction", _ILLEGAL, rank=Rank.ABORT),
    raw("Segmentation fault", _JOB + r"Segmentation fault", CRASH, rank=Rank.HINT),
    raw("Bus error", _JOB + r"Bus error", CRASH, rank=Rank.HINT),
    raw("Floating point exception", _JOB + r"Floating point exception", CRASH, rank=Rank.HINT),
    raw("Aborted", _JOB + r"Aborted", CRASH, rank=Rank.HINT),
    raw(
        "Fatal Python error",
        r"Fatal Python error: (?:Segmentation fault|Aborted|Bus error|Floating)",
        CRASH,
        rank=Rank.ABORT,
    ),
    raw(
        "Fatal Python error: Illegal instruction", r"Fatal Python error: Illegal instruction", _ILLEGAL, rank=Rank.ABORT
    ),
)

_NOISE = re.compile(
    r"#\d+ |\d+\t|\d+\s+(?:in )?\.\./|\[(?:Thread debugging|New LWP|Inferior|New Thread|Thread 0x)|Using host lib"
    r"|0x[0-9a-f]+ in |(?:warning|ptrace|gdb|lldb|gdbserver)\b: |No stack\.|The program is not being run"
    r"|\S+\(\+?\w*\+0x[0-9a-f]+\)\s?\[0x|\S+\([^()]*\) ?\[0x[0-9a-f]+\]$|\d+ {2,}\S+ +0x[0-9a-f]{8,} |\(lldb\)"
    r"|If you believe|See: https?:|WARNING: Using native backtrace|This may be|-{5,}"
)


def is_noise(line: str) -> bool:
    """Back traces and debuggers' talk, which quote files and errors of their own."""
    return _NOISE.match(line) is not None
