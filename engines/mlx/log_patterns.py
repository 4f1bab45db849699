"""What the lines of an MLX server's log mean when it ends: Python exceptions, and those of mlx, mlx_lm and the hub."""

from __future__ import annotations

import re
from collections.abc import Sequence

from engines.contract import Blame, ExitEvidence, FailureKind, RunsHere
from engines.evidence_exits import STOPPED_OUTSIDE
from engines.evidence_rules import (
    ADDRESS_IN_USE,
    BAD_ARGUMENT,
    MODEL_DAMAGED,
    MODEL_HELD_BACK,
    MODEL_UNREADABLE,
    MODEL_UNSUPPORTED,
    NO_CODE_FOR_DEVICE,
    NO_DRIVER,
    NO_MORE_THREADS,
    OUT_OF_DEVICE_MEMORY,
    OUT_OF_HOST_MEMORY,
    Level,
    Line,
    LogPatterns,
    Meaning,
    Rank,
    Rule,
    RuleIndex,
    raw,
)
from engines.evidence_system import LOADER_RULES, RUNTIME_RULES, is_noise, of_library
from engines.ggml_log_patterns import of_gpu_error, of_metal_error

_PREFIX = re.compile(r"\d{4}-\d\d-\d\d [\d:,.]+ - (?P<level>[A-Z]+) - (?P<text>.*)", re.DOTALL)
_LEVELS = {"ERROR": Level.ERROR, "CRITICAL": Level.ERROR, "WARNING": Level.WARNING}
_SKIPPED = re.compile(r"[ \t{}\[\]\"']|\S*Warning: |.*: UserWarning: |usage: |Traceback |\d+\.\d+\.\d+\.\d+ - - ")
_DIED = "mlx_lm.server generation thread died: "


def read(line: str) -> Line | None:
    """Takes a line apart. Indented lines are source text of a trace back, or part of a logged request."""
    found = _PREFIX.match(line)
    if found is not None:
        text = found["text"]
        died = text.startswith(_DIED)
        return Line(_LEVELS.get(found["level"], Level.QUIET), "died: " + text[len(_DIED) :] if died else text)
    if (_SKIPPED.match(line) and "what():" not in line) or is_noise(line):
        return None
    return Line(Level.RAW, line)


_NOT_FETCHED = Meaning(
    FailureKind.MODEL_UNREADABLE, Blame.MODEL, "The model is not on this machine and could not be fetched"
)
_OPEN_FILES = Meaning(FailureKind.UNKNOWN, Blame.HOST, "The host's limit of open files is too low")
_HOST_FULL = Meaning(FailureKind.UNKNOWN, Blame.HOST, "The host's disk is full or can't be written")
_PYTHON_PARTS = Meaning(
    FailureKind.MISSING_LIBRARY,
    Blame.BUILD,
    "A Python package of the build is missing or of another version",
    RunsHere.NO,
)
_OTHER_MODEL = Meaning(
    FailureKind.MODEL_UNSUPPORTED, Blame.MODEL, "The model's settings or tensors are not what this build expects"
)
_NEEDS_NEWER_SYSTEM = Meaning(
    FailureKind.INCOMPATIBLE_DRIVER, Blame.BUILD, "This build's device code needs a newer system", RunsHere.NO
)

_NAME = r"(?:died: |[\w.]*(?:Error|Exception|Exit|Interrupt|Enabled|NotFound): |ERROR: )"
_ANY = _NAME + r".*"


def _import(match: re.Match[str], _: ExitEvidence) -> Meaning:
    """An import that failed: a library below the package, or the package itself."""
    text = match["why"]
    if re.search(r"\.(?:so|dylib|dll)\b", text) and not text.startswith("cannot import name"):
        return of_library(text)
    return _PYTHON_PARTS


_NO_SUCH_ADDRESS = Meaning(FailureKind.BAD_ARGUMENT, Blame.PLAN, "The host has no such address to listen on")
_MAY_NOT_LISTEN = Meaning(FailureKind.UNKNOWN, Blame.HOST, "The host does not let the engine listen on its address")
_OS_ERRORS: dict[int, Meaning] = {
    **dict.fromkeys((98, 48, 10048), ADDRESS_IN_USE),
    **dict.fromkeys((99, 49, 10049), _NO_SUCH_ADDRESS),
    12: OUT_OF_HOST_MEMORY,
    **dict.fromkeys((23, 24), _OPEN_FILES),
    **dict.fromkeys((28, 30, 122), _HOST_FULL),
    **dict.fromkeys((5, 70, 107, 116), MODEL_HELD_BACK),
    **dict.fromkeys((1, 13), MODEL_HELD_BACK),
    **dict.fromkeys((2, 20, 21, 40), MODEL_UNREADABLE),
}
"""Numbers of Linux, macOS and Windows; they overlap nowhere that matters."""


def _os_error(match: re.Match[str], _: ExitEvidence) -> Meaning | None:
    """An OSError by its number; without a file's name in it, a refusal is about the address."""
    meaning = _OS_ERRORS.get(int(match["errno"][:9]))
    return (
        _MAY_NOT_LISTEN
        if meaning is MODEL_HELD_BACK and match["errno"] in {"1", "13"} and "'" not in match["text"]
        else meaning
    )


def _gpu(match: re.Match[str], _: ExitEvidence) -> Meaning:
    return of_gpu_error(match["text"])


def _metal(match: re.Match[str], _: ExitEvidence) -> Meaning:
    return of_metal_error(match.string)


_LOADING = re.compile(r"\bin (?:load|_load|load_\w+|_load_\w+|_get_classes|from_pretrained|sanitize|from_dict)\b")
_DIED_AT_WORK = Meaning(
    FailureKind.CRASH, Blame.BUILD, "A request ended the thread that runs the model, so every later one fails"
)


def _odd_value(_: re.Match[str], evidence: ExitEvidence) -> Meaning:
    """A Python error of the kind that an odd model raises while it is loaded, and a request may raise later."""
    at_work = evidence.reached_ready and any("in _generate" in line[:500] for line in evidence.log[-200:])
    if at_work and not any(_LOADING.search(line[:500]) for line in evidence.log[-200:]):
        return _DIED_AT_WORK
    return _OTHER_MODEL


_HUB = r"(?:\S*(?:HFValidationError|RepositoryNotFoundError|LocalEntryNotFoundError|OfflineModeIsEnabled|GatedRepoError"
_HUB += r"|EntryNotFoundError|RevisionNotFoundError|HfHubHTTPError|LocalTokenNotFoundError): )"

_LAUNCH_RULES: tuple[Rule, ...] = (
    raw(": error: ", r"\S+: error: ", BAD_ARGUMENT),
    raw(
        "gaierror",
        r"(?:\w+\.)*gaierror: ",
        Meaning(FailureKind.BAD_ARGUMENT, Blame.PLAN, "The address to listen on can't be resolved"),
    ),
    raw("port must be", r".*port must be 0-65535", BAD_ARGUMENT),
    raw("[Errno ", _NAME + r"\[Errno (?P<errno>\d+)\](?P<text>.*)", _os_error),
    raw("[WinError ", _NAME + r"\[WinError (?P<errno>\d+)\](?P<text>.*)", _os_error),
    raw("raise maximum limit", _ANY + r"raise maximum limit", _OPEN_FILES),
    raw("current limit exceeds maximum limit", _ANY + r"current limit exceeds maximum limit", _OPEN_FILES),
    raw("can't start new thread", _ANY + r"can't start new thread", NO_MORE_THREADS),
    raw(
        "No module named 'mlx_lm.models.", r"ModuleNotFoundError: No module named 'mlx_lm\.models\.", MODEL_UNSUPPORTED
    ),
    raw("ModuleNotFoundError: ", r"ModuleNotFoundError: (?P<why>.*)", _import),
    raw("ImportError: ", r"ImportError: (?P<why>.*)", _import),
    raw("Error while finding module specification", r".*Error while finding module specification.*(?P<why>)", _import),
    raw("No module named", r"\S*python\S*: (?P<why>No module named .*)", _import),
    raw("can't open file", r"\S*python\S*: can't open file", _PYTHON_PARTS),
    raw("PackageNotFoundError", r"\S*PackageNotFoundError: ", _PYTHON_PARTS),
    raw("has no attribute", r"AttributeError: (?:partially initialized )?module '", _PYTHON_PARTS, rank=Rank.GENERAL),
    raw("SyntaxError: ", r"SyntaxError: ", _PYTHON_PARTS, rank=Rank.GENERAL),
    raw("init_fs_encoding", r"Fatal Python error: init", _PYTHON_PARTS),
    raw(
        "Could not find platform", r"Could not find platform (?:in)?dependent libraries", _PYTHON_PARTS, rank=Rank.SOFT
    ),
)

_MEMORY_RULES: tuple[Rule, ...] = (
    raw("MemoryError", r"(?:\w+\.)*_?(?:Array)?MemoryError\b", OUT_OF_HOST_MEMORY),
    raw("Cannot allocate memory", _ANY + r"Cannot allocate memory", OUT_OF_HOST_MEMORY),
    raw("std::bad_alloc", _ANY + r"std::bad_alloc", OUT_OF_HOST_MEMORY),
    raw("[malloc", r".*\[malloc\w*\] Unable to allocate", OUT_OF_HOST_MEMORY),
    raw("Unable to allocate", _ANY + r"Unable to allocate \d+ bytes", OUT_OF_HOST_MEMORY, rank=Rank.GENERAL),
    raw("[metal::malloc]", r".*\[metal::malloc\]", OUT_OF_DEVICE_MEMORY),
    raw(
        "greater than the maximum allowed buffer size",
        r".*greater than the maximum allowed buffer size",
        OUT_OF_DEVICE_MEMORY,
    ),
    raw("Resource limit (", r".*Resource limit \(\d+\) exceeded", OUT_OF_DEVICE_MEMORY),
    raw("Insufficient Memory", r".*Insufficient Memory", OUT_OF_DEVICE_MEMORY),
    raw(
        "out of memory",
        r"(?:died: |\S*Error: |.*what\(\): |libc\+\+abi: ).*(?:cuda|hip)\w* .*out of memory",
        OUT_OF_DEVICE_MEMORY,
    ),
)

_DEVICE_RULES: tuple[Rule, ...] = (
    raw("Command buffer execution failed", r".*Command buffer execution failed: (?P<text>.*)", _metal),
    raw("kIOGPUCommandBuffer", r".*kIOGPUCommandBuffer\w+", _metal),
    raw("Unable to build metal library", r".*Unable to build metal library", _NEEDS_NEWER_SYSTEM),
    raw("Unable to load kernel", r".*Unable to load (?:kernel|function)", NO_CODE_FOR_DEVICE),
    raw("-std=metal", r"error: invalid value .*-std=metal", _NEEDS_NEWER_SYSTEM),
    raw("metallib", r".*(?:Failed to load|library not found|Unable to load).*metallib", _PYTHON_PARTS),
    raw("No Metal device", r".*No Metal device", NO_DRIVER),
    raw("No Metal", r".*No Metal (?:back-end|backend)", NO_DRIVER),
    raw("requires macOS", r".*requires macOS", _NEEDS_NEWER_SYSTEM),
    raw("cuda", r"(?:died: |\S*Error: |\s*what\(\):\s+).*\bcu(?:da|blas|dnn)\w*(?:\(.*\))? failed: (?P<text>.*)", _gpu),
)

_MODEL_RULES: tuple[Rule, ...] = (
    raw("Model type", _ANY + r"Model type \S* ?not supported", MODEL_UNSUPPORTED),
    raw("not supported", _ANY + r"not (?:currently )?supported", MODEL_UNSUPPORTED, rank=Rank.GENERAL),
    raw("trust_remote_code", _ANY + r"trust_remote_code", _OTHER_MODEL),
    raw("[load_", _ANY + r"\[load_\w+\]", MODEL_DAMAGED),
    raw("[load]", _ANY + r"\[load\]", MODEL_DAMAGED),
    raw("[read] ", _ANY + r"\[read\] ", MODEL_DAMAGED),
    raw("[safetensors]", _ANY + r"\[safetensors\]", MODEL_DAMAGED),
    raw("Safetensor", r"\S*Safetensor\w*: ", MODEL_DAMAGED),
    raw("Error while deserializing header", _ANY + r"Error while deserializing header", MODEL_DAMAGED),
    raw("JSONDecodeError", r"(?:\w+\.)*JSONDecodeError: ", MODEL_DAMAGED),
    raw("Failed to parse tokenizer", _ANY + r"Failed to parse tokenizer", MODEL_DAMAGED),
    raw("(char ", r"died: .*: line \d+ column \d+ \(char \d+\)", MODEL_DAMAGED),
    raw("codec can't decode", _ANY + r"codec can't decode", MODEL_DAMAGED),
    raw("No safetensors found", _ANY + r"No safetensors found", MODEL_UNREADABLE),
    raw("Can't load", _ANY + r"Can't load (?:the )?(?:tokenizer|configuration|config|model)", MODEL_UNREADABLE),
    raw("does not exist", _ANY + r"(?:adapter path|model path) .*does not exist", MODEL_UNREADABLE),
    raw(
        "Couldn't instantiate the backend tokenizer",
        _ANY + r"Couldn't instantiate the backend tokenizer",
        MODEL_UNREADABLE,
    ),
    raw("parameters not in model", _ANY + r"parameters not in model", _OTHER_MODEL),
    raw("Missing ", _ANY + r"Missing \d+ parameters", _OTHER_MODEL),
    raw("Expected shape", _ANY + r"Expected shape", _OTHER_MODEL),
    raw("checkpoint has no weights", _ANY + r"checkpoint has no weights", _OTHER_MODEL),
    raw("quantization", _ANY + r"(?:Cannot infer the quantization|quantization)", _OTHER_MODEL, rank=Rank.GENERAL),
    raw("required positional argument", _ANY + r"missing \d+ required positional argument", _OTHER_MODEL),
    raw("unexpected keyword argument", _ANY + r"unexpected keyword argument", _odd_value, rank=Rank.GENERAL),
    raw("does not recognize this architecture", _ANY + r"does not recognize this architecture", MODEL_UNSUPPORTED),
    raw("Tokenizer class", _ANY + r"Tokenizer class .*does not exist", MODEL_UNSUPPORTED),
    raw("untagged enum", _ANY + r"untagged enum", _OTHER_MODEL),
    raw("KeyError: ", r"KeyError: ", _odd_value, rank=Rank.GENERAL),
    raw("TemplateSyntaxError", r"(?:\w+\.)*TemplateSyntaxError: ", _OTHER_MODEL),
    raw("incompatible tensors", _ANY + r"incompatible tensors", _OTHER_MODEL),
    raw("Error: ", _HUB, _NOT_FETCHED),
    raw("OfflineModeIsEnabled", _HUB, _NOT_FETCHED),
    raw("Repo id must be", _ANY + r"Repo id must be", _NOT_FETCHED),
    raw("cached snapshot folder", _ANY + r"cached snapshot folder", _NOT_FETCHED),
    raw("Cannot reach https://", _ANY + r"Cannot reach https://", _NOT_FETCHED),
    raw("Repository Not Found", _ANY + r"Repository Not Found", _NOT_FETCHED),
    raw("Max retries exceeded", _ANY + r"Max retries exceeded", _NOT_FETCHED),
    raw(
        "died: ",
        r"died: ",
        _odd_value,
        rank=Rank.AFTERMATH,
    ),
    raw(
        "Error: ",
        r"(?:\w+\.)*(?:Value|Type|Key|Index|Attribute)Error: ",
        Meaning(FailureKind.UNKNOWN, Blame.BUILD, "The engine ended with a Python exception"),
        rank=Rank.HINT,
    ),
)

_USAGE_EXIT = 2


def at_exit(evidence: ExitEvidence, _: Sequence[Line]) -> Meaning | None:
    """Leaves with 2 only when its arguments can't be parsed, and with 0 only after an interrupt."""
    if evidence.exit_code == _USAGE_EXIT and not evidence.reached_ready:
        return BAD_ARGUMENT
    return STOPPED_OUTSIDE if evidence.exit_code == 0 and evidence.reached_ready else None


PATTERNS = LogPatterns(
    rules=RuleIndex((*_LAUNCH_RULES, *_MEMORY_RULES, *_DEVICE_RULES, *_MODEL_RULES, *LOADER_RULES, *RUNTIME_RULES)),
    read=read,
    at_exit=at_exit,
)
