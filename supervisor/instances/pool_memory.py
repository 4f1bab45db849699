"""Predicted, declared and observed memory of one launch, side by side. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from engines.contract import LaunchPlan, MemoryEstimate


@dataclass(frozen=True, slots=True)
class PoolMemory:
    """Bytes of one pool; None: not known.

    Attributes:
        predicted: by the plan, mapped weights among them.
        mapped: of that, weights mapped from files. They are never part of ``observed``, since their pages come and go.
        declared: by the engine's log: weights, caches and working buffers, but not the program itself.
        observed: what the process holds itself.
    """

    predicted: int | None
    mapped: int | None
    declared: int | None
    observed: int | None


def pool_memory(
    plan: LaunchPlan, declared: Mapping[str, MemoryEstimate], observed: Mapping[str, int]
) -> Mapping[str, PoolMemory]:
    """The columns by pool.

    Args:
        plan: what it was launched with.
        declared: by place: ``host``, and the build's device names.
        observed: by pool.
    """
    pools = dict.fromkeys((*plan.memory, *(plan.pools.get(place, place) for place in declared), *observed))
    return {pool: _columns(pool, plan, declared, observed) for pool in pools}


def _columns(
    pool: str, plan: LaunchPlan, declared: Mapping[str, MemoryEstimate], observed: Mapping[str, int]
) -> PoolMemory:
    sizes = [part.total for place, part in declared.items() if plan.pools.get(place, place) == pool]
    known = [size for size in sizes if size is not None]
    predicted = plan.memory.get(pool, MemoryEstimate())
    return PoolMemory(predicted.total, predicted.mapped, sum(known) if known else None, observed.get(pool))
