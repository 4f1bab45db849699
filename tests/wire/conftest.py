"""A daemon over fake engines that the wire tests share; each test that leaves marks uses a model of its own.

Its engines are started before the tests, since one that a test starts would count as left behind by it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.daemon import Daemon, daemon_config, running_daemon_sync
from tests.support.fake_engine import fake_build, tiny_model
from tests.wire.asking import LOG_ALL, ask

BOTH = ["chat", "embeddings"]
# What each model's engine does; a healthy one serves "quick".
FAULTS: dict[str, dict[str, Any]] = {
    "quick": {},
    "chat-only": {},
    "slow": {"chunk_delay": 0.02},
    "late": {"load_seconds": 0.5},
    "failing": {"error": True, "after_chunks": 2},
    "cutting": {"truncate": True, "after_chunks": 2},
    "calling": {"tool_call": True},
    "telling": {"reply": 'I will look. <tool_call>{"name": "weather", "arguments": {"city": "Oslo"}}</tool_call>'},
    "dying-once": {"die": "prefill", "signal": "SIGKILL", "once": True},
    "never-ready": {"die": "load", "exit": 1},
}
# Their tests are about the start: each unloads what it started.
STOPPED = {"late", "dying-once", "never-ready"}
MODELS: dict[str, dict[str, Any]] = {
    "quick": {"serves": BOTH, "aliases": ["default"]},
    "slow": {"launch": {"slots": 1}},
}


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """The daemon, with the models of ``FAULTS``."""
    folder = tmp_path_factory.mktemp("wire")
    files = {name: tiny_model(folder, f"{name}.gguf", **faults) for name, faults in FAULTS.items()}
    # For ever: one that went idle and came back would count as left behind by the test that asked for it.
    models = {name: {"file": str(path), "keep_alive": "never", **MODELS.get(name, {})} for name, path in files.items()}
    supervision = {
        "restart": {"initial": "50ms", "budget": 1, "max": "50ms"},
        "stop": {"grace": "1s"},
    }
    config = daemon_config(fake_build(folder), models=models, supervision=supervision)
    with running_daemon_sync(folder, config, env=LOG_ALL) as daemon:
        for name in FAULTS.keys() - STOPPED:
            assert ask(daemon, f"/admin/v1/models/{name}/load", b"").status == 200
        yield daemon
