"""Bytes of the compute buffers: the graph of the largest batch is built and its allocation replayed."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import replace

from engines.formats.gguf_layout import PlacedTensor
from engines.llama_cpp.graphs.backends import Backend, device_backend, host_backend
from engines.llama_cpp.graphs.decoders import Decoder
from engines.llama_cpp.graphs.encoders import BERTS, build_bert, build_gemma_embedding
from engines.llama_cpp.graphs.folding import folded_signs, layers_to_build
from engines.llama_cpp.graphs.network import Batch, Network, UnknownNetworkError
from engines.llama_cpp.graphs.rwkv import Rwkv7
from engines.llama_cpp.graphs.scheduler import Policy, assign, compute_bytes
from engines.llama_cpp.memory_launch import CELLS, HOST, Launch, pad
from engines.llama_cpp.memory_model import DELTA_NETS, ModelShape

_PROBE_TOKENS = 16
# What numbers that can't be meant lead to in a header that is sound otherwise: no network is made of them.
_NONSENSE = (ArithmeticError, LookupError, ValueError, RecursionError)
_BATCHES_AT_ONCE = 4
# Of the published sources b10068 still decides by the sinks, b10178 does not.
_SINKS_ASIDE_SINCE = 10069


Computed = tuple[bool, dict[int, int] | None]
"""Whether attention is computed at once, and bytes of the compute buffers by place."""


class ComputeMemo:
    """What was computed for one model: two launches whose graphs are built of the same layers need the same."""

    def __init__(self) -> None:
        self._known: dict[Hashable, Computed] = {}

    def get(self, model: ModelShape, launch: Launch, compute: Callable[[], Computed]) -> Computed:
        """What ``compute`` answers, or answered for such a launch before."""
        rest = launch.places[len(model.layers) :]
        choices = replace(launch.choices, n_gpu_layers=None, shares=(), n_cpu_moe=bool(launch.choices.n_cpu_moe))
        key = (choices, folded_signs(model, launch), rest, launch.is_whole)
        if key not in self._known:
            self._known[key] = compute()
        return self._known[key]


def compute_buffers(model: ModelShape, launch: Launch, placed: Mapping[str, int]) -> dict[int, int] | None:
    """Bytes by place; None for a network that is not modelled here, or can't be.

    llama.cpp reserves for a full batch, then for one token a slot: a buffer is as large as the larger asks.
    """
    if launch.tokens <= 0:
        return None
    devices = launch.choices.devices
    backends = _backends(launch)
    batches = [Batch(launch.tokens, launch.slots, launch.outputs)]
    if devices:
        batches.append(Batch(launch.slots, launch.slots, launch.slots))
    most = [0] * len(backends)
    try:
        fuses = _fuses_delta(model, launch, placed, backends)
        for batch in batches:
            net = build(model, launch, placed, batch, fuses_delta=fuses)
            sizes = compute_bytes(net.graph, backends, _policy(launch, newer=net.mixed))
            most = [max(pair) for pair in zip(most, sizes, strict=True)]
    except (UnknownNetworkError, *_NONSENSE):
        return None
    places = [*range(len(devices)), HOST]
    return dict(zip(places, most, strict=True))


def first_batch_buffers(model: ModelShape, launch: Launch, placed: Mapping[str, int]) -> dict[int, int] | None:
    """Bytes that one full batch touches in an empty context, by place."""
    tokens = min(launch.ubatch, launch.slot_context)
    return compute_buffers(model, replace(launch, slot_context=min(launch.slot_context, pad(tokens, CELLS))), placed)


def _policy(launch: Launch, *, newer: bool) -> Policy:
    """Several devices that hold all layers work on several batches at once."""
    choices = launch.choices
    pipelines = len(choices.devices) > 1 and launch.is_whole and not choices.host_kv and not choices.n_cpu_moe
    older = choices.build_number is not None and choices.build_number < _SINKS_ASIDE_SINCE
    return Policy(choices.takes_over, _BATCHES_AT_ONCE if pipelines else 1, copies_all=newer, sinks_decide=older)


def compute_guess(model: ModelShape, launch: Launch) -> int:
    """More than such a network should need, for one that is not modelled: masks, residuals, the widest layer."""
    tokens = launch.tokens
    masks = 2 * (4 if not launch.flash else 2) * tokens * launch.slot_context
    widest = max((tensor.dims[1] for tensor in model.tensors.values() if _is_layer_matrix(tensor)), default=0)
    scores = 0
    if not launch.flash:
        scores = 4 * tokens * launch.slot_context * max((layer.heads for layer in model.layers), default=0)
    return masks + scores + 4 * tokens * (8 * model.embedding + 4 * widest)


def _is_layer_matrix(tensor: PlacedTensor) -> bool:
    return len(tensor.dims) > 1 and tensor.name.startswith("blk.")


def _fuses_delta(model: ModelShape, launch: Launch, placed: Mapping[str, int], backends: Sequence[Backend]) -> bool:
    if not model.scan_state or model.architecture not in DELTA_NETS:
        return True
    return _runs_with_layers(model, launch, placed, backends, ("GATED_DELTA_NET", _PROBE_TOKENS))


def keeps_flash_attention(model: ModelShape, launch: Launch, placed: Mapping[str, int]) -> bool:
    """Whether ``--flash-attn auto`` stays on: llama.cpp turns it off where it would run beside its layer."""
    try:
        return _runs_with_layers(model, launch, placed, _backends(launch), ("FLASH_ATTN_EXT", 1))
    except (UnknownNetworkError, *_NONSENSE):
        return True


def _runs_with_layers(
    model: ModelShape,
    launch: Launch,
    placed: Mapping[str, int],
    backends: Sequence[Backend],
    probe: tuple[str, int],
) -> bool:
    """As llama.cpp asks it: whether each such operation of a small batch would run where its layer lies."""
    if not launch.on_devices or launch.tokens <= 0:
        return True
    op, tokens = probe
    tokens *= launch.slots
    net = build(model, launch, placed, Batch(tokens, launch.slots, tokens))
    assign(net.graph, backends, _policy(launch, newer=net.mixed))
    return all(node.backend == net.store(launch.places[layer]) for layer, node in net.fused if node.op == op)


def _backends(launch: Launch) -> Sequence[Backend]:
    devices = launch.choices.devices
    return [*(device_backend(device) for device in devices), host_backend(devices[0] if devices else None)]


def build(
    model: ModelShape, launch: Launch, placed: Mapping[str, int], batch: Batch, *, fuses_delta: bool = True
) -> Network:
    """The graph of one batch.

    Raises:
        UnknownNetworkError: parts of this network are not modelled.
    """
    layers = layers_to_build(model, launch)
    net = Network(model, launch, placed, batch, layers=layers, fuses_delta=fuses_delta)
    if model.architecture in BERTS:
        build_bert(net)
    elif model.architecture == "gemma-embedding":
        build_gemma_embedding(net)
    elif model.architecture == "rwkv7":
        Rwkv7(net).build()
    elif model.encoder:
        raise UnknownNetworkError(model.architecture)
    else:
        Decoder(net).build()
    return net
