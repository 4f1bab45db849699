"""A real quota that changes while engines run, and one that makes them stand still."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.daemon.test_reload import ask
from tests.support.cgroups import Cgroup, NoCgroupError, made_cgroup
from tests.support.daemon import Daemon, daemon_config, running_daemon_sync
from tests.support.demo import DemoEngine
from tests.support.fake_engine import fake_build, tiny_model

_CPUS = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1

pytestmark = pytest.mark.timeout(180)


@pytest.fixture
def group() -> Iterator[Cgroup]:
    """A control group without limits."""
    try:
        with made_cgroup() as made:
            yield made
    except NoCgroupError as error:
        pytest.skip(str(error))


def _threads(daemon: Daemon, model: str) -> tuple[int, int]:
    """Threads of the model's launch for batches, and which launch it is."""
    status, document = ask(daemon, "GET", "/admin/v1/status")
    assert status == 200
    row = next(row for row in document["instances"] if row["model"] == model)
    return row["plan"]["threads_batch"], row["generation"]


@pytest.mark.skipif(_CPUS < 2, reason="one CPU is one thread under every quota")
def test_an_idle_engine_follows_a_quota_that_changes(tmp_path: Path, group: Cgroup) -> None:
    """As a container's owner changes it: told, and a pinned engine that nobody uses is launched anew."""
    models = {"tiny": {"file": str(tiny_model(tmp_path)), "pinned": True}}
    config = daemon_config(fake_build(tmp_path), models=models, host={"look_every": "200ms"})
    with running_daemon_sync(tmp_path, config, inside=group) as daemon:
        assert ask(daemon, "POST", "/admin/v1/models/tiny/load")[0] == 200
        assert _threads(daemon, "tiny") == (_CPUS, 1)

        group.set_cpus(1.0)

        change = daemon.wait_for_event("cpu_budget_changed")
        assert (change["old"], change["new"], change["threads"]) == (float(_CPUS), 1.0, 1)
        daemon.wait_for_event("launch_ready", launch=_last_launch(daemon, 2))
        assert _threads(daemon, "tiny") == (1, 2)


@pytest.mark.engine
def test_an_engine_with_too_many_threads_for_its_quota_is_told_of(
    tmp_path: Path, group: Cgroup, demo_engine: DemoEngine, demo_model: Path
) -> None:
    """Its number stands, and its owner hears twice what it costs: when it is planned, and from what was measured."""
    launch = {"threads": 4, "slots": 1, "ctx_size": 512}
    models = {"smol": {"file": str(demo_model), "launch": launch}}
    config = daemon_config(demo_engine.as_config(), models=models, host={"look_every": "3s"})
    group.set_cpus(0.75)
    with running_daemon_sync(tmp_path, config, inside=group) as daemon:
        assert ask(daemon, "POST", "/admin/v1/models/smol/load")[0] == 200
        assert "above the budget" in daemon.wait_for_event("plan_warning")["reason"]
        body = {"model": "smol", "messages": [{"role": "user", "content": "A story."}], "max_tokens": 40}
        for _ in range(10):
            assert ask(daemon, "POST", "/v1/chat/completions", body)[0] == 200
            if any(record.get("event") == "cpu_throttled" for record in daemon.records):
                break

        told = daemon.wait_for_event("cpu_throttled")

    assert (told["instances"], told["quota"]) == (["smol-1"], 0.75)
    assert told["throttled"] > told["periods"] / 4
    assert told["advice"] == "4 threads run under a quota of 0.75 CPUs, which holds 1: fewer are faster"


def _last_launch(daemon: Daemon, generation: int) -> str:
    return str(daemon.wait_for_event("launch_started", generation=generation)["launch"])
