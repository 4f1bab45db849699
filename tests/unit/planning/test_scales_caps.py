"""A device that shares the host's memory takes no more of it than it lists."""

from __future__ import annotations

from pathlib import Path

from engines.contract import MemoryEstimate, ModelMetadata, PlanDraft
from engines.llama_cpp.settings import LlamaCppSettings
from supervisor.host.pools import PoolRoom
from supervisor.planning.scales import Scales, in_words

GIB = 2**30
ROOM = PoolRoom("host", 16 * GIB, 16 * GIB, "16.0 GiB", ("Vulkan0",), caps={"Vulkan0": 2 * GIB})

DRAFT = PlanDraft(
    model_id="m",
    files=(Path("/m.gguf"),),
    metadata=ModelMetadata("gguf", "llama", GIB, GIB),
    settings=LlamaCppSettings(),
    capabilities=frozenset(),
    threads=2,
    threads_batch=2,
    devices=("Vulkan0",),
    n_gpu_layers=5,
    ctx_size=2048,
    slots=2,
    cache_type=None,
)


def _needs(device: float) -> Scales:
    def estimate(draft: PlanDraft) -> dict[str, MemoryEstimate]:
        del draft
        return {"host": MemoryEstimate(kv=GIB), "Vulkan0": MemoryEstimate(kv=int(device * GIB))}

    return Scales(estimate, (ROOM,), allow_paging=False)


def test_a_device_is_full_before_its_pool() -> None:
    """3 GiB do not fit a device of 2, whatever the host has; 1 GiB does."""
    assert not _needs(3).weigh(DRAFT).fits
    assert _needs(3).weigh(DRAFT).worst == GIB
    assert _needs(1).weigh(DRAFT).fits
    assert _needs(1).device_room("Vulkan0") == 2 * GIB


def test_the_device_s_own_bound_is_told() -> None:
    """A plan that leaves layers out said "3.4 GiB of 20.2 GiB in host; more do not fit", which nobody could believe."""
    scales = _needs(3)
    weighed = scales.weigh(DRAFT)
    assert in_words(weighed, scales) == "3.0 GiB of 2.0 GiB on Vulkan0, 4.0 GiB of 16.0 GiB in host (16.0 GiB)"
    tried = scales.attempt("as wished", weighed)
    assert (tried.needed["Vulkan0"], tried.budget["Vulkan0"]) == (3 * GIB, 2 * GIB)
