"""The config changes while the daemon serves."""

from __future__ import annotations

import http.client
import json
import signal
import threading
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import yaml

from tests.support.daemon import Daemon, daemon_config, running_daemon_sync
from tests.support.fake_engine import fake_build, set_faults, tiny_model

WORDS = " ".join(f"word{number}" for number in range(60))


def config_of(folder: Path, **b: Any) -> dict[str, Any]:
    """Three models on a fake that takes about two seconds for an answer; ``b`` is launch settings of one."""
    build = fake_build(folder, reply=WORDS, chunk_delay=0.03)
    for name in "abc":
        if not (folder / f"{name}.gguf").exists():
            tiny_model(folder, f"{name}.gguf")
    models: dict[str, Any] = {name: {"file": str(folder / f"{name}.gguf"), "keep_alive": "5m"} for name in "abc"}
    models["b"]["launch"] = {"ctx_size": 512, **b}
    return daemon_config(build, models=models)


def rewrite(daemon: Daemon, **changes: Any) -> None:
    """Put other top-level sections into the daemon's config file."""
    path = daemon.folder / "config.yaml"
    document = {**yaml.safe_load(path.read_text()), **changes}
    fresh = path.with_suffix(".new")
    fresh.write_text(yaml.safe_dump(document))
    fresh.replace(path)


def ask(daemon: Daemon, method: str, path: str, body: object = None) -> tuple[int, Any]:
    """One request by hand."""
    url = urlsplit(daemon.base_url)
    connection = http.client.HTTPConnection(str(url.hostname), url.port, timeout=40)
    try:
        connection.request(method, path, json.dumps(body) if body is not None else None)
        answer = connection.getresponse()
        text = answer.read().decode()
        return answer.status, json.loads(text) if text.startswith(("{", "[")) else text
    finally:
        connection.close()


def chat(model: str) -> dict[str, Any]:
    """A streamed chat."""
    return {"model": model, "messages": [{"role": "user", "content": "go"}], "stream": True}


def text_of(stream: str) -> str:
    """The content of a stream's chunks; it must have ended well."""
    frames = [line.removeprefix("data: ") for line in stream.splitlines() if line.startswith("data: ")]
    assert frames[-1] == "[DONE]", stream[-400:]
    deltas = [json.loads(frame)["choices"][0]["delta"] for frame in frames[:-1]]
    return "".join(delta.get("content") or "" for delta in deltas)


class Streams:
    """Streams that run in threads of their own."""

    def __init__(self, daemon: Daemon, *models: str) -> None:
        self.answers: dict[str, tuple[int, Any]] = {}
        self._threads = [threading.Thread(target=self._run, args=(daemon, model)) for model in models]
        for thread in self._threads:
            thread.start()
        for model in models:
            daemon.wait_for_event("request_leased", model=model)

    def _run(self, daemon: Daemon, model: str) -> None:
        self.answers[model] = ask(daemon, "POST", "/v1/chat/completions", chat(model))

    def join(self) -> None:
        """Wait until all have ended."""
        for thread in self._threads:
            thread.join()


def generations(daemon: Daemon) -> dict[str, int]:
    """How often each model was launched."""
    _, status = ask(daemon, "GET", "/admin/v1/status")
    return {row["model"]: row["generation"] for row in status["instances"]}


def test_only_the_changed_model_is_launched_anew_and_every_stream_goes_on(tmp_path: Path) -> None:
    """Three streams run; one model's launch changes: all three end whole, and only that model gets a new launch."""
    with running_daemon_sync(tmp_path, config_of(tmp_path), env={"ENGINEHOUSE_LOG_LEVEL": "debug"}) as daemon:
        for model in "abc":
            assert ask(daemon, "POST", f"/admin/v1/models/{model}/load")[0] == 200
        streams = Streams(daemon, "a", "b", "c")
        rewrite(daemon, models=config_of(tmp_path, ctx_size=1024)["models"])
        status, answer = ask(daemon, "POST", "/admin/v1/reload")
        assert status == 200
        assert answer["models"]["changed_for_launch"] == ["b"] or not answer["changed"]
        streams.join()
        assert {model: (code, text_of(body)) for model, (code, body) in streams.answers.items()} == dict.fromkeys(
            "abc", (200, WORDS)
        )
        daemon.wait_for_event("instance_changed", model="b", new="stopped")
        assert ask(daemon, "POST", "/v1/chat/completions", chat("b"))[0] == 200
        assert generations(daemon) == {"a": 1, "b": 2, "c": 1}


def test_a_changed_file_is_noticed_by_itself(tmp_path: Path) -> None:
    """Nobody calls reload: the watch sees the new file, and a new alias works at once."""
    with running_daemon_sync(tmp_path, config_of(tmp_path)) as daemon:
        models = config_of(tmp_path)["models"]
        models["a"]["aliases"] = ["first"]
        rewrite(daemon, models=models)
        daemon.wait_for_event("config_reloaded")
        assert ask(daemon, "GET", "/v1/models/first")[0] == 200


def test_sighup_reloads(tmp_path: Path) -> None:
    """The signal reads the file again; the daemon goes on."""
    with running_daemon_sync(tmp_path, config_of(tmp_path)) as daemon:
        daemon.send(signal.SIGHUP)
        daemon.wait_for_event("config_reloaded", cause="SIGHUP")
        assert ask(daemon, "GET", "/healthz")[0] == 200


def test_a_typo_keeps_the_old_config_and_says_why(tmp_path: Path) -> None:
    """A file that can't be used is refused with the place and the nearest key; everything goes on as before."""
    with running_daemon_sync(tmp_path, config_of(tmp_path)) as daemon:
        rewrite(daemon, brokker={})
        rejected = daemon.wait_for_event("config_rejected")
        assert "brokker" in rejected["reason"]
        assert "broker" in rejected["reason"]
        status, answer = ask(daemon, "POST", "/admin/v1/reload")
        assert (status, answer["error"]["code"]) == (400, "config_invalid")
        assert ask(daemon, "POST", "/v1/chat/completions", chat("a"))[0] == 200


def test_a_model_that_is_taken_out_is_stopped_and_unknown(tmp_path: Path) -> None:
    """After the reload its name is a 404, and its engine is gone."""
    with running_daemon_sync(tmp_path, config_of(tmp_path)) as daemon:
        assert ask(daemon, "POST", "/admin/v1/models/c/load")[0] == 200
        models = config_of(tmp_path)["models"]
        del models["c"]
        rewrite(daemon, models=models)
        daemon.wait_for_event("instance_changed", model="c", new="stopped")
        assert ask(daemon, "POST", "/v1/chat/completions", chat("c"))[0] == 404
        assert daemon.engines() == []


def test_what_only_a_restart_changes_is_said(tmp_path: Path) -> None:
    """A new port is listed as waiting for a restart, and the daemon stays where it is."""
    with running_daemon_sync(tmp_path, config_of(tmp_path)) as daemon:
        rewrite(daemon, listen={"host": "127.0.0.1", "port": 1})
        record = daemon.wait_for_event("config_reloaded")
        assert record["needs_restart"] == ["listen.port"]
        assert ask(daemon, "GET", "/healthz")[0] == 200


def test_pinned_and_preloaded_models_start_with_the_daemon(tmp_path: Path) -> None:
    """In the config's order, one after the other, before anyone asks."""
    config = config_of(tmp_path)
    config["models"]["b"]["preload"] = True
    config["models"]["c"]["pinned"] = True
    with running_daemon_sync(tmp_path, config) as daemon:
        first = daemon.wait_for_event("launch_ready", model="b")
        second = daemon.wait_for_event("launch_ready", model="c")
        assert daemon.records.index(first) < daemon.records.index(second)
        assert set(generations(daemon)) == {"b", "c"}


def test_a_requests_keep_alive_of_zero_stops_the_engine_behind_it(tmp_path: Path) -> None:
    """`keep_alive: 0` in a body: the answer comes whole, then the engine is stopped."""
    with running_daemon_sync(tmp_path, config_of(tmp_path)) as daemon:
        status, body = ask(daemon, "POST", "/v1/chat/completions", chat("a") | {"keep_alive": 0})
        assert (status, text_of(body)) == (200, WORDS)
        daemon.wait_for_event("instance_changed", model="a", new="stopped")
        assert daemon.engines() == []


def test_the_log_on_disk_outlives_a_killed_engine(tmp_path: Path) -> None:
    """What the engine said before it was killed stands in its log, with how it ended."""
    with running_daemon_sync(tmp_path, config_of(tmp_path)) as daemon:
        assert ask(daemon, "POST", "/admin/v1/models/a/load")[0] == 200
        _, status = ask(daemon, "GET", "/admin/v1/status")
        [engine] = [process for process in daemon.engines() if process.pid == status["instances"][0]["pid"]]
        engine.kill()
        daemon.wait_for_event("launch_exited", model="a")
    log = (tmp_path / "state" / "logs" / "a.log").read_text()
    assert "listening on" in log
    assert "signal 9" in log


def test_a_signal_while_models_are_preloaded_stops_in_order(tmp_path: Path) -> None:
    """Prevents a crash at shutdown: the rest of the preload is given up, and what loads is stopped."""
    config = config_of(tmp_path)
    for model in config["models"].values():
        model["preload"] = True
    for name in "abc":
        set_faults(tmp_path / f"{name}.gguf", load_seconds=20.0)
    with running_daemon_sync(tmp_path, config) as daemon:
        daemon.wait_for_event("launch_started", model="a")
        assert daemon.stop() == 0
        assert not [record for record in daemon.records if record.get("event") == "internal_error"]
        assert not [record for record in daemon.records if record.get("model") in {"b", "c"} and "launch" in record]


def test_unloading_what_was_never_loaded_leaves_no_trace(tmp_path: Path) -> None:
    """No row, no engine; and a later change of its config holds at its first launch."""
    with running_daemon_sync(tmp_path, config_of(tmp_path)) as daemon:
        assert ask(daemon, "POST", "/admin/v1/models/b/unload")[0] == 200
        assert generations(daemon) == {}
        rewrite(daemon, models=config_of(tmp_path, ctx_size=1024)["models"])
        daemon.wait_for_event("config_reloaded")
        _, row = ask(daemon, "POST", "/admin/v1/models/b/load")
        assert row["plan"]["ctx_size"] == 1024
