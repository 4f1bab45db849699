"""Predicted memory of a llama-server launch: what its command line says, on this model and this build."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from engines.contract import BuildFacts, Capability, Estimator, MemoryEstimate, ModelMetadata, PlanDraft, SettingsError
from engines.llama_cpp.command import build_command
from engines.llama_cpp.memory_argv import choices_from_argv
from engines.llama_cpp.memory_beside import projector_compute, with_draft
from engines.llama_cpp.memory_compute import ComputeMemo
from engines.llama_cpp.memory_launch import LaunchChoices
from engines.llama_cpp.memory_model import ModelShape, model_shape
from engines.llama_cpp.memory_plan import HOST_POOL, MemoryTable, memory_table, pool_estimates
from engines.llama_cpp.parts import DRAFT, PROJECTOR
from engines.llama_cpp.settings import LlamaCppSettings

_NUMBER = re.compile(r"b?(\d{3,})\b")
_DROPPED_FLAG = "--no-mmap"
_OLDER = 10435
_DRAFT_TOKENS = 3  # the engine's own
_UNKNOWN_BUILD = BuildFacts(version=None, flags=None, devices=None)


def estimate_memory(draft: PlanDraft) -> Mapping[str, MemoryEstimate]:
    """Bytes by pool: ``host``, and each device by the build's name for it.

    Where it is not known which weights go where, the host gets all of them; of a model whose header says too little,
    nothing else is known.
    """
    return _estimate(draft, table_of(draft))


def _estimate(draft: PlanDraft, table: MemoryTable | None) -> Mapping[str, MemoryEstimate]:
    weights = draft.metadata.tensor_bytes
    if table is None:
        return {HOST_POOL: MemoryEstimate(weights=weights, mapped=weights)}
    pools = dict(pool_estimates(table))
    if pools[HOST_POOL].weights is None:
        pools[HOST_POOL] = replace(pools[HOST_POOL], weights=weights, mapped=weights)
    return pools


def estimator(metadata: ModelMetadata) -> Estimator:
    """``estimate_memory`` for many drafts of one model: the shape and what is computed for computing are kept."""
    shapes, memos = _shapes(metadata), (ComputeMemo(), ComputeMemo())
    return lambda draft: _estimate(draft, _table(draft, shapes, memos))


def table_of(draft: PlanDraft) -> MemoryTable | None:
    """The whole table, by place and by buffer; None where the header says too little."""
    return _table(draft, _shapes(draft.metadata), (None, None))


_Shapes = tuple[ModelShape | None, ModelShape | None]
_Memos = tuple[ComputeMemo | None, ComputeMemo | None]


def _shapes(metadata: ModelMetadata) -> _Shapes:
    """Of the model, and of its draft model."""
    second = metadata.beside.get(DRAFT)
    return model_shape(metadata), None if second is None else model_shape(second)


def _table(draft: PlanDraft, shapes: _Shapes, memos: _Memos) -> MemoryTable | None:
    shape, second = shapes
    if shape is None:
        return None
    table = memory_table(shape, choices_of(draft), memos[0])
    guesses = second is not None and Capability.CHAT in draft.capabilities
    return with_draft(table, second, memos[1]) if guesses and second is not None else table


def choices_of(draft: PlanDraft) -> LaunchChoices:
    """What the draft's own command line says, extra arguments included."""
    build = draft.build or _UNKNOWN_BUILD
    try:
        argv = build_command(draft, build).argv
    except SettingsError:  # such a plan is refused elsewhere
        argv = ()
    usable = tuple(device.id for device in build.devices or () if device.usable and not device.software)
    choices = choices_from_argv(
        argv, devices=usable, build_number=build_number(build), has_device_backend=bool(build.devices)
    )
    return replace(choices, **_beside(draft))


def _beside(draft: PlanDraft) -> Mapping[str, Any]:
    """What the files that go with the model change for it."""
    found: dict[str, Any] = {}
    projector = draft.metadata.beside.get(PROJECTOR)
    if projector is not None:
        found |= {"projector_bytes": projector.tensor_bytes, "projector_compute": projector_compute(projector)}
    if DRAFT in draft.metadata.beside and Capability.CHAT in draft.capabilities:
        own = draft.settings.draft_tokens if isinstance(draft.settings, LlamaCppSettings) else None
        found["draft_tokens"] = own or _DRAFT_TOKENS
    return found


def build_number(build: BuildFacts) -> int | None:
    """llama.cpp's number of a build, from its version or else, roughly, from its flags; None: take it as a recent one.

    Packaged builds often call themselves ``1``. ``--no-mmap`` was dropped after b10688.
    """
    match = _NUMBER.match(build.version or "")
    if match is not None:
        return int(match[1])
    return _OLDER if build.flags is not None and _DROPPED_FLAG in build.flags else None
