"""The whole memory of one launch before it begins: a table by place and by buffer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from engines.contract import MemoryEstimate
from engines.llama_cpp.graphs.backends import family_of
from engines.llama_cpp.memory_compute import (
    ComputeMemo,
    compute_buffers,
    compute_guess,
    first_batch_buffers,
    keeps_flash_attention,
)
from engines.llama_cpp.memory_host import checkpoint_bytes, checkpoints_limit, growing_bytes, program_bytes
from engines.llama_cpp.memory_kv import cache_bytes, grown_output_bytes, output_bytes, state_bytes, window_bytes
from engines.llama_cpp.memory_launch import HOST, Launch, LaunchChoices, resolve
from engines.llama_cpp.memory_model import ModelShape
from engines.llama_cpp.memory_weights import WeightBytes, weight_bytes

HOST_POOL = "host"
# A device's context and the libraries that it loads there: nothing declares them before they are seen. Not measured
# here; drivers of recent cards are said to take 250 to 550 MiB.
_CONTEXTS = dict.fromkeys(("CUDA", "ROCm", "MUSA", "SYCL"), 512 * 2**20)
_DEFAULT_CACHE_RAM = 8192 * 2**20
# Families whose compute buffers were compared with recorded launches, and architectures that took part.
_RECORDED_FAMILIES = frozenset({"Vulkan"})
_RECORDED = frozenset({"llama", "qwen2", "qwen3", "qwen3moe", "gemma2", "gemma3", "gemma4", "cohere2", "olmo2"}) | {
    *("phi3", "gpt2", "starcoder2", "gpt-oss", "deepseek2", "glm4moe", "mamba", "mamba2", "jamba", "granitehybrid"),
    *("nemotron_h", "falcon-h1", "lfm2", "qwen35", "qwen3next", "rwkv7", "bert", "nomic-bert", "gemma-embedding"),
}


@dataclass(frozen=True, slots=True)
class Buffers:
    """Bytes at one place; None: not known.

    Attributes:
        mapped: weights mapped from the files, as spans; page cache, not anonymous memory.
        weights: weights read into memory there.
        repacked: weights in the CPU's own form, beside the mapped ones.
        compute: what is reserved for computing.
        output: logits and embeddings, as they are reserved.
        grown_output: what they grow by when texts are embedded; nothing declares it.
        projector: weights of a projector, which are read into memory and told in a form of their own.
        program: the server itself, its tables and kept graphs; on a device: its context.
        prompt_cache: what prompts that left their slot may grow to.
        checkpoints: what context checkpoints may grow to.
    """

    mapped: int | None = 0
    weights: int | None = 0
    repacked: int | None = 0
    kv: int | None = 0
    recurrent: int | None = 0
    compute: int | None = 0
    output: int | None = 0
    grown_output: int | None = 0
    projector: int | None = 0
    program: int | None = 0
    prompt_cache: int | None = 0
    checkpoints: int | None = 0


@dataclass(frozen=True, slots=True)
class MemoryTable:
    """Bytes of one launch.

    Attributes:
        launch: the sizes that they follow from.
        by_place: ``host``, and devices by their names.
        ready_bytes: anonymous memory of the process when it is ready; a device's libraries are not known.
        first_request_bytes: the same after a first short request, where no device takes part.
        upper: bytes that compute and what is not known may be short by, by place.
        margin: of them, those for compute.
    """

    launch: Launch
    by_place: Mapping[str, Buffers]
    ready_bytes: int | None
    first_request_bytes: int | None
    upper: Mapping[str, int]
    margin: Mapping[str, int]


def memory_table(model: ModelShape, choices: LaunchChoices, memo: ComputeMemo | None = None) -> MemoryTable:
    """The table of one launch; pure, and quick enough to be asked for many placements.

    ``memo`` keeps what was computed for one model; another model needs one of its own.
    """
    launch = resolve(choices, model)
    weights = weight_bytes(model, launch)
    compute = None
    if weights is not None:
        flash, compute = (memo or ComputeMemo()).get(model, launch, lambda: _compute(model, launch, weights))
        launch = replace(launch, flash=flash)
    by_place = {HOST_POOL: _host_buffers(model, launch, weights, compute)}
    kv, states = cache_bytes(model, launch), state_bytes(model, launch)
    for index, name in enumerate(choices.devices):
        sees = index == 0 and choices.projector_on_device
        by_place[name] = Buffers(
            weights=None if weights is None else weights.devices.get(index, 0),
            kv=kv.get(index, 0),
            recurrent=states.get(index, 0),
            compute=None if compute is None else compute[index] + (choices.projector_compute if sees else 0),
            projector=choices.projector_bytes if sees else 0,
            program=None,
        )
    margin = {
        name: _margin(model, launch, name, buffers.compute)
        + (choices.projector_compute // 4 if buffers.projector else 0)
        for name, buffers in by_place.items()
    }
    upper = {name: size + _context_bytes(name) for name, size in margin.items()}
    first = _first_request_bytes(model, by_place[HOST_POOL])
    ready = None if first is None else first - checkpoint_bytes(model) - growing_bytes(model)
    return MemoryTable(launch, by_place, ready, None if launch.on_devices else first, upper, margin)


def _compute(model: ModelShape, launch: Launch, weights: WeightBytes) -> tuple[bool, dict[int, int] | None]:
    """Whether attention is computed at once, and the compute buffers by place."""
    if _asks_for_flash(model, launch) and not keeps_flash_attention(model, launch, weights.placed):
        launch = replace(launch, flash=False)
    return launch.flash, compute_buffers(model, launch, weights.placed)


def _asks_for_flash(model: ModelShape, launch: Launch) -> bool:
    """Only where layers are parted can an operation run beside its layer."""
    choices = launch.choices
    asked = choices.flash_attention and choices.flash_auto and choices.cache_type_v in {"f16", "f32", "bf16"}
    return asked and launch.on_devices and not launch.is_whole and not model.encoder


def pool_estimates(table: MemoryTable) -> Mapping[str, MemoryEstimate]:
    """The table in the planner's form, by place; what is not known within a sum leaves the rest of it."""
    return {
        name: MemoryEstimate(
            weights=_sum(buffers.mapped, buffers.weights, buffers.repacked),
            kv=_sum(buffers.kv, buffers.recurrent),
            compute=_sum(buffers.compute, buffers.output) if buffers.compute is not None else None,
            other=_sum(
                buffers.program,
                buffers.projector,
                buffers.grown_output,
                buffers.prompt_cache,
                buffers.checkpoints,
            ),
            mapped=buffers.mapped,
            upper=table.upper[name],
            ready=table.ready_bytes if name == HOST_POOL else None,
        )
        for name, buffers in table.by_place.items()
    }


def _sum(*parts: int | None) -> int | None:
    return None if None in parts else sum(part for part in parts if part is not None)


def _host_buffers(
    model: ModelShape, launch: Launch, weights: WeightBytes | None, compute: Mapping[int, int] | None
) -> Buffers:
    choices = launch.choices
    sees = not (choices.devices and choices.projector_on_device)
    return Buffers(
        mapped=None if weights is None else weights.mapped,
        weights=None if weights is None else weights.host,
        repacked=None if weights is None else weights.repacked,
        kv=cache_bytes(model, launch).get(HOST, 0),
        recurrent=state_bytes(model, launch).get(HOST, 0),
        compute=None if compute is None else compute[HOST] + (choices.projector_compute if sees else 0),
        output=output_bytes(model, launch),
        grown_output=grown_output_bytes(model, launch),
        projector=choices.projector_bytes if sees else 0,
        program=program_bytes(model, launch),
        prompt_cache=_DEFAULT_CACHE_RAM if choices.cache_ram is None else choices.cache_ram,
        checkpoints=checkpoints_limit(model, launch, window_bytes(model, launch)),
    )


def _first_request_bytes(model: ModelShape, host: Buffers) -> int | None:
    held = _sum(host.weights, host.repacked, host.kv, host.recurrent, host.output, host.program, host.projector)
    return None if held is None else held + checkpoint_bytes(model)


def full_batch_bytes(model: ModelShape, table: MemoryTable) -> int | None:
    """Anonymous memory of the process after one full batch in an empty context, where no device takes part.

    The compute buffer is reserved for a full context, whose masks and scores only a long conversation touches.
    """
    weights = weight_bytes(model, table.launch)
    if table.first_request_bytes is None or weights is None:
        return None
    touched = first_batch_buffers(model, table.launch, weights.placed)
    grown = table.by_place[HOST_POOL].grown_output or 0
    return None if touched is None else table.first_request_bytes + touched[HOST] + grown


def _context_bytes(name: str) -> int:
    """A device's own context."""
    return 0 if name == HOST_POOL else _CONTEXTS.get(family_of(name), 0)


def _margin(model: ModelShape, launch: Launch, name: str, compute: int | None) -> int:
    """For what was never compared with a real launch of the kind; nothing for those that were: they come out exact.

    Still, parted layers and several devices get a tenth of their compute buffers; where the network or the device's
    family is a stranger it is a quarter, and half with layers parted.
    """
    if compute is None:
        return compute_guess(model, launch) if name == HOST_POOL or launch.on_devices else 0
    strange_network = model.architecture not in _RECORDED
    strange_device = any(family_of(device) not in _RECORDED_FAMILIES for device in launch.choices.devices)
    if strange_device and not launch.is_whole:
        return compute // 2
    if strange_device or strange_network:
        return compute // 4
    parted = launch.on_devices and (not launch.is_whole or len(launch.choices.devices) > 1)
    return compute // 10 if parted else 0
