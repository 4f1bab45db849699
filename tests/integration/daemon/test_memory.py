"""What the daemon knows of memory while engines run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.integration.daemon.test_reload import ask
from tests.support.daemon import Daemon, daemon_config, running_daemon_sync
from tests.support.fake_engine import fake_build, tiny_model


def _memory_reason(daemon: Daemon, model: str) -> str:
    status, plan = ask(daemon, "GET", f"/admin/v1/plan?model={model}")
    assert status == 200
    return next(str(row["reason"]) for row in plan["rationale"] if row["choice"] == "memory")


def _config(folder: Path, **host: Any) -> dict[str, Any]:
    for name in "ab":
        tiny_model(folder, f"{name}.gguf")
    models = {name: {"file": str(folder / f"{name}.gguf")} for name in "ab"}
    return daemon_config(fake_build(folder), models=models, host=host)


def test_what_runs_is_taken_off_for_a_newcomer(tmp_path: Path) -> None:
    """While a runs, the plan of b says what a was promised; a's own plan does not, and after its end nobody's does."""
    with running_daemon_sync(tmp_path, _config(tmp_path, memory="64GiB")) as daemon:
        before = _memory_reason(daemon, "b")
        assert ask(daemon, "POST", "/admin/v1/models/a/load")[0] == 200
        (engine,) = daemon.engines()
        assert engine.environ()["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"  # by address, as the system numbers cards
        while_it_runs, own = _memory_reason(daemon, "b"), _memory_reason(daemon, "a")
        assert ask(daemon, "POST", "/admin/v1/models/a/unload")[0] == 200
        daemon.wait_for_event("instance_changed", model="a", new="stopped")
        after = _memory_reason(daemon, "b")

    assert "promised" not in before + own + after
    assert "promised to running models (a " in while_it_runs
    assert "host.memory 64.0 GiB" in before


_CARD = "CUDA0: NVIDIA Fake (24576 MiB, 24000 MiB free)"


def _planned(folder: Path, rows: list[str], policy: str) -> tuple[int, Any, list[dict[str, Any]]]:
    """The plan of a on a build that lists these devices, as a daemon that has just started makes it."""
    build = {**fake_build(folder, devices=[_CARD]).as_config(), "env": {"FAKE_ENGINE": json.dumps({"devices": rows})}}
    tiny_model(folder, "a.gguf")
    models = {"a": {"file": str(folder / "a.gguf")}}
    config = daemon_config(build, models=models, host={"memory": "64GiB", "device_lost": policy})
    (folder / "state" / "builds.json").unlink(missing_ok=True)
    with running_daemon_sync(folder, config) as daemon:
        status, plan = ask(daemon, "GET", "/admin/v1/plan?model=a")
        if not rows:
            daemon.wait_for_event("device_lost")
        return status, plan, list(daemon.records)


def test_a_device_that_is_gone_is_never_replaced_by_the_cpu_in_silence(tmp_path: Path) -> None:
    """A daemon that comes back without its card refuses, or plans without it and says so, as the owner chose."""
    assert _planned(tmp_path, [_CARD], "fail")[0] == 200

    status, refused, records = _planned(tmp_path, [], "fail")
    assert (status, refused["error"]["code"]) == (503, "device_lost")
    assert [record["device"] for record in records if record.get("event") == "device_lost"] == ["CUDA0"]

    status, plan, _ = _planned(tmp_path, [], "degrade")
    assert status == 200
    assert "device_lost" in [row["choice"] for row in plan["rationale"]]
    assert any("CUDA0" in warning for warning in plan["warnings"])
