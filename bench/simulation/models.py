"""Models that exist only in a simulation, their catalog entries and their plans."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from engines.contract import Capability, EngineKind, LaunchPlan
from engines.llama_cpp.settings import LlamaCppSettings
from supervisor.models.catalog import ModelEntry


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """A model and its engine's manners.

    Attributes:
        size: bytes that are predicted.
        load: seconds of a load, give or take a half.
        lies: bytes that it holds beyond the prediction once it is ready.
        leaks: bytes that each request leaves behind; gone with the process.
        lags: seconds after the process's end until its bytes are free.
        crashes: share of requests that end the engine; ``fails``: of loads that crash; ``hangs``: of loads that
            never end by themselves.
    """

    name: str
    size: int
    slots: int = 2
    load: float = 8.0
    lies: int = 0
    leaks: int = 0
    lags: float = 0.0
    crashes: float = 0.0
    fails: float = 0.0
    hangs: float = 0.0
    pinned: bool = False
    keep_alive: float | None = None


def entry_of(spec: ModelSpec) -> ModelEntry:
    """The catalog's entry."""
    return ModelEntry(
        id=spec.name,
        engine=EngineKind.LLAMA_CPP,
        files=(Path(f"/models/{spec.name}.gguf"),),
        aliases=(),
        serves=frozenset({Capability.CHAT}),
        settings=LlamaCppSettings(),
        defaults=LlamaCppSettings(),
        metadata=None,
        broken=None,
        build=None,
        keep_alive=spec.keep_alive,
        pinned=spec.pinned,
        preload=False,
        allow_paging=False,
    )


def plan_of(spec: ModelSpec, memory: Mapping[str, Any], *, fits: bool) -> LaunchPlan:
    """A plan with nothing in it but its memory."""
    return replace(_EMPTY, model_id=spec.name, memory=memory, fits=fits)


_EMPTY = LaunchPlan(
    model_id="",
    engine=EngineKind.LLAMA_CPP,
    build="b",
    fingerprint="f",
    executable=Path("/x"),
    argv=(),
    env={},
    threads=1,
    threads_batch=1,
    n_gpu_layers=None,
    ctx_size=1,
    slots=1,
    cache_type=None,
    memory={},
    fits=True,
    rationale=(),
)
