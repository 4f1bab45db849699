"""What a plan of a llama.cpp model says before its command is made, for tests."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from engines.contract import BuildFacts, Capability, ModelMetadata, PlanDraft
from engines.llama_cpp.settings import LlamaCppSettings


def llama_draft(metadata: ModelMetadata, files: tuple[Path, ...], *, build: BuildFacts, **changes: Any) -> PlanDraft:
    """A chat model on the processor, two threads and two slots, as this build would start it; ``changes``: fields."""
    draft = PlanDraft(
        model_id="m",
        files=files,
        metadata=metadata,
        settings=LlamaCppSettings(),
        capabilities=frozenset({Capability.CHAT}),
        threads=2,
        threads_batch=2,
        devices=(),
        n_gpu_layers=None,
        ctx_size=1024,
        slots=2,
        cache_type=None,
        build=build,
    )
    return replace(draft, **changes)
