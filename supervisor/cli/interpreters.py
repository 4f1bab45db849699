"""Engines that run in a Python interpreter: whether the ones that a config names have what they need."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import anyio

from engines.contract import CommandOutput, EngineAdapter
from engines.registry import ADAPTERS
from supervisor.builds.catalog import Candidate, find_builds
from supervisor.config.schema import Config
from supervisor.processes.command import run_command
from supervisor.processes.environment import child_environment
from supervisor.processes.executable import SpawnFailed
from supervisor.processes.opening import SpawnSpec

_LIMIT_SECONDS = 20.0


@dataclass(frozen=True, slots=True)
class Interpreter:
    """One of them: the versions that were found, or why it can't be used."""

    engine: str
    name: str
    executable: str
    version: str | None
    problem: str | None

    def document(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)

    def text(self) -> str:
        """One line."""
        found = self.version if self.problem is None else f"can't be used: {self.problem}"
        return f"{self.engine} build {self.name} ({self.executable}): {found}"


def interpreters(config: Config, env: Mapping[str, str]) -> list[Interpreter]:
    """Those of engines that the config uses: by a model, or by a build that it names. Each is asked, for 20 s."""
    found: list[Interpreter] = []
    for kind, adapter in ADAPTERS.items():
        section = config.engines[kind]
        named = any(build != "auto" for build in section.builds)
        wanted = any(model.engine is kind for model in config.models.values())
        if not any(package.interpreter for package in adapter.known_packages) or not (named or wanted):
            continue
        candidates = find_builds(section, adapter, env)
        found += [_asked(adapter, candidate, env) for candidate in candidates]
        if not candidates:
            why = f"no interpreter was found: name one under engines.{kind}.builds, or install 'enginehouse[{kind}]'"
            found.append(Interpreter(kind.value, "auto", "none", None, why))
    return found


def _asked(adapter: EngineAdapter, candidate: Candidate, env: Mapping[str, str]) -> Interpreter:
    made = partial(Interpreter, candidate.engine.value, candidate.name, str(candidate.executable))
    if candidate.problem is not None:
        return made(None, candidate.problem)
    own = {**adapter.environment, **candidate.env}
    environment = child_environment(env, adapter.pass_through_environment, own)
    spec = SpawnSpec((str(candidate.executable), *adapter.version_args), environment)
    try:
        output = anyio.run(run_command, spec, _LIMIT_SECONDS)
    except SpawnFailed as failure:
        return made(None, failure.message)
    code = None if output.exit is None else output.exit.code
    version = adapter.parse_version(CommandOutput(code, output.stdout, output.stderr))
    lines = [line.strip() for line in output.stderr.splitlines() if line.strip()]
    return made(version, None if version is not None else (lines or ["it did not say its versions"])[-1])
