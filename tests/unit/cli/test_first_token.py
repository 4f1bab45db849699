from __future__ import annotations

from pathlib import Path

import pytest

from supervisor.cli.first_token import FILE_NAME, with_first_token
from supervisor.cli.serve import listen_at
from supervisor.config.load import LoadedConfig, load_config
from supervisor.errors import ConfigError
from supervisor.gateway.doorkeeper import read_access


def loaded(folder: Path, text: str = "") -> LoadedConfig:
    """A config with its state in the folder."""
    path = folder / "config.yaml"
    path.write_text(f"version: 1\nstate_dir: {folder / 'state'}\n{text}", encoding="utf-8")
    return load_config(path, {"HOME": str(folder)})


def test_the_first_start_makes_a_token_and_says_it_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The next start uses the same one and says nothing; only its owner can read the file."""
    first = with_first_token(loaded(tmp_path))
    file = tmp_path / "state" / FILE_NAME
    token = file.read_text(encoding="utf-8").strip()
    assert len(token) >= 32
    assert file.stat().st_mode & 0o777 == 0o600
    assert capsys.readouterr().out.count(token) == 1
    second = with_first_token(loaded(tmp_path))
    assert capsys.readouterr().out == ""
    assert second.config.auth == first.config.auth
    [caller] = first.config.auth.callers
    assert set(caller.roles) == {"use", "admin"}
    hidden: list[str] = []
    access = read_access(listen_at(first, "0.0.0.0", 8080).config, hidden.append)
    assert hidden == [token]
    assert len(access.credentials) == 1


def test_who_has_callers_or_wants_none_gets_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The config goes first, and what is open on purpose stays open."""
    (tmp_path / "t").write_text("x" * 40, encoding="utf-8")
    (tmp_path / "t").chmod(0o600)
    for text in ("auth: {open: true}\n", f"auth: {{callers: [{{name: a, token_file: {tmp_path / 't'}}}]}}\n"):
        before = loaded(tmp_path, text)
        assert with_first_token(before) is before
    assert capsys.readouterr().out == ""
    assert not (tmp_path / "state").exists()


def test_a_state_folder_that_holds_nothing_is_said(tmp_path: Path) -> None:
    """A container whose volume belongs to somebody else must not run open instead."""
    (tmp_path / "state").write_text("a file", encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        with_first_token(loaded(tmp_path))
    assert caught.value.code == "state_dir_unusable"
    assert "auth.callers" in caught.value.message
