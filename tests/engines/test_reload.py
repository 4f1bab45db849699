"""The config changes while the real engine streams."""

from __future__ import annotations

import json
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
import yaml

from tests.support.daemon import Daemon, daemon_config, running_daemon_sync
from tests.support.demo import DemoEngine
from tests.wire.asking import CHAT, LOG_ALL, Answer, ask, chat_body, instance

pytestmark = pytest.mark.engine

TOKENS = 60


def config_of(engine: DemoEngine, model: Path, ctx_size: int) -> dict[str, Any]:
    """Three models of one file; the second has this context."""
    launch = {"threads": 1, "threads_batch": 1, "slots": 1, "warmup": False}
    models = {
        name: {"file": str(model), "launch": {**launch, "ctx_size": ctx_size if name == "b" else 512}} for name in "abc"
    }
    return daemon_config(engine.as_config(), models=models)


def stream(daemon: Daemon, model: str, into: dict[str, Answer]) -> Thread:
    """A stream of a fixed length, read in a thread of its own."""
    body = chat_body(
        model, "Count to a hundred.", stream=True, max_tokens=TOKENS, ignore_eos=True, temperature=0, seed=1
    )
    thread = Thread(target=lambda: into.update({model: ask(daemon, CHAT, body)}))
    thread.start()
    return thread


def text_of(answer: Answer) -> str:
    """What was streamed; the stream must have ended well."""
    assert answer.status == 200
    assert answer.events[-1] == "[DONE]"
    deltas = [event["choices"][0]["delta"] for event in answer.events[:-1] if event.get("choices")]
    return "".join(delta.get("content") or "" for delta in deltas)


def test_three_streams_go_on_while_one_models_launch_changes(
    tmp_path: Path, demo_engine: DemoEngine, demo_model: Path
) -> None:
    """All three streams end whole and alike; only the changed model is launched anew, with its new context."""
    with running_daemon_sync(tmp_path, config_of(demo_engine, demo_model, 512), env=LOG_ALL) as daemon:
        for model in "abc":
            assert ask(daemon, f"/admin/v1/models/{model}/load", b"").status == 200
        answers: dict[str, Answer] = {}
        threads = [stream(daemon, model, answers) for model in "abc"]
        for model in "abc":
            daemon.wait_for_event("request_leased", model=model)
        path = tmp_path / "config.yaml"
        changed = {**yaml.safe_load(path.read_text()), "models": config_of(demo_engine, demo_model, 1024)["models"]}
        path.with_suffix(".new").write_text(json.dumps(changed))
        path.with_suffix(".new").replace(path)
        daemon.wait_for_event("config_reloaded")
        for thread in threads:
            thread.join()
        assert text_of(answers["a"]) == text_of(answers["b"]) == text_of(answers["c"])
        daemon.wait_for_event("instance_changed", model="b", new="stopped")
        assert ask(daemon, CHAT, chat_body("b", max_tokens=2)).status == 200
        assert [instance(daemon, model)["generation"] for model in "abc"] == [1, 2, 1]
        assert instance(daemon, "b")["plan"]["ctx_size"] == 1024
