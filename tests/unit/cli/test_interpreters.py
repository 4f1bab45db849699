"""`check` asks the interpreters of engines that run in one."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from supervisor.cli.check import check


def write(folder: Path, executable: Path | str) -> Path:
    """A config with one MLX build."""
    path = folder / "config.yaml"
    path.write_text(f"version: 1\nengines: {{mlx: {{builds: [{{name: own, executable: {executable}}}]}}}}\n")
    return path


@pytest.mark.usefixtures("mlx_here")
def test_versions_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An interpreter that has what is needed says its versions."""
    assert check(write(tmp_path, sys.executable), json_output=False) == 0
    assert "mlx build own" in (said := capsys.readouterr().out)
    assert "mlx-lm 0." in said


def test_what_is_missing_and_how_to_get_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One without MLX says what to install, and the config is good all the same."""
    bare = tmp_path / "python"
    bare.write_text(f'#!/bin/sh\nexec {sys.executable} -I -S "$@"\n')
    bare.chmod(0o755)
    assert check(write(tmp_path, bare), json_output=True) == 0
    [row] = json.loads(capsys.readouterr().out)["builds"]
    assert row["version"] is None
    assert "enginehouse[mlx]" in row["problem"]


def test_configs_without_it_ask_nobody(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Who does not use it waits for nothing."""
    path = tmp_path / "config.yaml"
    path.write_text("version: 1\n")
    assert check(path, json_output=True) == 0
    assert "builds" not in json.loads(capsys.readouterr().out)
