"""The real MLX server over a tiny model: one for all tests that leave it as it is."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.support.daemon import Daemon, running_daemon_sync
from tests.support.mlx_server import QUICK, MlxServer, running_mlx_server
from tests.wire.asking import LOG_ALL, ask


@pytest.fixture(scope="session")
def mlx(mlx_models: Path) -> Iterator[MlxServer]:
    """A server over ``llama`` that computes 16 answers together; tests must leave it alive."""
    with running_mlx_server(mlx_models / "llama", "--alias", "toy", "--parallel", "16", "--embeddings") as server:
        yield server
        assert server.ask("/health").status == 200, server.lines[-20:]


def mlx_daemon_config(models: Mapping[str, Any], **sections: Any) -> dict[str, Any]:
    """A config whose only MLX build is this interpreter."""
    build = {"name": "here", "executable": sys.executable}
    shared = {"engine": "mlx", "keep_alive": "never"}
    return {
        "version": 1,
        "engines": {"mlx": {"builds": [build], "env": QUICK}, "llama.cpp": {"builds": []}},
        "models": {name: {**shared, **model} for name, model in models.items()},
        "supervision": {"liveness": {"failures": 30}},
        **sections,
    }


@pytest.fixture(scope="session")
def mlx_daemon(tmp_path_factory: pytest.TempPathFactory, mlx_models: Path) -> Iterator[Daemon]:
    """A daemon that has loaded ``toy`` (which chats and embeds); tests must leave its engine alive."""
    models = {
        "toy": {
            "file": str(mlx_models / "qwen3"),
            "serves": ["chat", "embeddings"],
            "launch": {"ctx_size": 2048, "slots": 4},
        }
    }
    folder = tmp_path_factory.mktemp("mlx-daemon")
    with running_daemon_sync(folder, mlx_daemon_config(models), env=LOG_ALL) as daemon:
        assert ask(daemon, "/admin/v1/models/toy/load", b"").status == 200
        yield daemon
