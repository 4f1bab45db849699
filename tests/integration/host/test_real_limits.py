"""A real CPU quota and a real memory limit, as a container has them, and what we make of them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.cgroups import Cgroup, NoCgroupError, made_cgroup
from tests.support.daemon import daemon_config
from tests.support.demo import DemoEngine

_MIB = 2**20
_CPUS = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1
_ROOT = Path(__file__).resolve().parents[3]
_LIMIT = 400 * _MIB

needs_two_cpus = pytest.mark.skipif(_CPUS < 2, reason="a quota of more than one CPU binds nothing here")


@pytest.fixture(scope="module")
def group() -> Iterator[Cgroup]:
    """A control group under a memory limit, its quota set by the tests."""
    try:
        with made_cgroup(memory=_LIMIT) as made:
            yield made
    except NoCgroupError as error:
        pytest.skip(str(error))


def _ask(group: Cgroup, *words: str) -> tuple[int, dict[str, Any]]:
    """Exit code and document of a command inside the group."""
    argv = group.wrap([sys.executable, "-m", "supervisor", *words, "--json"])
    done = subprocess.run(argv, cwd=_ROOT, capture_output=True, text=True, check=False, timeout=60)
    assert done.stdout, done.stderr
    document: dict[str, Any] = json.loads(done.stdout)
    return done.returncode, document


@pytest.mark.parametrize(("quota", "threads"), [(0.5, 1), pytest.param(1.5, 1, marks=needs_two_cpus), (None, _CPUS)])
def test_probe_tells_the_quota_that_really_holds(group: Cgroup, quota: float | None, threads: int) -> None:
    """In CPUs, with the file that says so; the whole machine where there is none."""
    group.set_cpus(quota)

    _, found = _ask(group, "probe")

    cpu = found["cpu"]
    assert (cpu["quota"], cpu["threads"]) == (quota, threads)
    if quota is not None and quota < _CPUS:
        assert cpu["effective"] == quota
        assert cpu["source"].startswith(str(group.cpu))


def test_probe_tells_the_memory_limit_that_really_holds(group: Cgroup) -> None:
    """The limit, and what of it a newcomer could get: not the host's figures."""
    _, found = _ask(group, "probe")

    memory = found["memory"]
    assert memory["limit_bytes"] == _LIMIT < memory["host_total_bytes"]
    assert 0 < memory["available_bytes"] <= _LIMIT
    assert memory["source"].startswith(str(group.memory))


@pytest.mark.engine
@pytest.mark.parametrize(("quota", "threads"), [(1.0, 1), pytest.param(1.5, 2, marks=needs_two_cpus)])
def test_the_plan_gives_an_engine_what_the_quota_allows(
    group: Cgroup, quota: float, threads: int, tmp_path: Path, demo_engine: DemoEngine, demo_model: Path
) -> None:
    """``--threads`` and ``--threads-batch`` come from the quota; between one and two CPUs two are faster than one."""
    group.set_cpus(quota)
    config = _config(tmp_path, demo_engine, demo_model)

    _, plan = _ask(group, "plan", "demo", "--config", str(config))

    argv = plan["argv"]
    assert plan["threads_batch"] == int(argv[argv.index("--threads-batch") + 1]) == threads
    assert plan["threads"] == int(argv[argv.index("--threads") + 1]) == threads


@pytest.mark.engine
def test_a_model_that_is_larger_than_the_limit_does_not_fit(
    group: Cgroup, tmp_path: Path, demo_engine: DemoEngine, demo_model: Path
) -> None:
    """The budget is the limit's, not the host's: what is left of 400 MiB beside 350 kept free can't hold 93 MB."""
    roomy = _config(tmp_path, demo_engine, demo_model, reserve="0")
    tight = _config(tmp_path, demo_engine, demo_model, reserve="350MiB")

    assert (_ask(group, "plan", "demo", "--config", str(roomy))[1]["fits"]) is True
    code, plan = _ask(group, "plan", "demo", "--config", str(tight))
    assert (code, plan["fits"]) == (1, False)


def _config(folder: Path, engine: DemoEngine, model: Path, reserve: str = "0") -> Path:
    launch = {"slots": 1, "ctx_size": 512, "cache_ram": "0"}
    document = daemon_config(
        engine.as_config(),
        models={"demo": {"file": str(model), "launch": launch}},
        host={"reserve": {"memory": reserve}},
        state_dir=str(folder / "state"),
        data_dir=str(folder / "data"),
    )
    path = folder / f"reserve-{reserve}.yaml"
    path.write_text(yaml.safe_dump(document))
    return path
