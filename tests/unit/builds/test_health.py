"""The owner of what is known of builds: keys, pins, the file, and what is told."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from engines.contract import Blame, BuildFacts, EngineKind, FailureKind, RunsHere, Verdict
from supervisor.builds.events import BuildHealthChanged, BuildPinned
from supervisor.builds.health import SCHEMA, BuildBook
from supervisor.builds.inspect import FoundBuild
from supervisor.builds.standing import BuildHealth, LaunchBegan, LaunchEnded, ModelMark, OperatorClear, QuarantineLimits
from supervisor.events import EventBus, StateFileUnusable
from supervisor.storage import JsonFile
from tests.fakes.clock import HandClock

M = ModelMark("m", "1")
SIGILL = Verdict(FailureKind.INCOMPATIBLE_CPU, Blame.BUILD, RunsHere.NO, "no such instruction")
NO_DRIVER = Verdict(FailureKind.INCOMPATIBLE_DRIVER, Blame.HOST, RunsHere.NO, "no driver")
CRASH = Verdict(FailureKind.CRASH, Blame.BUILD, RunsHere.YES, "it crashed")
LLAMA = EngineKind.LLAMA_CPP


def build(name: str = "b", fingerprint: str | None = "f", **env: str) -> FoundBuild:
    """A build with these bytes."""
    return FoundBuild(name, LLAMA, Path("/x"), env, "config", fingerprint, BuildFacts(None, None, ()))


class Desk:
    """Books over one file, on a machine whose driver can be changed."""

    def __init__(self, folder: Path) -> None:
        self.file = JsonFile(folder / "quarantine.json", SCHEMA)
        self.clock = HandClock()
        self.bus = EventBus(self.clock)
        self.driver = "nvidia 1"

    async def book(self, **more: Any) -> BuildBook:
        """A book as a new daemon opens it."""
        limits = QuarantineLimits(strikes=2)
        book = BuildBook(self.file, self.clock, self.bus, lambda: limits, lambda: self.driver, **more)
        await book.load()
        return book

    def told(self, kind: type) -> list[Any]:
        """Published events of one kind."""
        return [record.event for record in self.bus.since(0) if isinstance(record.event, kind)]


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    """An empty one."""
    return Desk(tmp_path)


def ended(desk: Desk, verdict: Verdict) -> LaunchEnded:
    """A launch's end, now."""
    return LaunchEnded(desk.clock.wall(), M, verdict, was_ready=True, log=("last words",))


async def test_it_survives_a_restart(desk: Desk) -> None:
    """Strikes with their log, quarantines and pins are there for the next daemon; a trial that ran is not."""
    book = await desk.book()
    book.happened(build(), ended(desk, SIGILL))
    book.happened(build("suspect", "g"), ended(desk, CRASH))
    book.pin(LLAMA, "suspect")
    await book.save()
    again = await desk.book()
    assert again.standing(build()) == book.standing(build())
    assert again.standing(build("suspect", "g")).strikes[0].log == ("last words",)
    assert again.pinned(LLAMA) == "suspect"
    assert desk.told(StateFileUnusable) == []


async def test_a_trial_ends_with_the_daemon(desk: Desk) -> None:
    """A launch that was on trial when the daemon was killed does not block the next trial."""
    book = await desk.book()
    for _ in range(2):
        book.happened(build(), ended(desk, CRASH))
    desk.clock.advance(QuarantineLimits().cooldown)
    assert book.happened(build(), LaunchBegan(desk.clock.wall(), M)).trial == "m"
    await book.save()
    standing = (await desk.book()).standing(build())
    assert (standing.health, standing.trial) == (BuildHealth.PROBATION, None)


async def test_new_bytes_begin_anew_whatever_else_stays(desk: Desk) -> None:
    """Bytes and variables make a build what it is; its name does not."""
    book = await desk.book()
    book.happened(build(), ended(desk, SIGILL))
    assert book.standing(build("renamed")).health is BuildHealth.QUARANTINED
    assert book.standing(build(fingerprint="new")).health is BuildHealth.USABLE
    assert book.standing(build(LD_LIBRARY_PATH="/lib")).health is BuildHealth.USABLE


async def test_another_driver_clears_what_was_the_hosts_fault_and_nothing_else(desk: Desk) -> None:
    """A processor does not learn an instruction from a driver."""
    book = await desk.book()
    book.happened(build("cpu", "c"), ended(desk, SIGILL))
    book.happened(build("gpu", "g"), ended(desk, NO_DRIVER))
    desk.driver = "nvidia 2"
    assert book.standing(build("cpu", "c")).health is BuildHealth.QUARANTINED
    assert book.standing(build("gpu", "g")).health is BuildHealth.USABLE
    book.happened(build("cpu", "c"), OperatorClear(desk.clock.wall()))
    desk.driver = "nvidia 1"
    assert book.standing(build("cpu", "c")).health is BuildHealth.USABLE, "cleared under every driver"
    assert book.standing(build("gpu", "g")).health is BuildHealth.QUARANTINED


async def test_other_devices_are_another_key(desk: Desk) -> None:
    """What a build listed when it failed is a part of it."""
    book = await desk.book()
    book.happened(build(), ended(desk, NO_DRIVER))
    unsure = replace(build(), facts=BuildFacts(None, None, None))
    assert book.standing(unsure).health is BuildHealth.USABLE


async def test_every_change_is_told(desk: Desk) -> None:
    """With the old health, the new one and the reason; the same again is not."""
    book = await desk.book()
    for _ in range(3):
        book.happened(build(), ended(desk, CRASH))
    book.happened(build(), OperatorClear(desk.clock.wall()))
    changes = [(event.old, event.new) for event in desk.told(BuildHealthChanged)]
    assert changes[0] == ("usable", "suspect")
    assert changes[1] == ("suspect", "quarantined")
    assert changes[-1] == ("quarantined", "usable")
    book.pin(LLAMA, "b")
    book.pin(LLAMA, "b")
    book.pin(LLAMA, None)
    assert [event.build for event in desk.told(BuildPinned)] == ["b", None]


async def test_a_build_that_cannot_be_read_has_no_standing(desk: Desk) -> None:
    """Without a hash there is nothing to hold it against."""
    book = await desk.book()
    assert book.happened(build(fingerprint=None), ended(desk, SIGILL)).health is BuildHealth.USABLE


async def test_a_full_disk_is_told_once_and_stops_nothing(desk: Desk) -> None:
    """What is known goes on to hold in memory."""
    book = await desk.book()
    desk.file.path = desk.file.path / "no-folder"
    for _ in range(2):
        book.happened(build(), ended(desk, CRASH))
        await book.save()
    assert len(desk.told(StateFileUnusable)) == 1
    assert book.standing(build()).health is BuildHealth.QUARANTINED


async def test_another_ones_file_is_read_and_not_touched(desk: Desk) -> None:
    """A command that runs beside a daemon neither writes the file nor puts a corrupt one aside."""
    desk.file.path.write_text("{")
    book = await desk.book(read_only=True)
    book.happened(build(), ended(desk, SIGILL))
    await book.save()
    assert desk.file.path.read_text() == "{"
