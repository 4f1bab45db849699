from __future__ import annotations

import json
from pathlib import Path

import pytest

from supervisor.cli.check import check


def test_a_good_config_exits_0_with_a_summary(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One line, for people."""
    file = tmp_path / "c.yaml"
    file.write_text("version: 1\nmodels: {m: {file: m.gguf}}\n")
    assert check(file, json_output=False) == 0
    out = capsys.readouterr().out
    assert out.startswith(f"{file} is good: 1 model, ")
    assert out.endswith(", 0 callers; listens on 127.0.0.1 port 8080\n")


def test_a_wrong_config_exits_2_with_every_problem(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Path, line, message and advice on one line each."""
    file = tmp_path / "c.yaml"
    file.write_text("version: 1\nmodels: {m: {file: m, launch: {ctx_sise: 4}}}\n")
    assert check(file, json_output=False) == 2
    assert "  line 2: models.m.launch.ctx_sise: unknown key (did you mean ctx_size?)" in capsys.readouterr().out


def test_json_is_one_document(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Scripts read it whole from stdout."""
    file = tmp_path / "c.yaml"
    file.write_text("version: 1\nlistn: {}\n")
    assert check(file, json_output=True) == 2
    assert json.loads(capsys.readouterr().out) == {
        "ok": False,
        "file": str(file),
        "problems": [
            {"path": "listn", "message": "unknown key", "suggestion": "did you mean listen?", "line": 2},
        ],
    }
    file.write_text("version: 1\n")
    assert check(file, json_output=True) == 0
    assert json.loads(capsys.readouterr().out) == {"ok": True, "file": str(file), "problems": []}


@pytest.mark.parametrize("name", ["missing.yaml", ".", "a\udce4.yaml"])
def test_what_is_not_a_file_exits_2_in_both_forms(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A missing file, a folder, a name that is no UTF-8: never a traceback."""
    assert check(tmp_path / name, json_output=True) == 2
    document = json.loads(capsys.readouterr().out)
    assert document["ok"] is False
    assert document["problems"][0]["message"]
    assert check(tmp_path / name, json_output=False) == 2
    assert capsys.readouterr().out
