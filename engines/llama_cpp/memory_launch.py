"""From launch choices to the sizes that llama.cpp works with: context, streams, batches, which layers lie where.

Facts from ``llama_context``'s constructor, ``common_params`` and ``llama_model::load_tensors``.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate

from engines.llama_cpp.memory_model import ModelShape

_DEFAULT_SLOTS = 4
CELLS = 256
"""Contexts are rounded up to this many tokens."""
HOST = -1
"""Place of what lies in host memory; devices are counted from 0."""


@dataclass(frozen=True, slots=True)
class LaunchChoices:
    """What is said to one launch, or left to llama-server's own defaults.

    Attributes:
        ctx_size: tokens of all slots together (``--ctx-size``); None: as trained.
        slots: None: the server's own 4, which then share their cells.
        kv_unified: slots share their cells; None: only where the slots are the server's own.
        n_gpu_layers: None: all. Counted from the last layer; the output is one more.
        devices: names of the devices to use, such as ``CUDA0``; empty: host only.
        shares: of the layers, by device; empty: even.
        flash_auto: llama-server turns flash attention off where it can't run with its layer.
        n_cpu_moe: layers whose experts stay on the host.
        host_kv: caches stay on the host (``--no-kv-offload``).
        takes_over: devices compute large batches of layers on the host too (``--op-offload``).
        mapped: weights are mapped from the file, not read into memory.
        repacks: the CPU backend may repack weights for its own kernels.
        projector_bytes, projector_compute: weights of a projector, and what it computes in.
        projector_on_device: whether they go to a device.
        draft_tokens: tokens that a draft model guesses before the model checks them; 0: there is none.
        build_number: of llama.cpp; None: a recent one.
        has_device_backend: the build carries a device's libraries, used or not.
    """

    ctx_size: int | None = None
    slots: int | None = None
    kv_unified: bool | None = None
    cache_type_k: str = "f16"
    cache_type_v: str = "f16"
    batch: int = 2048
    ubatch: int = 512
    n_gpu_layers: int | None = None
    devices: tuple[str, ...] = ()
    shares: tuple[float, ...] = ()
    n_cpu_moe: int = 0
    flash_attention: bool = True
    flash_auto: bool = True
    full_windows: bool = False
    host_kv: bool = False
    takes_over: bool = True
    mapped: bool = True
    repacks: bool = True
    embeddings: bool = False
    pooling: str | None = None
    cache_ram: int | None = None
    ctx_checkpoints: int | None = None
    projector_bytes: int = 0
    projector_compute: int = 0
    projector_on_device: bool = True
    draft_tokens: int = 0
    build_number: int | None = None
    has_device_backend: bool = False


@dataclass(frozen=True, slots=True)
class Launch:
    """The sizes of one launch.

    Attributes:
        context, slot_context: tokens of all slots, and of one.
        streams: caches beside each other; 1 where slots share.
        tokens: tokens of the largest graph that is computed at once.
        outputs: rows of that graph for which logits are computed.
        places: place of each layer, and of the output as the last.
        flash: attention is computed at once; the caches' form follows ``choices.flash_attention`` even where it is not.
    """

    choices: LaunchChoices
    context: int
    slot_context: int
    slots: int
    streams: int
    unified: bool
    batch: int
    ubatch: int
    tokens: int
    outputs: int
    places: tuple[int, ...]
    flash: bool

    @property
    def on_devices(self) -> bool:
        """Whether any device takes part."""
        return bool(self.choices.devices)

    def cache_place(self, layer: int) -> int:
        """Where a layer's cache and state lie."""
        return HOST if self.choices.host_kv else self.places[layer]

    @property
    def is_whole(self) -> bool:
        """Whether all layers and the output are on devices."""
        return HOST not in self.places


def pad(size: int, to: int) -> int:
    """Up to the next multiple."""
    return -(-size // to) * to


def resolve(choices: LaunchChoices, model: ModelShape) -> Launch:
    """The sizes that follow from choices and model."""
    slots = choices.slots if choices.slots is not None else _DEFAULT_SLOTS
    unified = choices.slots is None if choices.kv_unified is None else choices.kv_unified
    asked = choices.ctx_size or model.trained_context
    context = pad(asked, CELLS)
    slot_context = context if unified else pad(context // slots, CELLS)
    if not unified:
        context = slot_context * slots
    # A request to embed must fit one batch, so the server makes both alike.
    batch = min(choices.batch, choices.ubatch) if choices.embeddings else choices.batch
    batch = min(asked, batch) if model.causal else batch
    ubatch = min(batch, choices.ubatch)
    tokens = min(context, ubatch)
    most_outputs = batch if choices.embeddings or not model.causal else slots * (1 + choices.draft_tokens)
    return Launch(
        choices=choices,
        context=context,
        slot_context=slot_context,
        slots=slots,
        streams=1 if unified else slots,
        unified=unified,
        batch=batch,
        ubatch=ubatch,
        tokens=pad(tokens, slots),
        outputs=min(tokens, most_outputs),
        places=_places(choices, model),
        flash=choices.flash_attention,
    )


def _places(choices: LaunchChoices, model: ModelShape) -> tuple[int, ...]:
    """Layers go to devices from the last one down, each device takes a run of them by its share."""
    count = len(model.layers) + model.number("nextn_predict_layers") + 1
    if not choices.devices:
        return (HOST,) * count
    on_devices = count if choices.n_gpu_layers is None else min(choices.n_gpu_layers, count)
    first = count - on_devices
    shares = choices.shares or (1.0,) * len(choices.devices)
    bounds = [bound / sum(shares) for bound in accumulate(shares)]
    places = [HOST] * first
    for layer in range(on_devices):
        part = layer / on_devices
        places.append(next((index for index, bound in enumerate(bounds) if part < bound), len(bounds) - 1))
    return tuple(places)
