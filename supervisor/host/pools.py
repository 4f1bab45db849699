"""The physical memories of this machine, and what of each may still be promised."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

HOST_POOL = "host"


@dataclass(frozen=True, slots=True)
class PoolRoom:
    """What a launch may take of one physical memory.

    Attributes:
        pool: ``host``, or ``gpu-<pci address or uuid>``.
        budget: bytes that may be promised in all; None: not known.
        total: its size in bytes; None: not known.
        why: the arithmetic behind ``budget``, in words for the owner.
        devices: the chosen build's names for it, such as ``CUDA0``; on a unified machine the host pool has some.
        unified: processors and devices share it.
        foreign: bytes that others hold of it; None: not known.
        reserve: bytes that are kept free of it.
        caps: bytes that one device of it takes at most, by the build's own listing, where that is not all of it.
    """

    pool: str
    budget: int | None
    total: int | None
    why: str
    devices: tuple[str, ...] = ()
    unified: bool = False
    foreign: int | None = None
    reserve: int = 0
    caps: Mapping[str, int] = field(default_factory=dict)
