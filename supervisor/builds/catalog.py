"""Which executables there are: configured ones in order, and where ``auto`` stands those found by themselves."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from engines.contract import EngineAdapter, EngineKind, KnownPackage
from supervisor.config.schema import EngineConfig
from supervisor.processes.executable import SpawnFailed, check_executable

_LIBRARY_PATH = "LD_LIBRARY_PATH"


@dataclass(frozen=True, slots=True)
class Candidate:
    """An executable that may be a build; nothing has been run yet.

    Attributes:
        name: unique among the candidates of its engine.
        executable: absolute path.
        env: the engine's and the build's own variables, on top of the minimal environment.
        problem: why it can't be started, in words; None when nothing speaks against it.
    """

    name: str
    engine: EngineKind
    executable: Path
    env: Mapping[str, str] = field(repr=False)
    source: Literal["config", "path", "package"]
    problem: str | None = None


def find_builds(config: EngineConfig, adapter: EngineAdapter, env: Mapping[str, str]) -> tuple[Candidate, ...]:
    """Candidates of one engine, in order of preference.

    Configured builds are all listed, with their ``problem``. Those found by themselves are listed unless the same
    file, by real path, is a candidate already.

    Args:
        config: the engine's section.
        adapter: knows the packages and names to look for.
        env: the supervisor's own environment: PATH, LD_LIBRARY_PATH.
    """
    configured = [
        Candidate(
            name=build.name,
            engine=adapter.kind,
            executable=build.executable,
            env={**config.env, **build.env},
            source="config",
            problem=_problem(build.executable),
        )
        for build in config.builds
        if build != "auto"
    ]
    names = {candidate.name for candidate in configured}
    paths = {_identity(candidate.executable, adapter) for candidate in configured}
    order = iter(configured)
    found: list[Candidate] = []
    for build in config.builds:
        if build == "auto":
            found.extend(_discover(config, adapter, env, names, paths))
        else:
            found.append(next(order))
    return tuple(found)


def _discover(
    config: EngineConfig, adapter: EngineAdapter, env: Mapping[str, str], names: set[str], paths: set[str]
) -> Iterator[Candidate]:
    """What PATH offers, then packages: what the owner put on PATH goes first.

    ``names`` and ``paths`` are those taken, and are added to.
    """
    for candidate in (*_on_path(config, adapter, env), *_in_packages(config, adapter, env)):
        path = _identity(candidate.executable, adapter)
        if path in paths:
            continue
        paths.add(path)
        name = _free_name(candidate.name, names)
        names.add(name)
        yield replace(candidate, name=name)


def _in_packages(config: EngineConfig, adapter: EngineAdapter, env: Mapping[str, str]) -> Iterator[Candidate]:
    for package in adapter.known_packages:
        folder = _package_folder(package.module)
        if folder is None:
            continue
        executable = Path(sys.executable) if package.interpreter else folder / package.executable
        if not executable.is_file():
            continue  # another version of the package, or its source alone
        yield Candidate(
            name=package.name,
            engine=adapter.kind,
            executable=executable,
            env={**config.env, **_library_path(package, folder, {**env, **config.env})},
            source="package",
            problem=_problem(executable),
        )


def _library_path(package: KnownPackage, folder: Path, env: Mapping[str, str]) -> dict[str, str]:
    if package.library_path is None:
        return {}
    existing = env.get(_LIBRARY_PATH)
    own = str(folder / package.library_path)
    return {_LIBRARY_PATH: f"{own}{os.pathsep}{existing}" if existing else own}


def _package_folder(module: str) -> Path | None:
    """Folder of an installed package, found without importing it; None if it isn't installed."""
    top, *inner = module.split(".")
    try:
        spec = importlib.util.find_spec(top)
    except (ImportError, ValueError):
        return None
    # A folder of that name without __init__ has no origin: it is somebody's working folder, not the package.
    if spec is None or spec.origin is None or not spec.submodule_search_locations:
        return None
    return Path(spec.submodule_search_locations[0]).absolute().joinpath(*inner)


def _on_path(config: EngineConfig, adapter: EngineAdapter, env: Mapping[str, str]) -> Iterator[Candidate]:
    for folder in env.get("PATH", "").split(os.pathsep):
        if not Path(folder).is_absolute():
            continue  # an empty or relative entry means the working folder: anyone could have put a file there
        for name in adapter.executable_names:
            executable = Path(folder, name)
            if executable.is_file() and os.access(executable, os.X_OK):
                yield Candidate(
                    name=name,
                    engine=adapter.kind,
                    executable=executable,
                    env=dict(config.env),
                    source="path",
                    problem=_problem(executable),
                )


def _problem(executable: Path) -> str | None:
    try:
        check_executable(executable)
    except SpawnFailed as failure:
        return failure.message
    return None


def _identity(path: Path, adapter: EngineAdapter) -> str:
    """Equal for two names of one build. The interpreters of two environments are often links to one file."""
    return str(path.absolute()) if adapter.build_files(path) else os.path.realpath(path)


def _free_name(name: str, taken: set[str]) -> str:
    number, free = 1, name
    while free in taken:
        number += 1
        free = f"{name}-{number}"
    return free
