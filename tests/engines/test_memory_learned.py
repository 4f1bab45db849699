"""The second plan of a model is made with what the first launch has shown."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.engines.conftest import LAUNCH, PATIENT, load
from tests.support.daemon import Daemon, daemon_config, running_daemon_sync
from tests.support.demo import DemoEngine
from tests.support.memory_rows import recorded_headers
from tests.support.recorded_models import write_model
from tests.wire.asking import LOG_ALL, ask, instance

pytestmark = [pytest.mark.engine, pytest.mark.timeout(180)]

_ARCHITECTURES = ("gemma3", "mamba2")
_ROUNDED = 32 * 1024  # the log has two decimals of a MiB, a buffer


def _plan(daemon: Daemon, model: str) -> dict[str, Any]:
    answer = ask(daemon, f"/admin/v1/plan?model={model}")
    assert answer.status == 200, answer.body
    return dict(answer.json)


def _toy(architecture: str, folder: Path) -> Path:
    headers = (header for header in recorded_headers().values() if header["kv"]["general.file_type"] == 1)
    folder.mkdir()
    return write_model(
        next(header for header in headers if header["kv"]["general.architecture"] == architecture), folder
    )[0]


def test_the_second_plan_is_what_the_first_launch_declared(
    tmp_path: Path, demo_engine: DemoEngine, demo_model: Path
) -> None:
    """Within one percent, for a real model and toys of two other kinds; a daemon that starts anew knows it too."""
    files = {"smol": demo_model} | {name: _toy(name, tmp_path / name) for name in _ARCHITECTURES}
    launch = {**LAUNCH, "ctx_size": 1024, "cache_ram": "0", "warmup": False}
    models = {name: {"file": str(file), "serves": ["chat"], "launch": launch} for name, file in files.items()}
    config = daemon_config(demo_engine.as_config(), models=models, supervision=PATIENT)
    seen: dict[str, dict[str, Any]] = {}
    with running_daemon_sync(tmp_path, config, env=LOG_ALL) as daemon:
        for name in files:
            load(daemon, name)
            daemon.wait_for_event("memory_observed", model=name)
            seen[name] = instance(daemon, name)["memory"]["host"]
            assert ask(daemon, f"/admin/v1/models/{name}/unload", b"").status == 200
            daemon.wait_for_event("instance_changed", model=name, new="stopped")
    with running_daemon_sync(tmp_path, config, env=LOG_ALL) as daemon:
        ask(daemon, "/readyz")
        second = {name: _plan(daemon, name) for name in files}

    for name, columns in seen.items():
        assert all(columns[column] for column in ("predicted", "declared", "observed")), columns
        parts = second[name]["memory"]["host"]
        in_log = parts["weights"] + parts["kv"] + parts["compute"]
        assert in_log == pytest.approx(columns["declared"], rel=0.01, abs=_ROUNDED), name
        assert parts["ready"] == pytest.approx(columns["observed"], rel=0.01), name
        own = parts["total"] - parts["mapped"]
        assert own >= 0.99 * columns["observed"], (name, parts, columns)
    known = json.loads((tmp_path / "state" / "memory.json").read_text())
    assert len(known["kinds"]) == len(files)
