"""Engine kinds and their adapters: the one list to extend for a new engine."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from engines.contract import EngineAdapter, EngineKind
from engines.llama_cpp.adapter import LlamaCppAdapter
from engines.mlx.adapter import MlxAdapter
from engines.sd_cpp.adapter import SdCppAdapter

ADAPTERS: Mapping[EngineKind, EngineAdapter] = MappingProxyType(
    {
        EngineKind.LLAMA_CPP: LlamaCppAdapter(),
        EngineKind.SD_CPP: SdCppAdapter(),
        EngineKind.MLX: MlxAdapter(),
    }
)


def adapter_for(kind: EngineKind) -> EngineAdapter:
    """The adapter of an engine kind."""
    return ADAPTERS[kind]
