"""The daemon under test: started as a user starts it, watched through its log, ended without a trace."""

from __future__ import annotations

import signal
from pathlib import Path

import aiohttp
import psutil
import pytest

from supervisor.config.load import load_config
from tests.support.daemon import daemon_config, running_daemon, running_daemon_sync
from tests.support.fake_engine import fake_build, tiny_model


def test_the_config_for_tests_is_valid(tmp_path: Path) -> None:
    """What the helper writes is read without a problem."""
    config = daemon_config(fake_build(tmp_path), models={"tiny": {"file": str(tiny_model(tmp_path))}})
    with running_daemon_sync(tmp_path, config):
        loaded = load_config(tmp_path / "config.yaml", {})
    assert list(loaded.config.models) == ["tiny"]


async def test_a_daemon_listens_serves_and_goes(tmp_path: Path) -> None:
    """It answers at the address from its log, starts the fake engine for a request, and both end by SIGTERM."""
    build = fake_build(tmp_path, reply="hello from the fake")
    config = daemon_config(build, models={"tiny": {"file": str(tiny_model(tmp_path))}})
    async with running_daemon(tmp_path, config) as daemon, aiohttp.ClientSession(daemon.base_url) as client:
        async with client.get("/healthz") as response:
            assert response.status == 200
        ask = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}]}
        async with client.post("/v1/chat/completions", json=ask) as response:
            assert response.status == 200, daemon.log_text()
            answer = await response.json()
        assert answer["choices"][0]["message"]["content"] == "hello from the fake"
        (engine,) = daemon.engines()
    assert not psutil.pid_exists(engine.pid)
    assert daemon.process.returncode == 0


def test_a_daemon_that_does_not_start_is_shown_with_its_log(tmp_path: Path) -> None:
    """The failure holds what the daemon said, so that no test has to be run again to see why."""
    with pytest.raises(AssertionError, match="no_such_section"), running_daemon_sync(tmp_path, {"no_such_section": 1}):
        pass


def test_a_killed_daemon_is_cleaned_up(tmp_path: Path) -> None:
    """A test may kill the daemon itself; the helper still ends and says its exit code."""
    with running_daemon_sync(tmp_path, daemon_config(fake_build(tmp_path), models={})) as daemon:
        daemon.send(signal.SIGKILL)
        assert daemon.process.wait(10) == -signal.SIGKILL
