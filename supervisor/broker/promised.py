"""What is promised to engines that run already, so that nobody is promised it twice. Pure; a simple sum."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from engines.contract import MemoryEstimate
from supervisor.host.pools import PoolRoom
from supervisor.instances.instance import Instance
from supervisor.instances.lifecycle import InstanceState
from supervisor.units import format_size

_HOLDING = (InstanceState.STARTING, InstanceState.READY, InstanceState.UNRESPONSIVE, InstanceState.STOPPING)


@dataclass(frozen=True, slots=True)
class Holder:
    """A model whose engine runs, starts or stops.

    Attributes:
        pid: leader of its process group; None before there is a process.
        files: what it maps.
        predicted: its plan's memory by pool.
        observed: bytes that it was seen to hold itself, by pool, mapped files not counted.
    """

    model_id: str
    pid: int | None
    files: tuple[Path, ...]
    predicted: Mapping[str, MemoryEstimate]
    observed: Mapping[str, int] = field(default_factory=dict)


def holders_of(instances: Iterable[Instance]) -> tuple[Holder, ...]:
    """The instances that have, or are getting, an engine."""
    return tuple(
        Holder(instance.model_id, instance.pid, instance.entry.files, instance.plan.memory, _observed(instance))
        for instance in instances
        if instance.plan is not None and instance.state in _HOLDING
    )


def _observed(instance: Instance) -> Mapping[str, int]:
    return {pool: columns.observed for pool, columns in instance.memory.items() if columns.observed is not None}


def rooms_for(
    rooms: Iterable[PoolRoom], holders: Iterable[Holder], model_id: str, files: tuple[Path, ...]
) -> tuple[PoolRoom, ...]:
    """The rooms that are left for a newcomer, with the arithmetic.

    Each holder keeps the greater of what was predicted (with the margin, until it was looked at) and what was seen, and
    its mapped weights once per file: those that the newcomer maps too are left to the newcomer's own account. What
    ``model_id`` holds itself is its to use again.
    """
    others = [holder for holder in holders if holder.model_id != model_id]
    return tuple(_less(room, others, files) for room in rooms)


def held_of(holders: Iterable[Holder], pool: str) -> int:
    """What the holders are believed to hold of a pool themselves, in bytes: what was seen, else what was predicted."""
    return sum(
        holder.observed.get(pool, holder.predicted.get(pool, MemoryEstimate()).anonymous or 0) for holder in holders
    )


def _less(room: PoolRoom, holders: list[Holder], files: tuple[Path, ...]) -> PoolRoom:
    seen = {files}
    shares: list[tuple[str, int]] = []
    for holder in holders:
        estimate = holder.predicted.get(room.pool, MemoryEstimate())
        seen_bytes = holder.observed.get(room.pool)
        margin = (estimate.upper or 0) if seen_bytes is None else 0
        share = max((estimate.anonymous or 0) + margin, seen_bytes or 0)
        if holder.files not in seen:
            share += estimate.mapped or 0
        seen.add(holder.files)
        if share:
            shares.append((holder.model_id, share))
    if not shares or room.budget is None:
        return room
    names = ", ".join(f"{name} {format_size(share)}" for name, share in shares)
    left = max(0, room.budget - sum(share for _, share in shares))
    return replace(room, budget=left, why=f"{room.why} - promised to running models ({names})")
