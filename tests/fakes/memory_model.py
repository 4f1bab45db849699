"""A model whose memory is simple arithmetic, so that a test knows where it fits and where it does not."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from engines.contract import Capability, MemoryEstimate, ModelMetadata, Movable, PlanDraft
from engines.llama_cpp.settings import LlamaCppSettings
from supervisor.host.pools import PoolRoom
from supervisor.planning.placement import Offer, Placements
from supervisor.planning.scales import Scales

KIB = 2**10
MIB = 2**20
TYPES = {"f16": 16, "q8_0": 8, "q4_0": 4}
METADATA = ModelMetadata(format="gguf", architecture="fake", file_bytes=1, tensor_bytes=1)


@dataclass(frozen=True, slots=True)
class MemoryModel:
    """Sizes in MiB, by layer; the last of ``layers`` is the output.

    Attributes:
        dense, experts: weights of a layer.
        token: KiB of one token's cache in one layer, in f16.
        compute: on each device that takes part, and on the host.
    """

    layers: int = 33
    dense: int = 100
    experts: int = 0
    token: int = 1
    compute: int = 50

    def estimate(self, draft: PlanDraft) -> Mapping[str, MemoryEstimate]:
        """As an adapter's estimator."""
        devices = draft.devices or ()
        on = 0 if not devices else min(self.layers, self.layers if draft.n_gpu_layers is None else draft.n_gpu_layers)
        split = draft.tensor_split or _even(on, len(devices))
        first = self.layers - on
        places = ["host"] * first
        for device, count in zip(devices, split, strict=True):
            places += [device] * count
        sizes = {place: [0, 0] for place in ("host", *devices)}
        cache = (draft.ctx_size or 0) * draft.slots * self.token * KIB * TYPES[draft.cache_type or "f16"] // 16
        for layer, place in enumerate(places):
            sizes["host" if layer < draft.n_cpu_moe else place][0] += self.experts * MIB
            sizes[place][0] += self.dense * MIB
            sizes[place][1] += cache
        return {
            place: MemoryEstimate(weights=weights, kv=kv, compute=self.compute * MIB, other=0, upper=0)
            for place, (weights, kv) in sizes.items()
        }

    def movable(self, *owned: str) -> Movable:
        """As an adapter's."""
        return Movable(self.layers, self.layers if self.experts else 0, tuple(TYPES), frozenset(owned))


def draft_of(slots: int = 4, ctx_size: int = 8192, cache_type: str = "f16") -> PlanDraft:
    """A draft that lies nowhere yet."""
    return PlanDraft(
        model_id="m",
        files=(Path("/m.gguf"),),
        metadata=METADATA,
        settings=LlamaCppSettings(),
        capabilities=frozenset({Capability.CHAT}),
        threads=1,
        threads_batch=1,
        devices=None,
        n_gpu_layers=None,
        ctx_size=ctx_size,
        slots=slots,
        cache_type=cache_type,
    )


def scales_of(model: MemoryModel, host: int | None, *cards: int | None) -> Scales:
    """A host and cards ``GPU0``, ``GPU1`` … with rooms in MiB."""
    rooms = [_room("host", host)]
    rooms += [_room(f"gpu-{number}", size, f"GPU{number}") for number, size in enumerate(cards)]
    return Scales(model.estimate, tuple(rooms), allow_paging=False)


def placements_of(
    model: MemoryModel, scales: Scales, devices: tuple[str, ...], layers: int | None = None, *, named: bool = False
) -> Placements:
    """The search over these devices."""
    return Placements(Offer(devices, named=named, layers=layers, why="a test"), model.movable(), scales)


def _room(pool: str, size: int | None, *devices: str) -> PoolRoom:
    budget = None if size is None else size * MIB
    return PoolRoom(pool, budget, budget, "set by a test", devices)


def _even(layers: int, devices: int) -> tuple[int, ...]:
    return tuple(layers * (place + 1) // devices - layers * place // devices for place in range(devices))
