"""A daemon that can't run says why on stderr and exits with 2, and leaves everything as it was."""

from __future__ import annotations

import json
import socket
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.support.daemon import daemon_config, running_daemon_sync
from tests.support.fake_engine import fake_build, tiny_model
from tests.wire.asking import CHAT, ask, chat_body, unloaded_after

LONGEST_REFUSAL = 20.0


def refused(folder: Path, config: Mapping[str, Any], env: Mapping[str, str] | None = None) -> str:
    """What a daemon says that must exit with 2."""
    folder.mkdir(exist_ok=True)
    with running_daemon_sync(folder, config, env=env, ready=False) as daemon:
        assert daemon.process.wait(LONGEST_REFUSAL) == 2
    said = daemon.log_text()
    assert "Traceback" not in said
    return said


@pytest.mark.parametrize(
    ("sections", "place", "hint"),
    [
        ({"listen": {"prot": 8080}}, "listen.prot", "did you mean port?"),
        ({"model_dir": ["/models"]}, "model_dir", "did you mean model_dirs?"),
        ({"broker": {"queue": {"max_wait": "2 minutes"}}}, "broker.queue.max_wait", "such as 500ms"),
        (
            {"models": {"m": {"engine": "llama.cpp", "launch": {"ctxsize": 4096}}}},
            "models.m.launch.ctxsize",
            "did you mean ctx_size?",
        ),
        ({"engines": {"llama.ccp": {}}}, "engines.llama.ccp", "did you mean llama.cpp?"),
    ],
)
def test_typo_in_the_config(tmp_path: Path, sections: dict[str, Any], place: str, hint: str) -> None:
    """A wrong key or value is named with its path and the nearest right one; no state folder is made."""
    said = refused(tmp_path, {**daemon_config(models={}), **sections})
    assert place in said
    assert hint in said
    assert str(tmp_path / "config.yaml") in said
    assert not (tmp_path / "state").exists()


def test_several_typos_are_said_at_once(tmp_path: Path) -> None:
    """Whoever mends a config hears of all its problems in one go."""
    said = refused(tmp_path, daemon_config(models={}, listen={"prot": 1}, brokr={}))
    assert "listen.prot" in said
    assert "brokr" in said


def test_port_in_use(tmp_path: Path) -> None:
    """A port that another program holds is named, with how to find that program; the state folder is free again."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        said = refused(tmp_path, daemon_config(models={}, listen={"port": port}))
        assert f"127.0.0.1:{port} is taken by another program" in said
        assert "--port" in said
    with running_daemon_sync(tmp_path, daemon_config(models={})) as daemon:
        assert ask(daemon, "/healthz").status == 200


def test_address_of_another_machine(tmp_path: Path) -> None:
    """An address that this machine doesn't have is named."""
    config = daemon_config(models={}, listen={"host": "192.0.2.1", "port": 8080}, auth={"open": True})
    assert "192.0.2.1 is no address of this machine" in refused(tmp_path, config)


@pytest.mark.parametrize("key", ["state_dir", "runtime_dir"])
def test_folder_that_is_a_file(tmp_path: Path, key: str) -> None:
    """A file where the state or the sockets should go is named, and stays as it is."""
    file = tmp_path / "a-file"
    file.write_text("precious", encoding="utf-8")
    said = refused(tmp_path, daemon_config(models={}, **{key: str(file)}))
    assert f"{key} {file} can't be used" in said
    assert file.read_text(encoding="utf-8") == "precious"


def test_state_folder_below_a_file(tmp_path: Path) -> None:
    """A state folder that can't be made because a file is in its way is named as well."""
    (tmp_path / "a-file").touch()
    state = tmp_path / "a-file" / "state"
    assert f"state_dir {state} can't be used" in refused(tmp_path, daemon_config(models={}, state_dir=str(state)))


def test_two_daemons_on_one_state_folder(tmp_path: Path) -> None:
    """The second daemon says who holds the folder; the first goes on, and its engines are not touched."""
    config = daemon_config(
        fake_build(tmp_path), models={"m": {"file": str(tiny_model(tmp_path))}}, state_dir=str(tmp_path / "state")
    )
    with running_daemon_sync(tmp_path, config) as first, unloaded_after(first, "m"):
        assert ask(first, CHAT, chat_body("m")).status == 200
        engines = {engine.pid for engine in first.engines()}
        said = refused(tmp_path / "second", config)
        assert f"another daemon (pid {first.pid}) holds state_dir {tmp_path / 'state'}" in said
        assert {engine.pid for engine in first.engines()} == engines
        assert ask(first, CHAT, chat_body("m")).status == 200
    with running_daemon_sync(tmp_path, config) as third:
        assert ask(third, "/healthz").status == 200


def test_state_files_of_nobody_knows_what(tmp_path: Path) -> None:
    """State files that are garbage are set aside with a word in the log; they stop nothing."""
    models = {"m": {"file": str(tiny_model(tmp_path))}}
    config = daemon_config(fake_build(tmp_path), models=models)
    with running_daemon_sync(tmp_path, config) as daemon:
        assert ask(daemon, CHAT, chat_body("m")).status == 200
    files = sorted((tmp_path / "state").glob("*.json"))
    assert files
    for number, file in enumerate(files):
        file.write_bytes([b"\0\xff", b"[]", json.dumps({"schema": 999}).encode()][number % 3])
    with running_daemon_sync(tmp_path, config) as daemon:
        assert ask(daemon, CHAT, chat_body("m")).status == 200
        for file in files:
            assert daemon.wait_for_event("state_file_unusable", path=str(file), timeout=5)["reason"]


def test_missing_config(tmp_path: Path) -> None:
    """A config that is named and isn't there is no reason to run without one."""
    said = refused(tmp_path, {}, env={"ENGINEHOUSE_LOG": "nonsense"})
    assert "ENGINEHOUSE_LOG is 'nonsense'" in said
    with ExitStack() as stack:
        daemon = stack.enter_context(
            running_daemon_sync(tmp_path, None, env={"ENGINEHOUSE_CONFIG": str(tmp_path / "no.yaml")}, ready=False)
        )
        assert daemon.process.wait(LONGEST_REFUSAL) == 2
    assert f"there is no config file {tmp_path / 'no.yaml'}" in daemon.log_text()
