"""The host pool's budget: what all engines together may hold of the machine's memory. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from supervisor.host.memory import MemoryBound, MemoryBudget
from supervisor.host.pools import HOST_POOL, PoolRoom
from supervisor.units import format_size


@dataclass(frozen=True, slots=True)
class HostLimits:
    """``host`` of the config, in bytes.

    Attributes:
        memory: the budget as the owner sets it; None: what the machine leaves.
        reserve: what is kept free.
    """

    memory: int | None
    reserve: int


def host_room(memory: MemoryBudget, ours: int | None, limits: HostLimits) -> PoolRoom:
    """What engines may hold of the host's memory in all.

    Set by the owner, it is that, less the reserve. Else each bound (every limit of a cgroup ancestor, and the machine)
    leaves its size, less the reserve, less what others hold of it unreclaimably; the least decides. File cache is not
    subtracted, since the weights that our engines map are in it, and they are promised one by one.

    Args:
        memory: the machine as it was read.
        ours: bytes of it that our engines hold themselves (anonymous and shared memory), which are not others'; None:
            not known, and then counted as others'.
        limits: ``host`` of the config.
    """
    total = memory.host_total_bytes
    if limits.memory is not None:
        budget, held = max(0, limits.memory - limits.reserve), _held_of_all(memory, ours)
        return PoolRoom(HOST_POOL, budget, total, _set_by_owner(limits), foreign=held, reserve=limits.reserve)
    if not memory.bounds:
        why = "neither the machine nor its cgroups say how much memory there is: set host.memory"
        return PoolRoom(HOST_POOL, None, total, why, reserve=limits.reserve)
    lefts = [(bound.size - _others(bound, ours) - limits.reserve, bound) for bound in memory.bounds]
    left, deciding = min(lefts, key=lambda pair: pair[0])
    why = _arithmetic(deciding, ours, limits.reserve, left)
    foreign = None if deciding.held is None else _others(deciding, ours)
    return PoolRoom(HOST_POOL, max(0, left), total, why, foreign=foreign, reserve=limits.reserve)


def _others(bound: MemoryBound, ours: int | None) -> int:
    """Bytes that others hold; 0 where it can't be told, which the arithmetic says."""
    return 0 if bound.held is None else max(0, bound.held - (ours or 0))


def _held_of_all(memory: MemoryBudget, ours: int | None) -> int | None:
    """Bytes that others hold of the widest bound, which is the machine where that can be read; None: not known."""
    widest = max(memory.bounds, key=lambda bound: bound.size, default=None)
    return None if widest is None or widest.held is None else _others(widest, ours)


def _set_by_owner(limits: HostLimits) -> str:
    whole, kept = format_size(limits.memory), format_size(limits.reserve)
    if limits.memory is not None and limits.memory <= limits.reserve:
        return (
            f"host.memory is {whole} and host.reserve.memory keeps {kept} of it free, so nothing is left: "
            f"set host.memory higher, or the reserve lower"
        )
    return f"host.memory {whole} - host.reserve.memory {kept}"


def _arithmetic(bound: MemoryBound, ours: int | None, reserve: int, left: int) -> str:
    others = "what others hold, which is not known"
    if bound.held is not None:
        others = f"held by others {format_size(_others(bound, ours))}"
        if ours:
            others += f" (held in all {format_size(bound.held)}, of that by our engines {format_size(ours)})"
    words = f"{format_size(bound.size)} in {bound.source} - {others} - host.reserve.memory {format_size(reserve)}"
    return words if left > 0 else f"{words}: nothing is left"
