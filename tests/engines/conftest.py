"""The real llama-server with the real demo model: a daemon over it, and the same engine started by hand beside it.

One thread each: on a machine that does other things too, two that wait for each other are far slower than one.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.engines.by_hand import EngineByHand, started_by_hand
from tests.support.daemon import Daemon, daemon_config, running_daemon_sync
from tests.support.demo import DemoEngine
from tests.support.mlx_server import QUICK
from tests.wire.asking import LOG_ALL, ask, instance

LAUNCH = {"threads": 1, "threads_batch": 1, "slots": 2}
# Slower than this no engine is measured on a machine that tests run on; far from the daemon's own time-outs.
PATIENT = {"liveness": {"failures": 30}}


@dataclass(frozen=True, slots=True)
class Served:
    """A daemon that serves ``smol``, and what that model is like.

    Attributes:
        width: of its vectors.
        counting: a text that it goes on with by `` four``.
        context: in tokens, as it stands in the refusal of a longer prompt.
    """

    daemon: Daemon
    width: int
    counting: str
    context: str


def config_for(engine: DemoEngine, model: Path, **launch: Any) -> dict[str, Any]:
    """A config with the demo model as ``smol``, which chats and embeds, and as ``chat``, which only chats."""
    shared: Mapping[str, Any] = {
        "file": str(model),
        "keep_alive": "never",  # one that came back would count as left behind by the test that asked for it
        "launch": {"ctx_size": 2048, **LAUNCH, **launch},
    }
    models = {
        "smol": {**shared, "serves": ["chat", "embeddings"]},
        "chat": {**shared, "serves": ["chat"]},
    }
    return daemon_config(engine.as_config(), models=models, supervision=PATIENT)


def load(daemon: Daemon, model: str) -> dict[str, Any]:
    """Load the model; its row of the status."""
    assert ask(daemon, f"/admin/v1/models/{model}/load", b"").status == 200
    return instance(daemon, model)


@pytest.fixture(scope="session")
def real(tmp_path_factory: pytest.TempPathFactory, demo_engine: DemoEngine, demo_model: Path) -> Iterator[Daemon]:
    """A daemon that has loaded ``smol``; tests must leave its engine alive."""
    folder = tmp_path_factory.mktemp("real")
    with running_daemon_sync(folder, config_for(demo_engine, demo_model), env=LOG_ALL) as daemon:
        load(daemon, "smol")
        yield daemon


@pytest.fixture(scope="session")
def by_hand(real: Daemon, demo_engine: DemoEngine) -> Iterator[EngineByHand]:
    """The engine of ``smol`` once more, with the very arguments that the daemon gave its own."""
    argv = instance(real, "smol")["plan"]["argv"]
    with started_by_hand(argv, demo_engine.env) as engine:
        yield engine


def mlx_daemon_config(models: Mapping[str, Any], **sections: Any) -> dict[str, Any]:
    """A config whose only MLX build is this interpreter."""
    build = {"name": "here", "executable": sys.executable}
    shared = {"engine": "mlx", "keep_alive": "never"}
    return {
        "version": 1,
        "engines": {"mlx": {"builds": [build], "env": QUICK}, "llama.cpp": {"builds": []}},
        "models": {name: {**shared, **model} for name, model in models.items()},
        "supervision": PATIENT,
        **sections,
    }


@pytest.fixture(scope="session")
def mlx_daemon(tmp_path_factory: pytest.TempPathFactory, mlx_models: Path) -> Iterator[Daemon]:
    """A daemon that has loaded the toy that thinks as ``smol``, which chats and embeds; tests must leave it alive."""
    model = {"file": str(mlx_models / "qwen3"), "serves": ["chat", "embeddings"]}
    models = {"smol": {**model, "launch": {"ctx_size": 2048, "slots": 2}}}
    folder = tmp_path_factory.mktemp("mlx-daemon")
    with running_daemon_sync(folder, mlx_daemon_config(models), env=LOG_ALL) as daemon:
        load(daemon, "smol")
        yield daemon


@pytest.fixture(scope="session", params=["llama.cpp", "mlx"])
def served(request: pytest.FixtureRequest) -> Served:
    """Each text engine behind the gateway, with a model called ``smol``."""
    if request.param == "mlx":
        return Served(request.getfixturevalue("mlx_daemon"), 256, "One two three", "2048")
    # Two slots share 4096 tokens.
    return Served(request.getfixturevalue("real"), 576, "One, two, three,", "4096")
