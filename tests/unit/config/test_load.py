from __future__ import annotations

import os
from pathlib import Path

import pytest

from supervisor.config.load import Problem, find_config, load_config
from supervisor.errors import ConfigError


def test_no_file_is_a_config_too(tmp_path: Path) -> None:
    """Zero config: everything is worked out."""
    loaded = load_config(None, {"HOME": str(tmp_path)})
    assert loaded.path is None
    assert loaded.config.state_dir == tmp_path / ".local/state/enginehouse"
    assert loaded.config.model_dirs == (tmp_path / ".local/share/enginehouse",)


def test_a_file_is_loaded_and_named(tmp_path: Path) -> None:
    """Relative paths start in its folder."""
    file = tmp_path / "c.yaml"
    file.write_text("version: 1\nmodel_dirs: [models]\n")
    loaded = load_config(file, {})
    assert (loaded.path, loaded.config.model_dirs) == (file, (tmp_path / "models",))


def test_a_relative_file_gives_absolute_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A daemon may change its folder later."""
    monkeypatch.chdir(tmp_path)
    Path("c.yaml").write_text("version: 1\nstate_dir: s\n")
    assert load_config(Path("c.yaml"), {}).config.state_dir == tmp_path / "s"


def test_places_are_searched_in_order(tmp_path: Path) -> None:
    """The named one, the variable's, the user's; the first that is there."""
    user = tmp_path / "xdg/enginehouse/config.yaml"
    user.parent.mkdir(parents=True)
    named, by_variable = tmp_path / "named.yaml", tmp_path / "variable.yaml"
    for file in (user, named, by_variable):
        file.write_text("version: 1\n")
    env = {"HOME": str(tmp_path), "XDG_CONFIG_HOME": str(tmp_path / "xdg")}
    assert find_config(None, env) == user
    assert find_config(None, {**env, "ENGINEHOUSE_CONFIG": "~/variable.yaml"}) == by_variable
    assert find_config(named, {**env, "ENGINEHOUSE_CONFIG": str(by_variable)}) == named


def test_without_xdg_the_users_config_is_under_dot_config(tmp_path: Path) -> None:
    """``~/.config/enginehouse/config.yaml``; with none there, the machine's or nothing."""
    assert find_config(None, {"HOME": str(tmp_path)}) in (None, Path("/etc/enginehouse/config.yaml"))
    user = tmp_path / ".config/enginehouse/config.yaml"
    user.parent.mkdir(parents=True)
    user.write_text("version: 1\n")
    assert find_config(None, {"HOME": str(tmp_path)}) == user


@pytest.mark.parametrize("variable", [True, False])
def test_a_named_file_that_is_not_there_is_an_error(tmp_path: Path, variable: bool) -> None:
    """Falling back to defaults would run a daemon that nobody configured."""
    missing = tmp_path / "missing.yaml"
    with pytest.raises(ConfigError) as caught:
        find_config(None if variable else missing, {"ENGINEHOUSE_CONFIG": str(missing)})
    assert caught.value.code == "config_not_found"
    assert str(missing) in caught.value.message
    with pytest.raises(ConfigError) as again:
        load_config(missing, {})
    assert again.value.code == "config_not_found"


def test_a_dangling_link_in_a_default_place_is_not_passed_over(tmp_path: Path) -> None:
    """A config was meant; running without one would be a surprise."""
    link = tmp_path / "enginehouse/config.yaml"
    link.parent.mkdir()
    link.symlink_to("gone.yaml")
    env = {"XDG_CONFIG_HOME": str(tmp_path)}
    assert find_config(None, env) == link
    with pytest.raises(ConfigError) as caught:
        load_config(link, env)
    assert caught.value.code == "config_not_found"


def test_a_folder_a_huge_file_and_an_impossible_name_are_clear_errors(tmp_path: Path) -> None:
    """Whatever the path is, the answer is a ConfigError that says why."""
    (tmp_path / "file").write_text("version: 1")
    for path in (tmp_path, Path("/dev/zero"), Path("a\0b"), Path("x" * 5000), tmp_path / "file" / "below"):
        with pytest.raises(ConfigError) as caught:
            load_config(path, {})
        assert caught.value.message


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_without_the_right_to_read_is_a_clear_error(tmp_path: Path) -> None:
    """The reason is the system's own."""
    file = tmp_path / "c.yaml"
    file.write_text("version: 1\n")
    file.chmod(0)
    with pytest.raises(ConfigError) as caught:
        load_config(file, {})
    assert "ermission" in caught.value.message


def test_the_error_holds_every_problem_in_its_text_and_its_facts(tmp_path: Path) -> None:
    """People read the text; scripts take the facts."""
    file = tmp_path / "c.yaml"
    file.write_text("version: 1\nlistn: {}\nmodels: {q: {fil: x, file: x}}\n")
    with pytest.raises(ConfigError) as caught:
        load_config(file, {})
    error = caught.value
    assert error.facts["problems"] == [
        Problem("listn", "unknown key", "did you mean listen?", 2),
        Problem("models.q.fil", "unknown key", "did you mean file?", 3),
    ]
    assert error.message.splitlines() == [
        f"{file} can't be used: 2 problems",
        "  line 2: listn: unknown key (did you mean listen?)",
        "  line 3: models.q.fil: unknown key (did you mean file?)",
    ]


def test_a_flood_of_problems_is_cut_in_the_text_only(tmp_path: Path) -> None:
    """The wrong file makes thousands; a terminal holds fifty."""
    file = tmp_path / "c.yaml"
    file.write_text("version: 1\n" + "".join(f"key{n}: 1\n" for n in range(200)))
    with pytest.raises(ConfigError) as caught:
        load_config(file, {})
    assert len(caught.value.facts["problems"]) == 200
    assert len(caught.value.message.splitlines()) == 52
    assert caught.value.message.endswith("and 150 more")
