"""Parts of a launch plan: choices with their reasons, memory by pool, and what can be moved to make it fit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Choice:
    """One decision of a plan, with its reason in words for the owner."""

    choice: str
    value: Any
    reason: str


@dataclass(frozen=True, slots=True)
class MemoryEstimate:
    """Predicted bytes in one pool; None where it is not known.

    Attributes:
        weights: of the model, with copies in other forms.
        kv: caches of keys and values, and recurrent states.
        compute: working buffers and outputs.
        other: the program itself, its prompt cache and checkpoints.
        mapped: the part of ``weights`` that is mapped from the files: page cache, shared by all who map them.
        upper: bytes on top that the parts may be short by, for a cautious admission.
        ready: what the process itself holds when it is ready and was asked nothing; the rest is still to grow.
    """

    weights: int | None = None
    kv: int | None = None
    compute: int | None = None
    other: int | None = None
    mapped: int | None = None
    upper: int | None = None
    ready: int | None = None

    @property
    def total(self) -> int | None:
        """Sum of what is known, in bytes; None when nothing is."""
        known = [part for part in (self.weights, self.kv, self.compute, self.other) if part is not None]
        return sum(known) if known else None

    @property
    def anonymous(self) -> int | None:
        """What of the total is the process's own memory, not mapped files."""
        return None if self.total is None else self.total - (self.mapped or 0)


@dataclass(frozen=True, slots=True)
class Budget:
    """What a launch may take of one pool, in bytes (None: not known), and the arithmetic behind it in words."""

    bytes: int | None
    why: str


@dataclass(frozen=True, slots=True)
class Tried:
    """One way to launch that was weighed.

    Attributes:
        step: what it was, in words.
        needed: bytes by pool, with the margin for what is less sure.
        budget: bytes by pool that there were; None: not known.
    """

    step: str
    needed: Mapping[str, int]
    budget: Mapping[str, int | None]


@dataclass(frozen=True, slots=True)
class Movable:
    """What of a launch may lie elsewhere or be made smaller, so that it fits.

    Attributes:
        layers: that devices may hold, the output counted as one; None: not known.
        expert_layers: layers whose experts may stay in host memory: those up to the last that has any; 0: none.
        cache_types: types of the KV cache that this model can run with, each smaller than the one before.
        owned: choices of the plan that the user's extra arguments make, by their names in ``PlanDraft``.
    """

    layers: int | None
    expert_layers: int
    cache_types: tuple[str, ...]
    owned: frozenset[str]


@dataclass(frozen=True, slots=True)
class Beside:
    """What a launch shares the CPUs with, as it was when the launch was planned.

    Attributes:
        cpu_resident: other instances whose layers the CPU computes, all or some.
        gpu_threads: threads of the others, whose layers all lie on a device.
    """

    cpu_resident: int = 0
    gpu_threads: int = 0


ALONE = Beside()
