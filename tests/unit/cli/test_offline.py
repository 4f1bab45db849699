"""Commands that answer without a daemon."""

from __future__ import annotations

from pathlib import Path

import pytest

from supervisor.cli.offline import build_rows, model_rows, plan_of
from supervisor.config.load import load_config
from supervisor.errors import ConfigError, ModelError
from supervisor.storage import StateLock
from tests.support.fake_engine import fake_build, tiny_model


def config_file(folder: Path) -> Path:
    """A config with one good model, one broken, and the fake build."""
    build = fake_build(folder)
    (folder / "models").mkdir()
    tiny_model(folder / "models", "good.gguf")
    (folder / "models" / "cut.gguf").write_bytes((folder / "models" / "good.gguf").read_bytes()[:100])
    file = folder / "config.yaml"
    file.write_text(
        "version: 1\n"
        f"state_dir: {folder}/state\n"
        f"model_dirs: [{folder}/models]\n"
        f"engines: {{llama.cpp: {{builds: [{{name: fake, executable: {build.executable}}}]}}}}\n"
    )
    return file


def test_models_are_listed_with_the_broken_ones(tmp_path: Path) -> None:
    """A file that is cut short is listed with the reason, beside the good one."""
    rows = {row["id"]: row for row in model_rows(config_file(tmp_path))()}
    assert rows["good"]["broken"] is None
    assert rows["cut"]["state"] == "broken"
    assert rows["cut"]["broken"]


def test_builds_are_asked(tmp_path: Path) -> None:
    """The configured build says its version."""
    [row] = [row for row in build_rows(config_file(tmp_path))() if row["engine"] == "llama.cpp"]
    assert row["name"] == "fake"
    assert row["version"]


def test_a_locked_state_folder_is_left_alone(tmp_path: Path) -> None:
    """While a daemon holds the folder, nothing in it is touched."""
    rows = model_rows(config_file(tmp_path))
    lock = StateLock.take(tmp_path / "state")
    try:
        with pytest.raises(ConfigError) as caught:
            rows()
        assert caught.value.code == "state_dir_locked"
    finally:
        lock.release()


def test_a_plan_writes_nothing(tmp_path: Path) -> None:
    """`plan` takes no lock and leaves no state folder behind."""
    config = load_config(config_file(tmp_path), {}).config
    document = plan_of(config, {"PATH": "/usr/bin:/bin"}, "good", Path("/"))
    assert document["fits"]
    assert document["build"] == "fake"
    assert not (tmp_path / "state").exists()
    with pytest.raises(ModelError) as caught:
        plan_of(config, {}, "goood", Path("/"))
    assert caught.value.facts["nearest"] == "good"
