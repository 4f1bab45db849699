"""What the lines of llama-server's log mean when it ends; the texts are those of its own format strings."""

from __future__ import annotations

import re

from engines.contract import Blame, ExitEvidence, FailureKind, RunsHere
from engines.evidence_rules import (
    ADDRESS_IN_USE,
    BAD_ARGUMENT,
    MODEL_DAMAGED,
    MODEL_UNREADABLE,
    MODEL_UNSUPPORTED,
    NO_MORE_THREADS,
    OUT_OF_HOST_MEMORY,
    Level,
    Line,
    LogPatterns,
    Meaning,
    Rank,
    Rule,
    RuleIndex,
    bad_port,
    has_option,
    of_refusal,
    option,
    raw,
    said,
    says,
)
from engines.evidence_system import LOADER_RULES, RUNTIME_RULES, is_noise
from engines.ggml_log_patterns import GGML_RULES, is_abort_frame, on_device

_LEVELS = {"E": Level.ERROR, "W": Level.WARNING, "I": Level.QUIET}
_PREFIX = re.compile(r"(?:\[ *\d+\] )?\d+\.\d+\.\d+\.\d+ (?P<level>[EWIDT]) (?P<text>.*)", re.DOTALL)
_OLD_FUNCTION = re.compile(r"(?:(?=[a-z0-9]*_)[a-z]\w*+(?:\(\))?|main|srv +\w+|error|read|slot +\w+): ")
_WARNING = re.compile(r"ggml_vulkan: Failed to allocate pinned memory|warn(?:ing)?: |.*: warning: ")
_USAGE = re.compile(r" {4,}|-{1,2}\w[\w-]*, |-{1,2}\w[\w-]* {2,}|\(env: |\S* *\|")


def read(line: str) -> Line | None:
    """Takes a line apart. Lines of the newer format carry a level; the older ones begin with a function's name."""
    found = _PREFIX.match(line)
    if found is not None:
        text = found["text"]
        level = _LEVELS.get(found["level"])  # debug lines may carry a model's words: not even markers are read there
        return None if level is None or text.startswith(_FIT) else Line(level, text)
    if (is_noise(line) and not is_abort_frame(line)) or _USAGE.match(line) or line.startswith(_FIT):
        return None
    if _WARNING.match(line):
        return Line(Level.WARNING, line)
    return Line(Level.ERROR if _OLD_FUNCTION.match(line) else Level.RAW, line)


_FIT = ("common_fit_params: ", "common_params_fit", "llama_params_fit", "operator(): failed to measure")
"""Trials before the load: they fail with the load's own errors, or without harm."""

_SOCKET_PATH_BYTES = 107


def _bind(match: re.Match[str], evidence: ExitEvidence) -> Meaning:
    """One line stands for every failed bind; the arguments tell some of the causes apart."""
    host = option(evidence.argv, "--host") or match["host"]
    if host.endswith(".sock") and len(host.encode(errors="replace")) > _SOCKET_PATH_BYTES:
        return Meaning(FailureKind.BAD_ARGUMENT, Blame.PLAN, "The socket's path is longer than a socket path may be")
    if bad_port(evidence):
        return Meaning(FailureKind.BAD_ARGUMENT, Blame.PLAN, "The port is not a port number")
    if has_option(evidence.argv, "--ssl-key-file", "--ssl-cert-file"):
        return Meaning(
            FailureKind.BAD_ARGUMENT, Blame.PLAN, "The engine could not listen: its certificate or key can't be used"
        )
    return ADDRESS_IN_USE


def _refusal(match: re.Match[str], _: ExitEvidence) -> Meaning:
    return of_refusal(match["why"])


def _template(_: re.Match[str], evidence: ExitEvidence) -> Meaning:
    """A chat template that can't be used: the plan's own, or the model's."""
    if has_option(evidence.argv, "--chat-template", "--chat-template-file"):
        return BAD_ARGUMENT
    return Meaning(FailureKind.MODEL_UNSUPPORTED, Blame.MODEL, "This build can't use the chat template in the model")


def _context(_: re.Match[str], evidence: ExitEvidence) -> Meaning:
    """A buffer of the context that has no name in the line."""
    if on_device(evidence):
        return Meaning(FailureKind.OUT_OF_DEVICE_MEMORY, Blame.PLAN, "Device memory ran out for the context")
    return OUT_OF_HOST_MEMORY


_NO_CONTEXT = Meaning(
    FailureKind.UNKNOWN, Blame.PLAN, "The model was loaded, but its context could not be made", RunsHere.YES
)
_ODD_ADAPTER = Meaning(FailureKind.MODEL_UNSUPPORTED, Blame.MODEL, "The LoRA adapter does not fit the model")
_WRONG_PART = Meaning(
    FailureKind.BAD_ARGUMENT, Blame.PLAN, "The plan names a later part of a split model: name the first"
)
_NOT_FETCHED = Meaning(
    FailureKind.MODEL_UNREADABLE, Blame.MODEL, "The model is not on this machine and could not be fetched"
)
_HUB = Meaning(FailureKind.MODEL_UNREADABLE, Blame.MODEL, "The model could not be had from its hub")

_ARGUMENT_RULES: tuple[Rule, ...] = (
    raw(
        "invalid device: ", r"error while handling argument \"[^\"]*\": invalid device: ", BAD_ARGUMENT, rank=Rank.HINT
    ),
    raw(
        "error while handling",
        r"error while handling (?:argument|environment variable) \"[^\"]*\"(?!: invalid device: )",
        BAD_ARGUMENT,
    ),
    raw("error: invalid argument: ", r"error: invalid argument: ", BAD_ARGUMENT),
    raw("error: unknown argument", r"error: unknown argument", BAD_ARGUMENT),
    raw(
        "error: ",
        r"error: (?:--\S+|invalid|the supplied chat template|argument|unknown|missing|expected|expecting)",
        BAD_ARGUMENT,
    ),
    raw("the argument has been removed", r"(?:error: )?the argument has been removed", BAD_ARGUMENT),
    raw("expected value for argument", r"(?:error: )?expected value for argument", BAD_ARGUMENT),
    raw("usage:", r"usage:$", BAD_ARGUMENT, rank=Rank.HINT),
    raw("to show complete usage", r"to show complete usage, run with -h", BAD_ARGUMENT, rank=Rank.HINT),
    said("static assets path not found", BAD_ARGUMENT),
    said("failed to initialize router models", BAD_ARGUMENT),
    said("built without SSL support", BAD_ARGUMENT),
    said("--port 0 is not supported", BAD_ARGUMENT),
    said("conflicts with an existing llama-server route", BAD_ARGUMENT),
    said("failed to parse UI config", BAD_ARGUMENT),
    said("MCP starting failed", BAD_ARGUMENT),
    said("tools setup failed", BAD_ARGUMENT),
    said("invalid HF repo format", BAD_ARGUMENT),
    said("KV override", BAD_ARGUMENT),
    said("Invalid hex character", BAD_ARGUMENT),
    said("Format of CPU range is invalid", BAD_ARGUMENT),
    said("index out of bounds!", BAD_ARGUMENT, rank=Rank.GENERAL),
    said("quantized V cache", BAD_ARGUMENT),
    said("V cache quantization requires", BAD_ARGUMENT),
    said("SPLIT_MODE_TENSOR", BAD_ARGUMENT),
    says("cache type", r"[KV] cache type \S+ with block size", BAD_ARGUMENT),
    said("does not support different K", BAD_ARGUMENT),
    said("Unsupported cache type", BAD_ARGUMENT),
    said("n_seq_max must be <=", BAD_ARGUMENT),
    says("n_seq_max = ", r"n_seq_max = \d+ > ", BAD_ARGUMENT),
    said("n_ctx_seq == 0", BAD_ARGUMENT),
    said("n_batch and n_ubatch cannot both be zero", BAD_ARGUMENT),
    said("cannot both be zero", BAD_ARGUMENT),
    said("invalid value for main_gpu", BAD_ARGUMENT),
    said("does not support split buffers", BAD_ARGUMENT),
    said("failed to parse grammar", BAD_ARGUMENT),
    said("no valid control vector files", BAD_ARGUMENT),
    said("control vector", BAD_ARGUMENT, rank=Rank.GENERAL),
    said("no confidence head", BAD_ARGUMENT),
    said("failed to initialize speculative decoding context", BAD_ARGUMENT, rank=Rank.GENERAL),
    said("ERR: Missing --mmproj", BAD_ARGUMENT),
    said("use it with --mmproj instead", BAD_ARGUMENT),
    said("failed to apply template", _template, rank=Rank.GENERAL),
    said("failed to initialize chat template", _template, rank=Rank.GENERAL),
    said("please consider disabling jinja", _template, rank=Rank.GENERAL),
    said("chat template parsing error", _template),
    said("chat template is not supported", _template),
    said("failed to initialize HTTP server", BAD_ARGUMENT, rank=Rank.AFTERMATH),
)

_ADDRESS_RULES: tuple[Rule, ...] = (
    says("couldn't bind", r"couldn't bind (?:HTTP|to) server socket, hostname: (?P<host>\S*), port", _bind),
    raw("couldn't bind", r"(?:\S+: |ERR \[ *\w+\] )?couldn't bind.*? hostname[:=] *\"?(?P<host>[^\s\",]*)", _bind),
    said("couldn't start HTTP listener", ADDRESS_IN_USE, rank=Rank.GENERAL),
    said("exiting due to HTTP server error", ADDRESS_IN_USE, rank=Rank.AFTERMATH),
)

_FILE_RULES: tuple[Rule, ...] = (
    says(
        "failed to open",
        r"failed to open (?:GGUF file )?'?[^']*'? ?(?:\((?P<why>[^()]*)\)$|: (?P<more>.*))",
        lambda m, _: of_refusal(m["why"] or m["more"]),
    ),
    says("read error: ", r"read error: (?P<why>.*)", _refusal),
    says("seek error: ", r"(?:seek|lseek|ftell) error: (?P<why>.*)", _refusal),
    says("ftell error: ", r"ftell error: (?P<why>.*)", _refusal),
    says("mmap failed: ", r"mmap failed: (?P<why>.*)", _refusal),
    says("CreateFileMapping", r"CreateFileMapping\w* failed: (?P<why>.*)", _refusal),
    says("MapViewOfFile", r"MapViewOfFile\w* failed: (?P<why>.*)", _refusal),
    said("exactly one out metadata", _NOT_FETCHED),
    said("not available in cache (offline mode)", _NOT_FETCHED),
    said("failed to download model", _HUB),
    said("download failed", _HUB),
    said("no GGUF files found in repository", _HUB),
    said("not found in repository", _HUB),
    said("failed to fetch model metadata", _HUB, rank=Rank.GENERAL),
    said("failed to load models on startup", MODEL_UNREADABLE, rank=Rank.GENERAL),
)

_DAMAGED = (
    "invalid magic characters", "invalid magic number", "bad magic", "failed to read magic", "bad GGUF version",
    "exceeds remaining file size",
    "exceeds maximum", "is not within the file bounds", "corrupted model", "corrupted or incomplete",
    "unexpectedly reached end of", "unexpected end of file", "key value pairs is", "number of tensors is",
    "has invalid number of dimensions", "invalid number of elements", "duplicate tensor name", "duplicate key",
    "is duplicated", ", expected ", "has invalid GGUF type", "is not a power of 2", "encountered length_error",
    "size overflow", "overflows after padding", "has a size in bytes >", "may cause overflow errors", "is too long:",
    "is empty", "has invalid data", "invalid split file name", "invalid split file:", "invalid split count",
    "invalid split file idx", "missing key", "byte aligned, cannot mmap", "Unterminated string in precompiled",
    "precompiled_charsmap too small", "extremely large, is there a mismatch", "Failed to get file size", "file is NULL",
)  # fmt: skip

_DAMAGED_STEPS = (
    "failed to read header", "failed to read key-value pairs", "failed to read tensor info",
    "failed to read tensor data", "failed to seek to beginning", "failed to load GGUF split",
    "llama_model_loader: failed to load model from",
)  # fmt: skip

_UNSUPPORTED = (
    "unknown model architecture", "unsupported model architecture", "unknown architecture", "unknown tokenizer",
    "unknown pre-tokenizer", "has invalid ggml type", "invalid ggml type", "REMOVED, use", "TYPE_UNUSED",
    "not a multiple of block size", "is no longer supported", "this software only supports up to version",
    "key not found in model", "array key not found", "wrong number of tensors", "too many tensors created",
    "missing tensor", "has wrong shape", "invalid n_rot", "cannot find tokenizer", "has wrong type",
    "has wrong array", "must be of type", "expected scalar, found array", "n > N_MAX", "exceeds max ",
    "invalid gguf type for", "invalid gguf element type", "CLIP cannot be used", "no expert layers are used",
    "is not set", "Index out of array bounds", "wrong model arch", "MTP requires", "failed to find a compatible buffer",
    "not a string/float32", "must be a bool array", "must be type u32", "unknown projector type",
    "model does not support", "is not supported by this", "magic mismatch", "Missing required key",
    "unable to find tensor", "failed to find tensor", "unknown (magic, version)",
    "vocab type must match", "vocabs are not compatible",
    "is not eagle3", "requires a draft context",
)  # fmt: skip

_MODEL_RULES: tuple[Rule, ...] = (
    says("illegal split file idx", r"illegal split file idx", _WRONG_PART),
    says("must be loaded with the first split", r"must be loaded with the first split", _WRONG_PART),
    *(said(needle, MODEL_UNSUPPORTED) for needle in _UNSUPPORTED),
    says("tensor '", r"tensor '[^']*' not found", MODEL_UNSUPPORTED),
    *(said(needle, MODEL_DAMAGED) for needle in _DAMAGED),
    *(said(needle, MODEL_DAMAGED, rank=Rank.GENERAL) for needle in _DAMAGED_STEPS),
    said("error loading model: ", MODEL_UNSUPPORTED, rank=Rank.GENERAL),
    said("error loading model hyperparameters", MODEL_UNSUPPORTED, rank=Rank.GENERAL),
    said("error loading model vocabulary", MODEL_UNSUPPORTED, rank=Rank.GENERAL),
    said("error loading model architecture", MODEL_UNSUPPORTED, rank=Rank.GENERAL),
    said("LoRA tensor", _ODD_ADAPTER),
    said("LoRA arch mismatch", _ODD_ADAPTER),
    said("expect general.type to be", _ODD_ADAPTER),
    said("expect adapter.type to be", _ODD_ADAPTER),
    said("maybe wrong base model", _ODD_ADAPTER),
    said("lora_a tensor is not transposed", _ODD_ADAPTER),
    said("failed to load lora adapter", MODEL_UNREADABLE, rank=Rank.AFTERMATH),
    said("failed to apply lora adapter", MODEL_UNREADABLE, rank=Rank.AFTERMATH),
    said("failed to load multimodal model", MODEL_UNREADABLE, rank=Rank.AFTERMATH),
    said("failed to load draft model", MODEL_UNREADABLE, rank=Rank.AFTERMATH),
    said("failed to load model", MODEL_UNREADABLE, rank=Rank.AFTERMATH),
    raw("unable to load model", r".*\bunable to load model\b", MODEL_UNREADABLE, rank=Rank.AFTERMATH),
)

_MEMORY_RULES: tuple[Rule, ...] = (
    said("failed to allocate buffer for", _context, rank=Rank.GENERAL),
    said("failed to allocate compute", _context, rank=Rank.GENERAL),
    said("failed to reserve initial output buffer", OUT_OF_HOST_MEMORY, rank=Rank.GENERAL),
    said("failed to allocate output buffer", OUT_OF_HOST_MEMORY, rank=Rank.GENERAL),
    said("failed to create context with model", _NO_CONTEXT, rank=Rank.SOFT),
    said("failed to create_context with model", _NO_CONTEXT, rank=Rank.SOFT),
    said("failed to create ggml context", OUT_OF_HOST_MEMORY, rank=Rank.GENERAL),
    said("Resource temporarily unavailable", NO_MORE_THREADS, rank=Rank.GENERAL),
    said("thread constructor failed", NO_MORE_THREADS, rank=Rank.GENERAL),
)

PATTERNS = LogPatterns(
    rules=RuleIndex(
        (
            *_ARGUMENT_RULES,
            *_ADDRESS_RULES,
            *_MEMORY_RULES,
            *GGML_RULES,
            *_FILE_RULES,
            *_MODEL_RULES,
            *LOADER_RULES,
            *RUNTIME_RULES,
        )
    ),
    read=read,
    loaded=re.compile(
        r"(?:srv +)?(?:llama_server|main): "
        r"(?:model loaded|listening on|server is listening on .*starting the main loop)"
    ),
    leaving=re.compile(r"(?:srv +)?(?:\w+(?:\(\))?: +)+(?:cleaning up before exit|Received second interrupt)"),
)
