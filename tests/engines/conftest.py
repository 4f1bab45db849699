"""The real llama-server with the real demo model: a daemon over it, and the same engine started by hand beside it.

One thread each: on a machine that does other things too, two that wait for each other are far slower than one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.engines.by_hand import EngineByHand, started_by_hand
from tests.support.daemon import Daemon, daemon_config, running_daemon_sync
from tests.support.demo import DemoEngine
from tests.wire.asking import LOG_ALL, ask, instance

LAUNCH = {"threads": 1, "threads_batch": 1, "slots": 2}
# Slower than this no engine is measured on a machine that tests run on; far from the daemon's own time-outs.
PATIENT = {"liveness": {"failures": 30}}


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
