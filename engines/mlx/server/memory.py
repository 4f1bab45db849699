"""What MLX says of its memory, in bytes. Quick enough for the event loop; None where there is nothing to ask yet."""

from __future__ import annotations

import sys
from typing import Any

from engines.mlx.server.service import Service


def memory_document(service: Service) -> dict[str, Any]:
    """Active, cached and peak bytes of MLX, and those that the server keeps for later prompts."""
    core = sys.modules.get("mlx.core")
    ready = service.engine.state == "ready" and core is not None
    engine = service.engine.engine
    return {
        "active_bytes": core.get_active_memory() if ready and core is not None else None,
        "cache_bytes": core.get_cache_memory() if ready and core is not None else None,
        "peak_bytes": core.get_peak_memory() if ready and core is not None else None,
        "weights_bytes": engine.loaded.facts.parameters if ready else None,
        "prefix_bytes": engine.prefixes.size if ready else None,
        "prefix_budget_bytes": engine.prefixes.budget if ready else None,
        "speculation_off": engine.speculation_off if ready else None,
    }
