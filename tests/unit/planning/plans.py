"""Launch plans for tests of what follows from them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from engines.contract import EngineKind, LaunchPlan


def plan_with(**values: Any) -> LaunchPlan:
    """A plan with these values, and whatever else."""
    plain: dict[str, Any] = {
        "model_id": "m",
        "engine": EngineKind.LLAMA_CPP,
        "build": "b",
        "fingerprint": "f",
        "executable": Path("/opt/llama-server"),
        "argv": (),
        "env": {},
        "threads": 1,
        "threads_batch": 1,
        "n_gpu_layers": None,
        "ctx_size": None,
        "slots": 1,
        "cache_type": None,
        "memory": {},
        "fits": True,
        "rationale": (),
    }
    return LaunchPlan(**{**plain, **values})
