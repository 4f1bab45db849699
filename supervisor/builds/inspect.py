"""Asks builds for their version, their flags and their devices; each build once, until it or the host changes."""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import anyio
import orjson

from engines.contract import BuildFacts, CommandOutput, EngineAdapter, EngineKind
from supervisor.builds.cache import Cache
from supervisor.builds.catalog import Candidate
from supervisor.builds.facts import (
    UNKNOWN,
    all_succeeded,
    facts_from_document,
    facts_to_document,
    find_problem,
    without_free,
)
from supervisor.builds.fingerprint import Fingerprints
from supervisor.errors import PlanError
from supervisor.events import BuildFound, BuildUnusable, EventBus
from supervisor.processes.child_process import Exit
from supervisor.processes.command import Output, run_command
from supervisor.processes.environment import child_environment
from supervisor.processes.executable import SpawnFailed, check_executable
from supervisor.processes.opening import SpawnSpec
from supervisor.storage import JsonFile

SCHEMA = 1
_KEEP_BUILDS = 64

CommandRunner = Callable[[SpawnSpec, float], Awaitable[Output]]


@dataclass(frozen=True, slots=True)
class FoundBuild:
    """A build and what is known of it.

    Attributes:
        env: the engine's and the build's own variables, on top of the minimal environment.
        fingerprint: hash of its bytes; None when they can't be read.
        facts: what it says of itself; all unknown when it could not be asked.
        problem: why it can't be used, in words; None when nothing speaks against it.
        missing: there is no such file, so that not even a pin can use it.
    """

    name: str
    engine: EngineKind
    executable: Path
    env: Mapping[str, str] = field(repr=False)
    source: Literal["config", "path", "package"]
    fingerprint: str | None
    facts: BuildFacts
    problem: str | None = None
    missing: bool = False


@dataclass(slots=True)
class _Asking:
    """A build being asked; ``answer`` stays None when the one who asked was cancelled."""

    done: anyio.Event = field(default_factory=anyio.Event)
    answer: tuple[BuildFacts, str | None] | None = None


class BuildInspector:
    """Inspects candidates; takes up to ``limit_seconds``, so never part of a decision.

    Args:
        adapter_for: knows each engine's commands and how to read them.
        fingerprints: hashes builds.
        own_env: the supervisor's own environment, from which builds get the minimum.
        bus: told of every new finding.
        cache: remembers answers over restarts; None: in memory only.
        host: a mark of devices and drivers; an answer counts only for the mark that it was given under.
        run: runs a short command.
    """

    def __init__(
        self,
        adapter_for: Callable[[EngineKind], EngineAdapter],
        fingerprints: Fingerprints,
        own_env: Mapping[str, str],
        bus: EventBus,
        *,
        cache: JsonFile | None = None,
        host: str = "",
        run: CommandRunner = run_command,
        limit_seconds: float = 20.0,
    ) -> None:
        self._adapter_for = adapter_for
        self._fingerprints = fingerprints
        self._own_env = own_env
        self._bus = bus
        self._cache = Cache(cache, bus, _KEEP_BUILDS)
        self._host = host
        self._run = run
        self._limit_seconds = limit_seconds
        self._known: dict[str, BuildFacts] = {}
        self._asking: dict[str, _Asking] = {}
        self._published: dict[tuple[EngineKind, str], FoundBuild] = {}

    async def fingerprint(self, candidate: Candidate) -> str | None:
        """The hash of its bytes now, cheap while no file has changed; None when they can't be read."""
        try:
            return await self._fingerprints.of(candidate.executable, self._files(candidate))
        except PlanError:
            return None

    async def inspect(self, candidate: Candidate) -> FoundBuild:
        """What is known of a candidate, asked for if need be. Never raises for a bad build: see ``problem``."""
        problem, missing = _startable(candidate.executable)
        fingerprint, facts = None, UNKNOWN
        if not missing:
            try:
                fingerprint = await self._fingerprints.of(candidate.executable, self._files(candidate))
            except PlanError as error:
                problem = problem or error.message
        if problem is None and fingerprint is not None:
            facts, words = await self._facts(candidate, fingerprint)
            problem = f"{candidate.executable} can't be used: {words}." if words else None
        build = FoundBuild(
            candidate.name,
            candidate.engine,
            candidate.executable,
            candidate.env,
            candidate.source,
            fingerprint,
            facts,
            problem,
            missing,
        )
        self._publish(build)
        return build

    def _files(self, candidate: Candidate) -> tuple[Path, ...]:
        return self._adapter_for(candidate.engine).build_files(candidate.executable)

    async def _facts(self, candidate: Candidate, fingerprint: str) -> tuple[BuildFacts, str | None]:
        """Remembered, or from someone who is asking already, or asked for now; with the problem found, if any."""
        adapter = self._adapter_for(candidate.engine)
        own = {**adapter.environment, **candidate.env}
        env = child_environment(self._own_env, adapter.pass_through_environment, own)
        key = _key(fingerprint, env, self._host)
        await self._cache.load()
        while True:
            known = self._known.get(key) or facts_from_document(self._cache.get(key))
            if known is not None:
                return known, None
            if (other := self._asking.get(key)) is None:
                break
            await other.done.wait()
            if other.answer is not None:
                return other.answer
        asking = self._asking[key] = _Asking()
        try:
            asking.answer = await self._ask(key, candidate.executable, env, adapter)
            return asking.answer
        finally:
            del self._asking[key]
            asking.done.set()

    async def _ask(
        self, key: str, executable: Path, env: Mapping[str, str], adapter: EngineAdapter
    ) -> tuple[BuildFacts, str | None]:
        outputs: dict[str, Output] = {}

        async def ask(topic: str, args: tuple[str, ...]) -> None:
            try:
                outputs[topic] = await self._run(SpawnSpec((str(executable), *args), env), self._limit_seconds)
            except SpawnFailed as failure:
                outputs[topic] = Output(Exit(126, None), "", failure.text)

        async with anyio.create_task_group() as group:
            group.start_soon(ask, "version", adapter.version_args)
            group.start_soon(ask, "help", adapter.help_args)
            if adapter.devices_args:
                group.start_soon(ask, "devices", adapter.devices_args)
        facts = BuildFacts(
            version=adapter.parse_version(_for_adapter(outputs["version"])),
            flags=adapter.parse_flags(_for_adapter(outputs["help"])),
            devices=adapter.parse_devices(_for_adapter(outputs["devices"])) if "devices" in outputs else None,
        )
        answers = [outputs[topic] for topic in ("version", "help", "devices") if topic in outputs]
        problem = find_problem(answers, self._limit_seconds)
        if problem is None and all_succeeded(answers):
            self._known[key] = without_free(facts)
            await self._cache.put({key: facts_to_document(facts)})
        return facts, problem

    def _publish(self, build: FoundBuild) -> None:
        last = self._published.get((build.engine, build.name))
        if last is not None and (last.fingerprint, last.problem) == (build.fingerprint, build.problem):
            return
        self._published[build.engine, build.name] = build
        if build.problem is not None or build.fingerprint is None:
            reason = build.problem or "its files can't be read"
            self._bus.publish(BuildUnusable(build.name, build.engine, str(build.executable), reason))
            return
        devices = None if build.facts.devices is None else tuple(device.id for device in build.facts.devices)
        self._bus.publish(
            BuildFound(build.name, build.engine, str(build.executable), build.facts.version, build.fingerprint, devices)
        )


def _startable(executable: Path) -> tuple[str | None, bool]:
    """What speaks against starting it, and whether it isn't there at all."""
    try:
        check_executable(executable)
    except SpawnFailed as failure:
        return failure.message, not executable.is_file()
    return None, False


def _key(fingerprint: str, env: Mapping[str, str], host: str) -> str:
    # A hash: the environment may hold secrets.
    return hashlib.sha256(orjson.dumps([fingerprint, sorted(env.items()), host])).hexdigest()


def _for_adapter(output: Output) -> CommandOutput:
    ended = output.exit
    code = None if ended is None else ended.code if ended.signal is None else -ended.signal
    return CommandOutput(code, output.stdout, output.stderr)
