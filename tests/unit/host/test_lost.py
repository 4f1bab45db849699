"""A device that was there and is gone is noticed, and one that nobody can speak of is not."""

from __future__ import annotations

from pathlib import Path

from engines.contract import DeviceListing
from supervisor.host.boot import boot_mark
from supervisor.host.cards import CardsReading
from supervisor.host.devices import Placed, place_devices
from supervisor.host.files import HostFiles
from supervisor.host.lost import LostDevice, SeenDevice, lost_of, seen_in
from supervisor.host.nvidia import read_nvml
from tests.fakes.host_tree import lay_out
from tests.fakes.nvml import RecordedNvml

MIB = 2**20
LISTING = (
    DeviceListing("CUDA0", "NVIDIA GeForce RTX 4090", "gpu", 24111 * MIB, None),
    DeviceListing("CUDA1", "NVIDIA GeForce RTX 3060", "gpu", 11909 * MIB, None),
    DeviceListing("Vulkan0", "llvmpipe", "gpu", 2048 * MIB, None, software=True),
)


def _placed(recording: str) -> tuple[tuple[Placed, ...], CardsReading]:
    cards = read_nvml(RecordedNvml(recording))
    return place_devices(LISTING, cards.cards), cards


SEEN = seen_in(_placed("mixed")[0])


def test_cards_are_remembered_and_software_is_not() -> None:
    """With the memory behind them."""
    assert {
        "CUDA0": SeenDevice("NVIDIA GeForce RTX 4090", "gpu-0000:01:00.0", by_system=True),
        "CUDA1": SeenDevice("NVIDIA GeForce RTX 3060", "gpu-0000:02:00.0", by_system=True),
    } == SEEN


def test_nothing_is_lost_while_all_is_there() -> None:
    """The same reading again."""
    assert lost_of(SEEN, *_placed("mixed")) == ()


def test_a_card_that_fell_off_the_bus_is_lost() -> None:
    """The build's listing, which was taken earlier, still has it."""
    assert lost_of(SEEN, *_placed("one-lost")) == (
        LostDevice("CUDA1", "NVIDIA GeForce RTX 3060", "gpu-0000:02:00.0", "NVML, card 1: GpuIsLost"),
    )


def test_a_container_whose_driver_no_longer_answers_has_lost_all() -> None:
    """Initialising fails with an unknown error; the same for a driver that is gone."""
    for recording in ("init-unknown", "no-driver"):
        assert [device.device for device in lost_of(SEEN, *_placed(recording))] == ["CUDA0", "CUDA1"]


def test_no_answer_is_no_loss() -> None:
    """A driver that is slow has lost nothing, and neither has a machine that nobody can ask."""
    assert lost_of(SEEN, _placed("mixed")[0], CardsReading(problem="NVML did not answer within 1 s")) == ()
    assert lost_of(SEEN, None, read_nvml(None)) == ()


def test_a_listing_that_lacks_a_device_says_so() -> None:
    """Of cards that only the build knew; a listing that can't be trusted says nothing."""
    seen = {"Vulkan1": SeenDevice("Arc B580", "gpu-arc-b580", by_system=False)}
    assert [device.why for device in lost_of(seen, (), CardsReading())] == ["the build no longer lists it"]
    assert lost_of(seen, None, CardsReading()) == ()


def test_the_mark_of_a_start(tmp_path: Path) -> None:
    """The kernel's own id, else when it was started, else not known."""
    assert boot_mark(HostFiles(tmp_path)) is None
    lay_out(tmp_path, {"/proc/stat": "cpu 1 2\nbtime 1764500000\nprocesses 4\n"})
    assert boot_mark(HostFiles(tmp_path)) == "btime 1764500000"
    lay_out(tmp_path, {"/proc/sys/kernel/random/boot_id": "5c1b-07\n"})
    assert boot_mark(HostFiles(tmp_path)) == "5c1b-07"
