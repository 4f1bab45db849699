"""From a plan to the MLX server's arguments: the only place that writes them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from engines.contract import BuildFacts, Capability, Choice, Command, Endpoint, PlanDraft
from engines.mlx.memory import DEFAULT_CACHE_RAM, DEFAULT_PREFILL_STEP, explained
from engines.mlx.settings import MlxSettings

RUN = Path(__file__).resolve().parent / "server" / "run.py"
"""The server's program; a build is the interpreter that runs it."""
DECODE_PAUSE = 100
DEFAULT_CACHE_DISK = 2048
# Running requests may go on for so long after SIGTERM; less than the supervisor's own patience (`stop.grace`).
DRAIN = 4000

Argument = tuple[str, str | None, str]


def build_command(draft: PlanDraft, facts: BuildFacts) -> Command:
    """Arguments in a fixed order: the program first."""
    argv: list[str] = [str(RUN)]
    choices: list[Choice] = []
    for flag, value, reason in _arguments(draft, _settings(draft)):
        if facts.flags is not None and flag not in facts.flags:
            choices.append(Choice(flag, value, "not said: this server does not list it in its options"))
            continue
        argv += [flag] if value is None else [flag, value]
        if reason:
            choices.append(Choice(flag.lstrip("-"), value if value is not None else True, reason))
    return Command(argv=tuple(argv), choices=(*explained(draft), *choices))


def endpoint_args(endpoint: Endpoint) -> tuple[str, ...]:
    """``--host`` takes a socket path when it ends in ``.sock``."""
    if endpoint.socket_path is not None:
        return ("--host", str(endpoint.socket_path))
    return ("--host", "127.0.0.1", "--port", str(endpoint.port))


def _settings(draft: PlanDraft) -> MlxSettings:
    if not isinstance(draft.settings, MlxSettings):
        raise TypeError(f"MLX was given {type(draft.settings).__name__}")
    return draft.settings


def _arguments(draft: PlanDraft, settings: MlxSettings) -> Iterator[Argument]:
    yield "--model", str(draft.files[0].parent), ""
    yield "--alias", draft.model_id, ""
    if draft.ctx_size is not None:
        yield "--ctx-size", str(draft.ctx_size), ""
    yield "--parallel", str(draft.slots), ""
    if draft.threads is not None:
        yield "--threads", str(draft.threads), ""
    step, pause = settings.prefill_step or DEFAULT_PREFILL_STEP, settings.decode_pause or DECODE_PAUSE
    yield "--prefill-step", str(step), "tokens of a prompt at once while no answer waits"
    yield "--decode-pause-ms", str(pause), "the longest that reading a prompt holds up answers"
    yield from _caches(settings)
    if draft.slot_files is not None:
        yield "--cache-dir", str(draft.slot_files), "conversations outlive switches and restarts: see `cache`"
    if settings.draft_model is not None:
        yield "--draft-model", settings.draft_model, "speculative decoding, where a request is computed alone"
        yield "--draft-tokens", str(settings.draft_tokens or 3), ""
    if Capability.EMBEDDINGS in draft.capabilities:
        yield "--embeddings", None, "serves embeddings"
    yield "--drain-ms", str(DRAIN), ""


def _caches(settings: MlxSettings) -> Iterator[Argument]:
    if settings.kv_bits is not None:
        yield "--kv-bits", str(settings.kv_bits), "from launch.kv_bits; a quantised cache can't be shared by a batch"
    if settings.max_kv_size is not None:
        yield "--max-kv-size", str(settings.max_kv_size), "from launch.max_kv_size"
    ram = DEFAULT_CACHE_RAM if settings.cache_ram is None else settings.cache_ram
    yield "--cache-ram", str(ram), "MiB of prompts and answers that may come again"
    disk = DEFAULT_CACHE_DISK if settings.cache_disk is None else settings.cache_disk
    yield "--cache-disk", str(disk), "MiB of them that may outlive the engine"
