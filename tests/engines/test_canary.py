"""The canary with the real engine, and a real build that lacks a library."""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from typing import Any

import pytest

from engines.llama_cpp.canary import canary_files
from tests.engines.by_hand import started_by_hand
from tests.engines.conftest import LAUNCH
from tests.support.daemon import daemon_config, running_daemon_sync
from tests.support.demo import DemoEngine
from tests.wire.asking import CHAT, ask, chat_body, instance, launches, status

pytestmark = [pytest.mark.engine, pytest.mark.timeout(180)]
# Two seconds of a machine that has nothing else to do.
QUICK_SECONDS = 20.0


def test_the_real_engine_loads_it(tmp_path: Path, demo_engine: DemoEngine) -> None:
    """A healthy build loads the canary in a moment and can even make words with it."""
    [(name, content)] = canary_files().items()
    (tmp_path / name).write_bytes(content)
    argv = [str(demo_engine.executable), "--model", str(tmp_path / name), "--alias", "canary", "--ctx-size", "256"]
    began = time.monotonic()
    with started_by_hand([*argv, "--parallel", "1", "--threads", "1", "--device", "none"], demo_engine.env) as engine:
        assert time.monotonic() - began < QUICK_SECONDS
        _, answer = engine.ask("/completion", {"prompt": "ab", "n_predict": 2})
        assert answer["tokens_predicted"] == 2


def broken_copy(engine: DemoEngine, folder: Path) -> dict[str, object]:
    """The real build without one of its libraries."""
    home = folder / "build-broken"
    shutil.copytree(engine.executable.parent, home)
    needed = sorted(home.glob("libllama*.so*")) or sorted(home.glob("libggml*.so*"))
    assert needed, sorted(path.name for path in home.iterdir())
    for library in needed:
        library.unlink()
    return {"name": "broken", "executable": str(home / engine.executable.name), "env": {"LD_LIBRARY_PATH": str(home)}}


def test_a_request_that_meets_a_build_without_its_library(
    tmp_path: Path, demo_engine: DemoEngine, demo_model: Path
) -> None:
    """It is answered by the real build that is whole; the broken one says which library it lacks."""
    model: dict[str, Any] = {"file": str(demo_model), "launch": {"ctx_size": 512, **LAUNCH}}
    config = daemon_config(broken_copy(demo_engine, tmp_path), demo_engine.as_config(), models={"smol": model})
    with running_daemon_sync(tmp_path, config) as daemon:
        answer = ask(daemon, CHAT, chat_body("smol", max_tokens=2), timeout=120)
        assert answer.status == 200, answer.body
        assert instance(daemon, "smol")["build"] == "demo"
        [row] = [row for row in status(daemon)["builds"] if row["name"] == "broken"]
        assert row["health"] == "quarantined"
        assert "cannot open shared object file" in row["reason"]


def test_a_build_that_dies_at_model_load(tmp_path: Path, demo_engine: DemoEngine, demo_model: Path) -> None:
    """As one made for a newer processor: it answers --version and dies of SIGILL in the load, once and never again."""
    home = tmp_path / "build-sigill"
    home.mkdir()
    wrapper = home / "llama-server"
    wrapper.write_text(
        f'#!/bin/sh\ncase " $* " in *" --model "*) kill -ILL $$ ;; esac\nexec "{demo_engine.executable}" "$@"\n'
    )
    wrapper.chmod(0o755)
    sigill = {"name": "sigill", "executable": str(wrapper), "env": dict(demo_engine.env)}
    model: dict[str, Any] = {"file": str(demo_model), "launch": {"ctx_size": 512, **LAUNCH}}
    config = daemon_config(sigill, demo_engine.as_config(), models={"smol": model})
    with running_daemon_sync(tmp_path, config) as daemon:
        for _ in range(2):
            assert ask(daemon, CHAT, chat_body("smol", max_tokens=2), timeout=120).status == 200
        assert instance(daemon, "smol")["build"] == "demo"
        assert len(launches(daemon, "smol")) == 2
        [row] = [row for row in status(daemon)["builds"] if row["name"] == "sigill"]
        assert [(strike["kind"], strike["model"]) for strike in row["strikes"]] == [("INCOMPATIBLE_CPU", "smol")]
