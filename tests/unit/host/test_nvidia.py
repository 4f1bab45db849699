"""NVIDIA cards, on recorded answers of NVML."""

from __future__ import annotations

import threading

import pytest

from supervisor.host.nvidia import NvidiaWatch, read_nvml
from tests.fakes.clock import HandClock
from tests.fakes.nvml import RecordedNvml

MIB = 2**20


def test_a_card_tells_what_is_used_reserved_and_by_whom() -> None:
    """Version 2 of the memory figures keeps what the driver reserves apart."""
    (card,) = read_nvml(RecordedNvml("h200")).cards

    assert (card.pool, card.name, card.total, card.used) == (
        "gpu-0000:01:00.0",
        "NVIDIA H200",
        143771 * MIB,
        41000 * MIB,
    )
    assert (card.reserved, card.free) == (700 * MIB, (143771 - 41000 - 700) * MIB)
    assert card.by_process == {4242: 40000 * MIB, 77: 900 * MIB}


def test_cards_come_in_the_order_of_their_addresses() -> None:
    """Whatever order NVML has."""
    assert [card.pool for card in read_nvml(RecordedNvml("two-3090")).cards] == ["gpu-0000:05:00.0", "gpu-0000:0a:00.0"]


def test_an_old_driver_is_understood() -> None:
    """Without version 2 nothing is reserved; memory by process that is not told is not known, not 0."""
    (card,) = read_nvml(RecordedNvml("old-driver")).cards

    assert (card.name, card.used, card.reserved, card.by_process) == ("NVIDIA GeForce GTX 1080", 1100 * MIB, 0, None)


def test_a_card_without_memory_of_its_own_has_no_size() -> None:
    """It shares the host's: not known, not 0."""
    (card,) = read_nvml(RecordedNvml("gb10")).cards
    assert (card.total, card.used, card.free) == (None, None, None)


@pytest.mark.parametrize(
    ("recording", "cards", "problem"),
    [("one-lost", 1, "card 1: GpuIsLost"), ("init-unknown", 0, "Unknown"), ("no-driver", 0, None)],
)
def test_what_fails_hides_nothing_else(recording: str, cards: int, problem: str | None) -> None:
    """A lost card leaves the others; a machine without a driver has no cards and no problem."""
    nvml = RecordedNvml(recording)
    reading = read_nvml(nvml)

    assert len(reading.cards) == cards
    assert reading.problem is None if problem is None else problem in (reading.problem or "")
    assert nvml.starts == 0


def test_a_machine_without_the_module_has_no_cards() -> None:
    """The package may be left out."""
    assert read_nvml(None).cards == ()
    watch = NvidiaWatch(lambda: None)
    assert watch.read(deadline=30) == read_nvml(None)
    watch.close()


def test_an_answer_is_used_for_a_second() -> None:
    """Decisions that follow each other ask once; a new one asks again."""
    nvml, clock = RecordedNvml("h200"), HandClock()
    watch = NvidiaWatch(lambda: nvml, clock.monotonic)
    first = watch.read(deadline=30)
    nvml.use("two-3090")
    assert watch.read(deadline=30) is first
    clock.advance(1.5)
    assert len(watch.read(deadline=30).cards) == 2
    assert nvml.asked == 2
    watch.close()
    assert nvml.starts == 0


def test_a_driver_that_hangs_is_not_waited_for() -> None:
    """The first asker gets a reason, later ones the last answer; no second call is begun beside the one that hangs."""
    nvml, clock = RecordedNvml("h200"), HandClock()
    watch = NvidiaWatch(lambda: nvml, clock.monotonic)
    assert watch.read(deadline=30).problem is None
    nvml.gate = threading.Event()
    clock.advance(60)

    late = [watch.read(deadline=0.05) for _ in range(3)]

    assert [len(reading.cards) for reading in late] == [1, 1, 1]
    assert "60 s old" in (late[0].problem or "")
    assert nvml.asked == 2
    nvml.gate.set()
    assert watch.read(deadline=30).problem is None
    watch.close()


def test_a_first_question_without_an_answer_says_so() -> None:
    """It is not the same as a machine without cards."""
    nvml = RecordedNvml("h200")
    nvml.gate = threading.Event()
    watch = NvidiaWatch(lambda: nvml)

    assert "did not answer" in (watch.read(deadline=0.05).problem or "")

    nvml.gate.set()
    watch.close()
