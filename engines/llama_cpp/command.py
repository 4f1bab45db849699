"""From a plan to llama-server's arguments: the only place that writes its flags."""

from __future__ import annotations

from collections.abc import Iterator

from engines.contract import BuildFacts, Capability, Choice, Command, Endpoint, PlanDraft
from engines.llama_cpp.extra_args import check_extra_args, own_flags, with_other_names
from engines.llama_cpp.memory_model import model_shape
from engines.llama_cpp.parts import DRAFT, PROJECTOR, file_of
from engines.llama_cpp.settings import LlamaCppSettings
from engines.llama_cpp.slots import FOLDER_FLAG

# Tokens of a prompt between two looks at the clients. A batch can't be cut, so this bounds how long an abandoned
# prefill runs on: 256 tokens take about a second on two CPU cores, 2048 took nine.
CPU_BATCH = 256
DEVICE_BATCH = 2048
# An input to embed must fit one batch whole, so a model that embeds and chats gets a larger one.
EMBEDDING_BATCH = 512
EMBEDDING_ONLY_BATCH = 2048
# Host memory for prompts that left their slot, in MiB; llama-server takes 8192 unless told.
DEFAULT_CACHE_RAM = 256
# HTTP threads wait, they don't compute: with too few, open streams block /health.
SPARE_HTTP_THREADS = 8
# Level 4 tells sizes at the load, and some 14 lines more for each request; 5 would tell texts of clients.
LOG_LEVEL = "4"
# Builds from before this option had coarser levels, where 4 tells everything.
_FINE_LEVELS = "--fit"

# Types of the cache that attention takes in any form.
_PLAIN_TYPES = frozenset({"f16", "f32", "bf16"})
_POOLED = frozenset({Capability.EMBEDDINGS, Capability.RERANK})

# A projector or a second model that extra arguments name: the plan does not read its file.
_UNCOUNTED = frozenset({"--mmproj", "-mm", "--model-draft", "-md", "--spec-draft-model"})

_FLOAT_BYTES = 4
_MANY_LOGITS = 256 * 2**20
# Builds that have it take a kind of guessing too; before, naming a draft model was enough.
_NEWER_DRAFTS = "--spec-draft-n-max"

Argument = tuple[str, str | None, str]


def build_command(draft: PlanDraft, facts: BuildFacts) -> Command:
    """Arguments in a fixed order; extra ones last, so that they win.

    Raises:
        SettingsError: ``extra_args`` name something that opens doors.
    """
    settings = _settings(draft)
    extra = settings.extra_args or ()
    check_extra_args(extra)
    taken = with_other_names(own_flags(extra))
    argv: list[str] = []
    choices: list[Choice] = []
    for flag, value, reason in _arguments(draft, settings, facts):
        if flag in taken:
            choices.append(Choice(flag, value, "left to extra_args"))
        elif facts.flags is not None and flag not in facts.flags:
            choices.append(Choice(flag, value, "not said: this build does not list it in --help"))
        else:
            argv += [flag] if value is None else [flag, value]
            if reason:
                choices.append(Choice(flag.lstrip("-"), value if value is not None else True, reason))
    uncounted = "what it loads is not in the memory predicted here: leave room for it"
    choices += [Choice(flag, None, uncounted) for flag in sorted(own_flags(extra) & _UNCOUNTED)]
    return Command(argv=(*argv, *extra), choices=tuple(choices))


def endpoint_args(endpoint: Endpoint) -> tuple[str, ...]:
    """``--host`` takes a socket path when it ends in ``.sock``."""
    if endpoint.socket_path is not None:
        return ("--host", str(endpoint.socket_path))
    return ("--host", "127.0.0.1", "--port", str(endpoint.port))


def _settings(draft: PlanDraft) -> LlamaCppSettings:
    if not isinstance(draft.settings, LlamaCppSettings):
        raise TypeError(f"llama.cpp was given {type(draft.settings).__name__}")
    return draft.settings


def _arguments(draft: PlanDraft, settings: LlamaCppSettings, facts: BuildFacts) -> Iterator[Argument]:
    yield "--model", str(draft.files[0]), ""
    yield "--alias", draft.model_id, ""
    yield from _beside(draft, settings, facts)
    yield from _context(draft, settings, facts)
    yield from _compute(draft, settings)
    yield from _serving(draft)
    if facts.flags is None or _FINE_LEVELS in facts.flags:
        yield "--verbosity", LOG_LEVEL, "one step above its own: only then the log tells what memory was taken"


def _beside(draft: PlanDraft, settings: LlamaCppSettings, facts: BuildFacts) -> Iterator[Argument]:
    """Files that go with the model; each lies where the model's first device is, or on the host."""
    projector, second = file_of(draft, PROJECTOR), file_of(draft, DRAFT)
    on_device = bool(draft.devices) and draft.n_gpu_layers != 0
    if projector is not None:
        yield "--mmproj", str(projector), _size_of(draft, PROJECTOR, "with it the model reads pictures or sound")
        if draft.devices is not None and not on_device:
            yield "--no-mmproj-offload", None, "no layer of the model is on a device"
    if second is None or Capability.CHAT not in draft.capabilities:
        return
    yield "--model-draft", str(second), _size_of(draft, DRAFT, "it guesses ahead, and the model checks")
    if facts.flags is not None and _NEWER_DRAFTS in facts.flags:
        yield "--spec-type", "draft-simple", ""
    if settings.draft_tokens is not None:
        newer = facts.flags is None or _NEWER_DRAFTS in facts.flags
        yield _NEWER_DRAFTS if newer else "--draft-max", str(settings.draft_tokens), "from launch.draft_tokens"
    if draft.devices is not None:
        yield "--device-draft", draft.devices[0] if on_device else "none", ""


def _size_of(draft: PlanDraft, role: str, what: str) -> str:
    return f"{what}: {draft.metadata.beside[role].tensor_bytes / 2**20:.0f} MiB of weights"


def _context(draft: PlanDraft, settings: LlamaCppSettings, facts: BuildFacts) -> Iterator[Argument]:
    if draft.ctx_size is not None:
        total = draft.ctx_size if settings.kv_unified else draft.ctx_size * draft.slots
        how = "shared by all slots" if settings.kv_unified else f"{draft.ctx_size} a request x {draft.slots} slots"
        yield "--ctx-size", str(total), how
    yield "--parallel", str(draft.slots), ""
    if settings.kv_unified:
        yield "--kv-unified", None, "from the settings"
    elif draft.slots > 1 and draft.capabilities & _POOLED:
        why = "with a KV of its own for each slot, texts that are embedded together get wrong vectors (seen in b10068)"
        yield "--kv-unified", None, why
    else:
        yield "--no-kv-unified", None, ""
    if draft.cache_type is not None:
        yield "--cache-type-k", draft.cache_type, ""
        yield "--cache-type-v", draft.cache_type, ""
        new = facts.flags is None or _FINE_LEVELS in facts.flags  # older builds' option takes no value
        if new and draft.cache_type not in _PLAIN_TYPES and draft.devices != ():
            yield "--flash-attn", "on", "a quantised cache can't do without; left to itself the engine may turn it off"
    yield "--cache-ram", *_prompt_cache(draft, settings)


def _prompt_cache(draft: PlanDraft, settings: LlamaCppSettings) -> tuple[str, str]:
    """MiB of host memory for prompts that left their slot, and why.

    The engine copies all that a slot holds before it gives it to another request, which waits for that, also where a
    file has it already: 140 MB took 125 to 156 ms.
    """
    why = "at most so many MiB of host memory for prompts that left their slot; the engine itself would take 8192"
    if settings.cache_ram is not None:
        return str(settings.cache_ram), why
    if _kept_in_files(draft):
        return (
            "0",
            "what leaves its slot is kept in files (see `cache`): a copy in memory too would hold up the next one",
        )
    return str(DEFAULT_CACHE_RAM), why


def _kept_in_files(draft: PlanDraft) -> bool:
    """Whether files restore all that the slots hold.

    None is written beside a projector or a draft model, and none restores windows or recurrent states, which the
    engine's own copies do.
    """
    if draft.slot_files is None or Capability.CHAT not in draft.capabilities:
        return False
    if file_of(draft, PROJECTOR) is not None or file_of(draft, DRAFT) is not None:
        return False
    shape = model_shape(draft.metadata)
    return shape is not None and not any(layer.recurrent or layer.window is not None for layer in shape.layers)


def _compute(draft: PlanDraft, settings: LlamaCppSettings) -> Iterator[Argument]:
    if draft.threads is not None:
        yield "--threads", str(draft.threads), ""
    if draft.threads_batch is not None:
        yield "--threads-batch", str(draft.threads_batch), ""
    yield from _placement(draft)
    batch, why = _batch(draft, settings)
    yield "--batch-size", str(batch), why
    ubatch = settings.ubatch_size
    if ubatch is None and Capability.EMBEDDINGS in draft.capabilities:
        ubatch = batch
    if ubatch is not None:
        yield "--ubatch-size", str(ubatch), ""
    yield "--fit", "off", "the plan decides; the engine's own dry run would cost start-up time and decide again"
    if settings.warmup is False:
        yield "--no-warmup", None, "from launch.warmup"


def _placement(draft: PlanDraft) -> Iterator[Argument]:
    if draft.devices is not None:
        yield "--device", ",".join(draft.devices) or "none", ""
    if draft.n_gpu_layers is not None and draft.devices != ():
        yield "--n-gpu-layers", str(draft.n_gpu_layers), ""
    if draft.tensor_split:
        yield "--tensor-split", ",".join(map(str, draft.tensor_split)), ""
        yield "--main-gpu", "0", ""
    if draft.n_cpu_moe:
        yield "--n-cpu-moe", str(draft.n_cpu_moe), ""


def _batch(draft: PlanDraft, settings: LlamaCppSettings) -> tuple[int, str]:
    if settings.batch_size is not None:
        return settings.batch_size, "from launch.batch_size"
    if Capability.CHAT not in draft.capabilities:
        size = min(EMBEDDING_ONLY_BATCH, draft.ctx_size or EMBEDDING_ONLY_BATCH)
        return size, "an input to embed must fit one batch" + _logits(draft, size)
    if draft.n_gpu_layers:
        return DEVICE_BATCH, "layers are on a device: a batch takes well under a second"
    if Capability.EMBEDDINGS in draft.capabilities:
        return EMBEDDING_BATCH, "on the CPU about a second or two; an input to embed must fit one batch"
    return CPU_BATCH, "on the CPU a batch takes about a second, and can't be cut when its client leaves"


def _logits(draft: PlanDraft, batch: int) -> str:
    """What is said of a batch where it makes the engine keep much that nobody reads."""
    size = _FLOAT_BYTES * (draft.metadata.vocabulary_size or 0) * batch
    if size < _MANY_LOGITS:
        return ""
    return f"; for its tokens the engine keeps {size / 2**20:.0f} MiB of logits: a smaller launch.batch_size takes less"


def _serving(draft: PlanDraft) -> Iterator[Argument]:
    if Capability.RERANK in draft.capabilities:
        yield "--rerank", None, "serves rerank"
    elif Capability.EMBEDDINGS in draft.capabilities:
        yield "--embeddings", None, "serves embeddings"
        pooling = draft.metadata.pooling
        if pooling in {None, "none"}:
            yield "--pooling", "mean", "the header names no pooling"
    if draft.slot_files is not None and Capability.CHAT in draft.capabilities:
        yield FOLDER_FLAG, str(draft.slot_files), "conversations outlive switches and restarts: see `cache`"
    yield "--jinja", None, ""
    yield "--threads-http", str(draft.slots + SPARE_HTTP_THREADS), f"{draft.slots} slots + {SPARE_HTTP_THREADS}"
    yield "--metrics", None, ""
    yield "--no-webui", None, ""
    yield "--offline", None, "an engine fetches nothing"
