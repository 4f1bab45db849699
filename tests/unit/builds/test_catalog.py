"""Which executables are listed, in which order, under which names."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

import pytest

from engines.contract import KnownPackage
from engines.llama_cpp.adapter import LlamaCppAdapter
from supervisor.builds.catalog import Candidate, find_builds
from supervisor.config.schema import BuildConfig, EngineConfig

_MODULE = "enginehouse_test_package"


class _Adapter(LlamaCppAdapter):
    known_packages: ClassVar[tuple[KnownPackage, ...]] = (
        KnownPackage(name="packaged", module=_MODULE, executable="bin/llama-server", library_path="bin"),
        KnownPackage(name="absent", module="enginehouse_no_such_package", executable="bin/llama-server"),
    )


def _executable(path: Path, mode: int = 0o755) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("#!/bin/sh\n")
    path.chmod(mode)
    return path


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An installed package that fails when it is imported."""
    folder = tmp_path / "site" / _MODULE
    _executable(folder / "bin/llama-server")
    (folder / "__init__.py").write_text("raise RuntimeError('imported')\n")
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    return folder


def _find(*builds: BuildConfig | str, env: Mapping[str, str] | None = None, **engine_env: str) -> tuple[Candidate, ...]:
    config = EngineConfig.model_validate({"builds": builds or ("auto",), "env": engine_env})
    return find_builds(config, _Adapter(), env or {})


def _names(candidates: tuple[Candidate, ...]) -> list[str]:
    return [candidate.name for candidate in candidates]


def test_auto_finds_path_then_packages_without_importing_them(package: Path, tmp_path: Path) -> None:
    """PATH goes first, in its own order; a package brings its library folder before the existing one."""
    on_path = _executable(tmp_path / "a/llama-server")
    _executable(tmp_path / "b/llama-server")
    env = {"PATH": f"{tmp_path}/none:{tmp_path}/a:{tmp_path}/b", "LD_LIBRARY_PATH": "/opt/cuda"}
    first, second, packaged = _find(env=env)
    assert (packaged.name, packaged.source) == ("packaged", "package")
    assert packaged.executable == package / "bin/llama-server"
    assert packaged.env == {"LD_LIBRARY_PATH": f"{package}/bin:/opt/cuda"}
    assert (first.name, first.source, first.executable, first.env) == ("llama-server", "path", on_path, {})
    assert second.name == "llama-server-2"


def test_order_is_the_configs_and_auto_stands_where_it_is_written(package: Path, tmp_path: Path) -> None:
    """Builds before and after ``auto`` keep their places."""
    one, two = (BuildConfig(name=name, executable=_executable(tmp_path / name)) for name in ("one", "two"))
    assert _names(_find(one, "auto", two)) == ["one", "packaged", "two"]
    assert _names(_find(two, one)) == ["two", "one"]


def test_one_file_is_listed_once_and_a_taken_name_is_numbered(package: Path, tmp_path: Path) -> None:
    """A found file that is configured, or a link to it, is not found again; names stay unique."""
    _executable(tmp_path / "bin/other")
    (tmp_path / "path").mkdir()
    (tmp_path / "path/llama-server").symlink_to(package / "bin/llama-server")
    configured = BuildConfig(name="mine", executable=package / "bin/llama-server")
    assert _names(_find("auto", configured, env={"PATH": f"{tmp_path}/path"})) == ["mine"]
    taken = BuildConfig(name="packaged", executable=tmp_path / "bin/other")
    assert _names(_find("auto", taken)) == ["packaged-2", "packaged"]


def test_two_configured_builds_of_one_file_are_both_kept(tmp_path: Path) -> None:
    """They may differ in their environment, and a model may name either."""
    file = _executable(tmp_path / "llama-server")
    builds = [BuildConfig(name=name, executable=file, env={"X": name}) for name in ("one", "two")]
    assert [candidate.env for candidate in _find(*builds, Y="engine")] == [
        {"Y": "engine", "X": "one"},
        {"Y": "engine", "X": "two"},
    ]


def test_a_configured_executable_that_cannot_be_started_stays_listed(tmp_path: Path) -> None:
    """The owner sees why, instead of nothing."""
    missing = BuildConfig(name="missing", executable=tmp_path / "none")
    plain = BuildConfig(name="plain", executable=_executable(tmp_path / "plain", 0o644))
    problems = [candidate.problem for candidate in _find(missing, plain)]
    assert "no such file" in str(problems[0])
    assert "chmod" in str(problems[1])


def test_the_working_folder_is_never_searched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Prevents a file in the folder where the daemon was started from becoming a build."""
    _executable(tmp_path / "llama-server")
    (tmp_path / _MODULE / "bin").mkdir(parents=True)
    _executable(tmp_path / _MODULE / "bin/llama-server")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert _find(env={"PATH": f"{os.pathsep}."}) == ()


def test_the_engines_own_library_path_is_the_existing_one(package: Path) -> None:
    """A package's folder goes before what the config sets."""
    (found,) = _find(env={"LD_LIBRARY_PATH": "/theirs"}, LD_LIBRARY_PATH="/ours", X="1")
    assert found.env == {"LD_LIBRARY_PATH": f"{package}/bin:/ours", "X": "1"}
