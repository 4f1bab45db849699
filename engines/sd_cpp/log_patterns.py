"""What the lines of sd-server's log mean when it ends; the texts are those of its own format strings."""

from __future__ import annotations

import re
from collections.abc import Sequence

from engines.contract import Blame, ExitEvidence, FailureKind
from engines.evidence_rules import (
    ADDRESS_IN_USE,
    BAD_ARGUMENT,
    MODEL_DAMAGED,
    MODEL_UNREADABLE,
    MODEL_UNSUPPORTED,
    OUT_OF_HOST_MEMORY,
    Level,
    Line,
    LogPatterns,
    Meaning,
    Rank,
    Rule,
    RuleIndex,
    has_option,
    raw,
    said,
    says,
)
from engines.evidence_system import LOADER_RULES, RUNTIME_RULES, is_noise
from engines.ggml_log_patterns import GGML_RULES, is_abort_frame, on_device

_LEVELS = {"ERROR": Level.ERROR, "WARN": Level.WARNING, "INFO": Level.QUIET}
_PREFIX = re.compile(r"\[(?P<level>ERROR|WARN|INFO|DEBUG|VERBOSE) ?\] (?:\S+:\d+ *- )?(?P<text>.*)", re.DOTALL)
_PROGRESS = re.compile(r"\s*\|[=> ]*\||\s{3,}|\w+ Options:")


def read(line: str) -> Line | None:
    """Takes a line apart; a progress bar can stand before the level on the same line."""
    found = _PREFIX.search(line)
    if found is not None:
        level = _LEVELS.get(found["level"])
        return Line(level, found["text"]) if level is not None else None
    if (is_noise(line) and not is_abort_frame(line)) or (_PROGRESS.match(line) and "what():" not in line):
        return None
    return Line(Level.RAW, line)


_MISSING_FILE = Meaning(FailureKind.MODEL_UNREADABLE, Blame.MODEL, "A file of the model does not exist")
_NOT_AN_IMAGE_MODEL = Meaning(
    FailureKind.MODEL_UNSUPPORTED, Blame.MODEL, "The file is no image model that this build knows"
)
_PART_NOT_NAMED = Meaning(
    FailureKind.BAD_ARGUMENT,
    Blame.PLAN,
    "The plan does not name a part that the model needs (text encoder or autoencoder)",
)

_PARTS: tuple[tuple[re.Pattern[str], tuple[str, ...]], ...] = (
    (re.compile(r"text_encoders?\.(?:llm|qwen)|text_encoders\.\w*llm"), ("--llm", "--qwen2vl")),
    (re.compile(r"text_encoders?\.t5|cond_stage_model.*t5"), ("--t5xxl",)),
    (re.compile(r"text_encoders?\.clip_l"), ("--clip_l",)),
    (re.compile(r"text_encoders?\.clip_g"), ("--clip_g",)),
    (
        re.compile(r"text_encoders?\.|cond_stage_model|conditioner\."),
        ("--llm", "--t5xxl", "--clip_l", "--clip_g", "--qwen2vl"),
    ),
    (re.compile(r"cond_stage_model\.visual|clip_vision"), ("--clip_vision", "--llm_vision")),
    (re.compile(r"first_stage_model|vae\.|tae\.|decoder\.layers"), ("--vae", "--tae", "--taesd")),
)


def _missing_tensor(match: re.Match[str], evidence: ExitEvidence) -> Meaning:
    """A tensor in no file: of a part that the plan does not name, or of a file that lacks it."""
    if has_option(evidence.argv, "-m", "--model"):
        return MODEL_UNSUPPORTED
    for name, options in _PARTS:
        if name.search(match["tensor"]):
            return MODEL_UNSUPPORTED if has_option(evidence.argv, *options) else _PART_NOT_NAMED
    return MODEL_UNSUPPORTED


def _buffer(_: re.Match[str], evidence: ExitEvidence) -> Meaning:
    if on_device(evidence):
        return Meaning(FailureKind.OUT_OF_DEVICE_MEMORY, Blame.PLAN, "Device memory ran out")
    return OUT_OF_HOST_MEMORY


_RULES: tuple[Rule, ...] = (
    said("error: the following arguments are required", BAD_ARGUMENT),
    said("error: unknown argument", BAD_ARGUMENT),
    said("invalid parameter for argument", BAD_ARGUMENT, rank=Rank.GENERAL),
    said("file does not exist", BAD_ARGUMENT),
    raw("Failed to parse command line", r".*Failed to parse command line", BAD_ARGUMENT),
    raw("Usage: ", r"Usage: \S.* \[options\]", BAD_ARGUMENT, rank=Rank.HINT),
    raw("  -", r"  (?:-\w, )?--[\w-]+ .{10}", BAD_ARGUMENT, rank=Rank.HINT),
    says("file ", r"file .* not found$", _MISSING_FILE, warnings=True),
    says("loading ", r"loading [\w ]+ from '[^']*' failed", MODEL_UNREADABLE, warnings=True),
    said("unknown format", MODEL_UNREADABLE, warnings=True),
    says("failed to open '", r"failed to open '", MODEL_UNREADABLE),
    said("incomplete file", MODEL_DAMAGED),
    said("failed to open zip", MODEL_DAMAGED),
    said("too less memory for conversion", OUT_OF_HOST_MEMORY),
    said("read tensor data failed", MODEL_DAMAGED),
    said("json parse failed", MODEL_DAMAGED),
    said("invalid magic characters", MODEL_DAMAGED),
    says("tensor '", r"tensor '(?P<tensor>[^']*)' not in model file", _missing_tensor, rank=Rank.GENERAL),
    said("has wrong shape in model file", MODEL_UNSUPPORTED, rank=Rank.GENERAL),
    said("get sd version from file failed", _NOT_AN_IMAGE_MODEL, rank=Rank.GENERAL),
    said("init model loader from file failed", MODEL_UNREADABLE),
    said("model loader from file failed", MODEL_UNREADABLE, rank=Rank.AFTERMATH),
    said("load tensors from", MODEL_UNREADABLE, rank=Rank.AFTERMATH),
    said("backend buffer failed", _buffer, rank=Rank.GENERAL),
    said("buffer allocation failed", _buffer, rank=Rank.GENERAL),
    said("alloc compute", _buffer, rank=Rank.GENERAL),
    said("failed to allocate the compute buffer", _buffer, rank=Rank.GENERAL),
    said("allocate memory for", OUT_OF_HOST_MEMORY, rank=Rank.GENERAL),
    said("Unknown predition type", MODEL_UNSUPPORTED),
    raw("error: ", r"error: ", BAD_ARGUMENT, rank=Rank.AFTERMATH),
)


_LISTENING = re.compile(r"listening on: ")


def at_exit(evidence: ExitEvidence, lines: Sequence[Line]) -> Meaning | None:
    """On a taken port this server says that it listens and leaves with 0."""
    listening = any(_LISTENING.match(line.text) for line in lines)
    if evidence.exit_code == 0 and not evidence.reached_ready and listening:
        return ADDRESS_IN_USE
    return None


PATTERNS = LogPatterns(
    rules=RuleIndex((*_RULES, *GGML_RULES, *LOADER_RULES, *RUNTIME_RULES)),
    read=read,
    loaded=_LISTENING,
    at_exit=at_exit,
)
