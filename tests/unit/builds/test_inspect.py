"""Inspection: what is asked, what is remembered, what a bad build says."""

from __future__ import annotations

import signal
from dataclasses import replace
from pathlib import Path

import anyio
import pytest
from anyio.lowlevel import checkpoint

from engines.contract import EngineKind
from engines.registry import adapter_for
from supervisor.builds.catalog import Candidate
from supervisor.builds.fingerprint import Fingerprints
from supervisor.builds.inspect import SCHEMA, BuildInspector
from supervisor.events import BuildFound, BuildUnusable, EventBus
from supervisor.processes.child_process import Exit
from supervisor.processes.command import Output
from supervisor.processes.opening import SpawnSpec
from supervisor.storage import JsonFile
from tests.fakes.clock import HandClock

_GOOD = {
    "--version": Output(Exit(0, None), "", "version: 4242 (abc)\n"),
    "--help": Output(Exit(0, None), "-t,    --threads N    threads\n--offline    no network\n", ""),
    "--list-devices": Output(
        Exit(0, None), "Available devices:\n  CUDA0: NVIDIA H200 (143771 MiB, 143000 MiB free)\n", ""
    ),
}


class Runner:
    """Answers commands from a table; counts them, and can hold them back."""

    def __init__(self, **answers: Output) -> None:
        self.answers = _GOOD | {f"--{name.replace('_', '-')}": answer for name, answer in answers.items()}
        self.asked: list[SpawnSpec] = []
        self.open = anyio.Event()
        self.open.set()

    async def __call__(self, spec: SpawnSpec, limit_seconds: float) -> Output:
        """One command."""
        self.asked.append(spec)
        await self.open.wait()
        return self.answers[spec.argv[1]]


@pytest.fixture
def candidate(tmp_path: Path) -> Candidate:
    """A candidate whose file can be started."""
    path = tmp_path / "llama-server"
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    return Candidate("mine", EngineKind.LLAMA_CPP, path, {"GGML_X": "1"}, "config")


@pytest.fixture
def bus() -> EventBus:
    """Where findings are told."""
    return EventBus(HandClock())


def _inspector(bus: EventBus, run: Runner, cache: Path | None = None, host: str = "h") -> BuildInspector:
    env = {"PATH": "/bin", "SHELL": "/bin/sh", "CUDA_VISIBLE_DEVICES": "0"}
    file = None if cache is None else JsonFile(cache, SCHEMA)
    return BuildInspector(adapter_for, Fingerprints(None, bus), env, bus, cache=file, host=host, run=run)


async def test_a_build_is_asked_once_with_its_own_environment(candidate: Candidate, bus: EventBus) -> None:
    """Version, flags and devices come from three commands; a second look asks nothing, and knows no free memory."""
    run = Runner()
    inspector = _inspector(bus, run)
    build = await inspector.inspect(candidate)
    assert build.problem is None
    assert (build.name, build.executable, build.env) == ("mine", candidate.executable, {"GGML_X": "1"})
    assert build.facts.version == "4242 (abc)"
    assert build.facts.flags == frozenset({"-t", "--threads", "--offline"})
    assert build.facts.devices is not None
    assert build.facts.devices[0].free_bytes == 143000 * 2**20
    env = {"PATH": "/bin", "CUDA_VISIBLE_DEVICES": "0", "CUDA_DEVICE_ORDER": "PCI_BUS_ID", "GGML_X": "1"}
    assert [spec.env for spec in run.asked] == [env] * 3
    again = await inspector.inspect(candidate)
    assert len(run.asked) == 3
    assert again.facts.devices is not None
    assert again.facts.devices[0] == replace(build.facts.devices[0], free_bytes=None)
    assert [type(record.event) for record in bus.since(0)] == [BuildFound]


async def test_an_answer_survives_a_restart_until_bytes_environment_or_host_change(
    candidate: Candidate, bus: EventBus, tmp_path: Path
) -> None:
    """The cache is keyed by what an answer depends on."""
    cache = tmp_path / "builds.json"
    await _inspector(bus, Runner(), cache).inspect(candidate)
    same, other_env, other_host, other_bytes = Runner(), Runner(), Runner(), Runner()
    build = await _inspector(bus, same, cache).inspect(candidate)
    assert build.facts.flags == frozenset({"-t", "--threads", "--offline"})
    await _inspector(bus, other_env, cache).inspect(replace(candidate, env={"GGML_X": "2"}))
    await _inspector(bus, other_host, cache, host="other").inspect(candidate)
    candidate.executable.write_text("#!/bin/sh\n# newer\n")
    await _inspector(bus, other_bytes, cache).inspect(candidate)
    assert [len(run.asked) for run in (same, other_env, other_host, other_bytes)] == [0, 3, 3, 3]


@pytest.mark.parametrize(
    "failure", [Output(Exit(1, None), "", "no driver"), Output(None, "", ""), Output(Exit(None, 11), "", "")]
)
async def test_a_failed_command_is_asked_again_and_is_no_problem_alone(
    candidate: Candidate, bus: EventBus, failure: Output, tmp_path: Path
) -> None:
    """Prevents a driver that was not ready at boot from hiding the devices for ever."""
    run = Runner(list_devices=failure)
    inspector = _inspector(bus, run, tmp_path / "builds.json")
    build = await inspector.inspect(candidate)
    assert (build.problem, build.facts.devices) == (None, None)
    assert build.facts.version is not None
    run.answers = _GOOD
    assert (await inspector.inspect(candidate)).facts.devices is not None


async def test_an_empty_help_means_that_flags_are_unknown(candidate: Candidate, bus: EventBus) -> None:
    """Unknown is None: everything is passed."""
    run = Runner(help=Output(Exit(0, None), "", ""))
    assert (await _inspector(bus, run).inspect(candidate)).facts.flags is None


@pytest.mark.parametrize(
    ("output", "words"),
    [
        (Output(Exit(None, signal.SIGILL), "", ""), "SIGILL"),
        (Output(Exit(127, None), "", "a\nb\nlibcuda.so.1: cannot open shared object file"), "libcuda.so.1"),
        (Output(Exit(126, None), "", "Text file busy"), "busy"),
        (Output(None, "", "waiting for device"), "within 20 s: waiting for device"),
        (Output(Exit(1, None), "usage: something else", ""), "exit code 1: usage: something else"),
    ],
)
async def test_a_build_that_cannot_run_says_why(
    candidate: Candidate, bus: EventBus, output: Output, words: str
) -> None:
    """The problem names the reason with the last lines, is told once, and is not remembered."""
    run = Runner(version=output, help=output, list_devices=output)
    inspector = _inspector(bus, run)
    build = await inspector.inspect(candidate)
    assert words in str(build.problem)
    assert not build.missing
    await inspector.inspect(candidate)
    assert len(run.asked) == 6
    assert [type(record.event) for record in bus.since(0)] == [BuildUnusable]


async def test_a_missing_executable_is_not_run(bus: EventBus, candidate: Candidate, tmp_path: Path) -> None:
    """It is told, marked as missing, and found by itself once it is there."""
    run = Runner()
    inspector = _inspector(bus, run)
    away = candidate.executable.rename(tmp_path / "away")
    build = await inspector.inspect(candidate)
    assert (build.missing, build.fingerprint, run.asked) == (True, None, [])
    assert "no such file" in str(build.problem)
    away.rename(candidate.executable)
    assert (await inspector.inspect(candidate)).problem is None


async def test_concurrent_inspections_share_one_run(candidate: Candidate, bus: EventBus) -> None:
    """Ten requests at the start cost three commands."""
    run = Runner()
    run.open = anyio.Event()
    inspector = _inspector(bus, run)
    problems: list[str | None] = []

    async def inspect() -> None:
        problems.append((await inspector.inspect(candidate)).problem)

    async with anyio.create_task_group() as group:
        for _ in range(10):
            group.start_soon(inspect)
        while len(run.asked) < 3:
            await checkpoint()
        run.open.set()
    assert problems == [None] * 10
    assert len(run.asked) == 3


async def test_a_waiter_takes_over_when_the_one_who_asked_is_cancelled(candidate: Candidate, bus: EventBus) -> None:
    """Cancellation of one caller costs the others nothing but time."""
    run = Runner()
    run.open = anyio.Event()
    inspector = _inspector(bus, run)
    first = anyio.CancelScope()

    async def give_up() -> None:
        with first:
            await inspector.inspect(candidate)

    async with anyio.create_task_group() as group:
        group.start_soon(give_up)
        while len(run.asked) < 3:
            await checkpoint()
        group.start_soon(inspector.inspect, candidate)
        await anyio.wait_all_tasks_blocked()
        first.cancel()
        while len(run.asked) < 6:
            await checkpoint()
        run.open.set()
    assert (await inspector.inspect(candidate)).problem is None
    assert len(run.asked) == 6


@pytest.mark.parametrize("entry", ["3", "{}", '{"version": 1, "flags": 2, "devices": [{"x": 1}]}'])
async def test_a_damaged_entry_is_asked_again(candidate: Candidate, bus: EventBus, tmp_path: Path, entry: str) -> None:
    """Whatever stands in the state file never stops an inspection."""
    cache = tmp_path / "builds.json"
    await _inspector(bus, Runner(), cache).inspect(candidate)
    document, _reason = JsonFile(cache, SCHEMA).read()
    assert document is not None
    (key,) = document["entries"]
    cache.write_text(f'{{"schema": {SCHEMA}, "entries": {{"{key}": {entry}}}}}')
    run = Runner()
    assert (await _inspector(bus, run, cache).inspect(candidate)).facts.version == "4242 (abc)"
    assert len(run.asked) == 3
