"""Conversations with MLX: its own prefix cache takes part, with the same header, over switches and restarts."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.engines.conftest import mlx_daemon_config
from tests.support.daemon import running_daemon_sync
from tests.support.talks import Talk, text_of
from tests.wire.asking import LOG_ALL, ask

pytestmark = [pytest.mark.engine, pytest.mark.timeout(180)]


def test_a_conversation_outlives_the_launch_and_the_daemon(tmp_path: Path, mlx_models: Path) -> None:
    """In memory, from the engine's own files, and after a restart; `cache clear` removes those too."""
    model = {"file": str(mlx_models / "llama"), "launch": {"ctx_size": 2048, "slots": 2}}
    config = mlx_daemon_config({"smol": model})
    with running_daemon_sync(tmp_path, config, env=LOG_ALL) as daemon:
        talk = Talk(daemon, "smol", text_of(150, "a"), "a")
        assert talk.say() == "cold"
        assert talk.say() == "hit"
        assert ask(daemon, "/admin/v1/models/smol/unload", b"").status == 200
        assert talk.say() == "restored"
        assert daemon.wait_for_event("session_saved", why="stop")["tokens"] > 100
        assert daemon.wait_for_event("session_served", outcome="restored")["cached_tokens"] > 100
        assert daemon.wait_for_event("session_restored")["tokens"] > 100
    assert list((tmp_path / "state" / "kv").glob("mlx-*/*/*"))
    with running_daemon_sync(tmp_path, config, env=LOG_ALL) as daemon:
        talk.daemon = daemon
        assert talk.say() == "restored"
        assert ask(daemon, "/admin/v1/cache/clear", b"").status == 200
        assert not list((tmp_path / "state" / "kv").glob("mlx-*/*/*"))
