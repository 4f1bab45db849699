"""The shelf over real executables."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from engines.contract import EngineKind
from engines.registry import adapter_for
from supervisor.builds.catalog import find_builds
from supervisor.builds.fingerprint import Fingerprints
from supervisor.builds.inspect import BuildInspector
from supervisor.builds.shelf import BuildShelf
from supervisor.config.schema import BuildConfig, EngineConfig
from supervisor.events import EventBus
from tests.fakes.clock import HandClock
from tests.support.fake_engine import FakeBuild, fake_build

LLAMA = EngineKind.LLAMA_CPP


class Bench:
    """A shelf over some fakes, on a clock that is turned by hand."""

    def __init__(self, *builds: FakeBuild) -> None:
        self.clock = HandClock()
        bus = EventBus(self.clock)
        config = EngineConfig(builds=tuple(BuildConfig(name=b.name, executable=b.executable) for b in builds))
        inspector = BuildInspector(adapter_for, Fingerprints(None, bus), dict(os.environ), bus, limit_seconds=0.5)
        self.shelf = BuildShelf(
            {LLAMA: lambda: find_builds(config, adapter_for(LLAMA), os.environ)}, inspector, self.clock
        )


async def test_builds_stand_in_the_order_of_the_config(tmp_path: Path) -> None:
    """A broken build keeps its place, with its problem."""
    bench = Bench(fake_build(tmp_path, "bad", probe_exit=3), fake_build(tmp_path, "good"))
    await bench.shelf.look_at_all()
    assert [(build.name, build.problem is None) for build in bench.shelf.builds()] == [("bad", False), ("good", True)]


async def test_a_build_that_hangs_costs_its_time_once(tmp_path: Path) -> None:
    """Prevents a broken build from delaying every launch of its neighbours by the inspection's time limit."""
    bench = Bench(fake_build(tmp_path, "stuck", probe_hang=True))
    [first] = await bench.shelf.look(LLAMA)
    assert first.problem
    [second] = await bench.shelf.look(LLAMA)
    assert second is first
    bench.clock.advance(601)
    [third] = await bench.shelf.look(LLAMA)
    assert third is not first


@pytest.mark.parametrize("change", ["same bytes", "new bytes"])
async def test_new_bytes_are_asked_at_once(tmp_path: Path, change: str) -> None:
    """A build that was replaced is a new build: its old problem says nothing."""
    bench = Bench(fake_build(tmp_path, "b", probe_exit=3))
    [broken] = await bench.shelf.look(LLAMA)
    assert broken.problem
    if change == "new bytes":
        fake_build(tmp_path, "b")
    [again] = await bench.shelf.look(LLAMA)
    assert (again.problem is None) is (change == "new bytes")
