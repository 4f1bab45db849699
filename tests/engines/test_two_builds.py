"""Two real builds of llama.cpp and a broken one: the request that meets the broken one is answered by a good one."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest

from tests.engines.conftest import LAUNCH, PATIENT
from tests.support.daemon import Daemon, daemon_config, running_daemon_sync
from tests.support.demo import DemoEngine
from tests.support.source_build import EXECUTABLE, source_build
from tests.wire.asking import CHAT, ask, chat_body, instance, launches, status

pytestmark = [pytest.mark.engine, pytest.mark.slow, pytest.mark.timeout(3600)]


@pytest.fixture(scope="module")
def built() -> Path:
    """The executable of the build from source."""
    return source_build() / EXECUTABLE


def broken(folder: Path, good: Path, how: str) -> dict[str, Any]:
    """A build that answers what it is asked about itself, and can't load a model: its launch ends in ``how``."""
    home = folder / "broken"
    home.mkdir()
    other = home / "other"
    other.write_bytes(good.read_bytes().replace(b"libllama", b"libnone_"))  # asks for libraries that are nowhere
    other.chmod(0o755)
    ends = {"kill -ILL": "kill -ILL $$", "missing library": f"exec {shlex.quote(str(other))}"}[how]
    script = home / EXECUTABLE
    script.write_text(
        f'#!/bin/sh\ncase "$1" in --version|--help|--list-devices) exec {shlex.quote(str(good))} "$@";; esac\n'
        f'{ends} "$@"\n'
    )
    script.chmod(0o755)
    return {"name": "broken", "executable": str(script)}


def served_by(daemon: Daemon) -> str:
    """The build that answers a request with words."""
    answer = ask(daemon, CHAT, chat_body("smol", "Name three colours.", max_tokens=8), timeout=180)
    assert answer.status == 200, answer.body
    assert answer.json["choices"][0]["message"]["content"].strip()
    return str(instance(daemon, "smol")["build"])


@pytest.mark.parametrize("how", ["kill -ILL", "missing library"])
def test_the_request_that_meets_the_broken_build_is_answered(
    tmp_path: Path, built: Path, demo_engine: DemoEngine, demo_model: Path, how: str
) -> None:
    """By the build from source at once; then, when an operator says so, by the prebuilt one."""
    models = {"smol": {"file": str(demo_model), "serves": ["chat"], "launch": {"ctx_size": 1024, **LAUNCH}}}
    source = {"name": "source", "executable": str(built)}
    rows = [broken(tmp_path, built, how), source, demo_engine.as_config()]
    with running_daemon_sync(tmp_path, daemon_config(*rows, models=models, supervision=PATIENT)) as daemon:
        assert served_by(daemon) == "source"
        assert len(launches(daemon, "smol")) == 2
        kind = {"kill -ILL": "INCOMPATIBLE_CPU", "missing library": "MISSING_LIBRARY"}[how]
        assert daemon.wait_for_event("launch_exited")["kind"] == kind
        fell = daemon.wait_for_event("build_fell_back")
        assert (fell["build"], fell["next_build"]) == ("broken", "source")
        health = {row["name"]: row["health"] for row in status(daemon)["builds"]}
        assert health == {"broken": "quarantined", "source": "usable", "demo": "usable"}
        assert ask(daemon, "/admin/v1/models/smol/unload", b"").status == 200
        assert ask(daemon, "/admin/v1/builds/demo/pin", b"").status == 200
        assert served_by(daemon) == "demo"
