"""The real MLX server over a tiny model: one for all tests that leave it as it is."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.mlx_server import MlxServer, running_mlx_server


@pytest.fixture(scope="session")
def mlx(mlx_models: Path) -> Iterator[MlxServer]:
    """A server over ``llama`` that computes 16 answers together; tests must leave it alive."""
    with running_mlx_server(mlx_models / "llama", "--alias", "toy", "--parallel", "16", "--embeddings") as server:
        yield server
        assert server.ask("/health").status == 200, server.lines[-20:]
