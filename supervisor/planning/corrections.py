"""What earlier launches of the same kind have shown, put over a prediction. Pure.

A kind is one model on one build with the same choices. What its engine declared of a buffer takes the place of what
was predicted. What its process was seen to hold itself when it had just become ready (never its resident set, which
counts mapped files) corrects the program's own part in both directions; what it ever held beyond all is added to that.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from engines.contract import Choice, Estimator, MemoryEstimate, PlanDraft
from supervisor.units import format_size

# A log has two decimals of a MiB for each buffer: what differs by no more is the same, and ours is exact.
_ROUNDING_BYTES = 32 * 1024
_ROUNDING_SHARE = 0.001
_WORTH_TELLING = 2**17  # less reads as 0.0 or 0.1 MiB
_NO_MATTER_FOR_MEMORY = frozenset({"threads", "threads_batch"})
_PARTS = ("weights", "kv", "compute")


@dataclass(frozen=True, slots=True)
class Learned:
    """What launches of one kind have shown, by place (``host``, or a device by the build's name).

    Attributes:
        declared: by the engine's own log.
        held: the most that the process was seen to hold itself, in bytes.
        ready: the least that it was seen to hold itself when it had just become ready: a request may have been quicker.
    """

    declared: Mapping[str, MemoryEstimate] = field(default_factory=dict)
    held: Mapping[str, int] = field(default_factory=dict)
    ready: Mapping[str, int] = field(default_factory=dict)


def kind_of(draft: PlanDraft, fingerprint: str) -> str:
    """A short name for launches that take the same memory: model, build, and all choices but for the threads."""
    settings = draft.settings.model_dump(mode="json", exclude=set(_NO_MATTER_FOR_MEMORY))
    choices: list[Any] = [
        [str(file) for file in draft.files],
        draft.metadata.file_bytes,
        fingerprint,
        sorted(draft.capabilities),
        draft.devices,
        draft.n_gpu_layers,
        draft.tensor_split,
        draft.n_cpu_moe,
        draft.ctx_size,
        draft.slots,
        draft.cache_type,
        settings,
    ]
    return hashlib.sha256(json.dumps(choices, sort_keys=True, default=str).encode()).hexdigest()[:24]


def corrected_by(estimate: Estimator, fingerprint: str, learned: Mapping[str, Learned]) -> Estimator:
    """The estimator, with what is known of each kind put over what it predicts."""
    if not learned:
        return estimate

    def corrected(draft: PlanDraft) -> Mapping[str, MemoryEstimate]:
        known = learned.get(kind_of(draft, fingerprint))
        return estimate(draft) if known is None else correct(estimate(draft), known)

    return corrected


def correct(predicted: Mapping[str, MemoryEstimate], learned: Learned) -> Mapping[str, MemoryEstimate]:
    """The prediction by place, corrected."""
    places = dict.fromkeys((*predicted, *learned.declared))
    return {place: _correct(predicted.get(place, MemoryEstimate()), place, learned) for place in places}


def _correct(predicted: MemoryEstimate, place: str, learned: Learned) -> MemoryEstimate:
    declared, held = learned.declared.get(place), learned.held.get(place)
    better = predicted
    if declared is not None:
        parts = {part: _part(getattr(predicted, part), getattr(declared, part)) for part in _PARTS}
        better = replace(predicted, **parts, mapped=_part(predicted.mapped, declared.mapped), upper=None)
        better = _with_ready(predicted, better, learned.ready.get(place))
    if held is not None and declared is not None:
        missing = held - (better.anonymous or 0)
        if missing > 0:
            better = replace(better, other=(better.other or 0) + missing)
    return better


def _with_ready(predicted: MemoryEstimate, better: MemoryEstimate, seen: int | None) -> MemoryEstimate:
    """The program's part by what was seen at readiness; caches and buffers are what the log declared of them."""
    if seen is None or predicted.ready is None:
        return better
    expected = predicted.ready + (_own(better) - _own(predicted))
    return replace(better, other=max(0, (better.other or 0) + seen - expected), ready=seen)


def _own(estimate: MemoryEstimate) -> int:
    """What lies in the process's own memory from the load on; compute buffers are touched later."""
    return (estimate.weights or 0) - (estimate.mapped or 0) + (estimate.kv or 0)


def _part(predicted: int | None, declared: int | None) -> int | None:
    if declared is None or predicted is None:
        return predicted if declared is None else declared
    close = abs(predicted - declared) <= max(_ROUNDING_BYTES, _ROUNDING_SHARE * declared)
    return predicted if close else declared


def learn(
    known: Learned | None, declared: Mapping[str, MemoryEstimate], held: Mapping[str, int], *, just_ready: bool = False
) -> Learned:
    """What is known after one more look at a launch: the last declared figures, and the most that was ever held."""
    before = known or Learned()
    most = {place: max(size, before.held.get(place, 0)) for place, size in held.items()}
    least = {place: min(size, before.ready.get(place, size)) for place, size in held.items()} if just_ready else {}
    return Learned(dict(declared) or before.declared, {**before.held, **most}, {**before.ready, **least})


def told(predicted: Mapping[str, MemoryEstimate], corrected: Mapping[str, MemoryEstimate]) -> tuple[Choice, ...]:
    """The correction in words; nothing where there was none."""
    words = []
    for place, after in corrected.items():
        before, now = predicted.get(place, MemoryEstimate()).total or 0, after.total or 0
        if abs(now - before) >= _WORTH_TELLING:
            sign = "+" if now > before else "-"
            words.append(f"{format_size(before)} in {place}, corrected by {sign}{format_size(abs(now - before))}")
    if not words:
        return ()
    return (Choice("memory_learned", "; ".join(words), f"predicted {'; '.join(words)} seen at earlier launches"),)
