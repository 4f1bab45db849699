"""Which device is which memory, and what a launch may take of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from engines.contract import DeviceListing
from supervisor.host.amd import read_amd
from supervisor.host.apple import SIZE_KEY, WIRED_KEY, wired_bound
from supervisor.host.cards import Card, pci_pool
from supervisor.host.device_rooms import DeviceWish, DeviceWishes, bounded, default_reserve, rooms_of
from supervisor.host.devices import place_devices
from supervisor.host.files import HostFiles
from supervisor.host.nvidia import read_nvml
from supervisor.host.pools import PoolRoom
from tests.fakes.host_tree import lay_out
from tests.fakes.nvml import RecordedNvml

MIB, GIB = 2**20, 2**30
HOST = PoolRoom("host", 30 * GIB, 32 * GIB, "30.0 GiB")
NO_WISH = DeviceWishes()


def device(name: str, card: str, mib: int, *, software: bool = False, usable: bool = True) -> DeviceListing:
    """A row of a listing."""
    return DeviceListing(name, card, "gpu", mib * MIB, None, usable=usable, software=software)


def pools(listing: list[DeviceListing], cards: tuple[Card, ...], told: dict[str, str] | None = None) -> dict[str, str]:
    """Pool by device."""
    return {row.device.id: row.pool for row in place_devices(listing, cards, told)}


def cards_of(recording: str) -> tuple[Card, ...]:
    """What NVML told once."""
    return read_nvml(RecordedNvml(recording)).cards


def test_addresses_are_one_in_all_spellings() -> None:
    """NVML writes the domain with eight digits, logs and sysfs with four."""
    assert pci_pool("00000000:0A:00.0") == pci_pool("0000:0a:00.0") == "gpu-0000:0a:00.0"


def test_name_and_size_find_the_card() -> None:
    """Whatever the order of the listing; CUDA's total is a little less than the driver's."""
    listing = [device("CUDA0", "NVIDIA GeForce RTX 3060", 11909), device("CUDA1", "NVIDIA GeForce RTX 4090", 24111)]
    assert pools(listing, cards_of("mixed")) == {"CUDA0": "gpu-0000:02:00.0", "CUDA1": "gpu-0000:01:00.0"}


def test_cards_of_one_kind_go_by_address_where_the_build_does() -> None:
    """CUDA is asked to number by PCI address."""
    listing = [device(f"CUDA{index}", "NVIDIA GeForce RTX 3090", 24124) for index in range(2)]
    assert pools(listing, cards_of("two-3090")) == {"CUDA0": "gpu-0000:05:00.0", "CUDA1": "gpu-0000:0a:00.0"}


def test_what_could_be_either_card_is_one_pool_until_the_log_tells() -> None:
    """Vulkan numbers as it likes, and one visible card of two can be either."""
    both = "gpu-0000:05:00.0+gpu-0000:0a:00.0"
    vulkan = [device(f"Vulkan{index}", "NVIDIA GeForce RTX 3090", 24822) for index in range(2)]
    assert pools(vulkan, cards_of("two-3090")) == {"Vulkan0": both, "Vulkan1": both}
    assert pools([device("CUDA0", "NVIDIA GeForce RTX 3090", 24124)], cards_of("two-3090")) == {"CUDA0": both}

    told = {"Vulkan0": "0000:0a:00.0", "Vulkan1": "0000:05:00.0"}
    assert pools(vulkan, cards_of("two-3090"), told) == {"Vulkan0": "gpu-0000:0a:00.0", "Vulkan1": "gpu-0000:05:00.0"}


def test_two_names_of_one_card_are_one_pool() -> None:
    """A build with two back ends lists a card twice; the same without any word of the system."""
    listing = [device("CUDA0", "NVIDIA H200", 143167), device("Vulkan0", "NVIDIA H200", 143771)]
    assert set(pools(listing, cards_of("h200")).values()) == {"gpu-0000:01:00.0"}
    assert set(pools(listing, ()).values()) == {"gpu-nvidia-h200"}
    twins = [device(f"CUDA{index}", "NVIDIA H200", 143167) for index in range(2)]
    assert pools(twins, ()) == {"CUDA0": "gpu-nvidia-h200", "CUDA1": "gpu-nvidia-h200-2"}


def test_software_and_shared_memory_are_the_host_s() -> None:
    """llvmpipe, Apple, graphics inside a processor, and cards that know no memory; pseudo-devices are nothing."""
    listing = [
        device("Vulkan0", "llvmpipe (LLVM 15.0.6, 256 bits)", 2048, software=True),
        device("MTL0", "Apple M3 Max", 98304),
        device("SYCL0", "Intel(R) UHD Graphics 770", 24000),
        device("Vulkan1", "Intel(R) Arc(TM) A770 Graphics (DG2)", 16256),
        device("BLAS", "OpenBLAS", 0, usable=False),
    ]
    found = pools(listing, ())
    assert [found[name] for name in ("Vulkan0", "MTL0", "SYCL0")] == ["host", "host", "host"]
    assert found["Vulkan1"].startswith("gpu-intel-r-arc-tm-a770")
    assert "BLAS" not in found
    assert pools([device("CUDA0", "NVIDIA GB10", 122500)], cards_of("gb10")) == {"CUDA0": "host"}


def _amd(root: Path, **figures: int) -> tuple[Card, ...]:
    folder = "/sys/class/drm/card1/device"
    files = {
        f"{folder}/vendor": "0x1002\n",
        f"{folder}/uevent": "DRIVER=amdgpu\nPCI_SLOT_NAME=0000:03:00.0\n",
        "/sys/class/drm/card0/device/vendor": "0x8086\n",
        **{f"{folder}/mem_info_{name}": f"{size * MIB}\n" for name, size in figures.items()},
    }
    return read_amd(HostFiles(lay_out(root, files)))


def test_an_amd_card_is_read_from_sysfs(tmp_path: Path) -> None:
    """Its address, its size and what is used; another vendor's card is passed over."""
    cards = _amd(tmp_path, vram_total=24560, vram_used=1200, gtt_total=16000)

    assert [(card.pool, card.total, card.used) for card in cards] == [("gpu-0000:03:00.0", 24560 * MIB, 1200 * MIB)]
    assert pools([device("ROCm0", "AMD Radeon RX 7900 XTX", 24560)], cards) == {"ROCm0": "gpu-0000:03:00.0"}


def test_an_amd_processor_s_graphics_are_the_host_s_memory(tmp_path: Path) -> None:
    """A build that counts the host memory in shows more than the card's own 512 MiB."""
    cards = _amd(tmp_path, vram_total=512, vram_used=100, gtt_total=31000)
    assert pools([device("Vulkan0", "AMD Radeon 780M (RADV PHOENIX)", 31512)], cards) == {"Vulkan0": "host"}


@pytest.mark.parametrize(
    ("gib", "wired_mib", "expected"),
    [(16, 0, 11.2), (32, None, 22.4), (64, 0, 48.0), (192, 0, 176.0), (64, 57344, 56.0), (8, 0, 4.0)],
)
def test_the_share_of_apple_s_memory(gib: int, wired_mib: int | None, expected: float) -> None:
    """The owner's wired limit, else 70 % (80 % from 96 GiB), or all but 16 GiB, and never more than all but 4."""
    figures = {SIZE_KEY: gib * GIB, WIRED_KEY: wired_mib}
    bound = wired_bound(lambda name: figures[name])
    assert bound is not None
    assert bound.size == pytest.approx(expected * GIB, abs=1)
    assert wired_bound(lambda name: None) is None


def test_a_shared_memory_is_bounded_by_what_its_gpu_may_take() -> None:
    """The lesser of the two, with the reserve."""
    bound = wired_bound(lambda name: 32 * GIB if name == SIZE_KEY else 0)
    room = bounded(HOST, bound, GIB)
    assert room.budget == int(32 * 0.7 * GIB) - GIB
    assert "recommended share" in room.why
    assert bounded(PoolRoom("host", GIB, 32 * GIB, "1.0 GiB"), bound, GIB).budget == GIB
    assert bounded(HOST, None, GIB) is HOST


def test_others_use_of_a_card_is_subtracted_by_process() -> None:
    """Of 41000 MiB used, 40000 are our engine's: 1000 are others', with what nobody owns up to."""
    placed = place_devices([device("CUDA0", "NVIDIA H200", 143167)], cards_of("h200"))

    host, card = rooms_of(HOST, placed, NO_WISH, lambda pool: 0, frozenset({4242}))

    assert (host.pool, host.devices, host.unified) == ("host", (), False)
    assert (card.pool, card.devices) == ("gpu-0000:01:00.0", ("CUDA0",))
    assert card.budget == (143771 - 700 - 1000 - 1024) * MIB
    assert "held by others 1000.0 MiB" in card.why
    assert (card.foreign, card.reserve) == (1000 * MIB, 1024 * MIB)


def test_where_the_driver_names_no_process_of_ours_what_we_believe_counts() -> None:
    """As in a container, where process numbers are others."""
    listing = [device(f"CUDA{index}", "NVIDIA GeForce RTX 3090", 24124) for index in range(2)]
    placed = place_devices(listing, cards_of("two-3090"))

    rooms = rooms_of(
        HOST, placed, NO_WISH, lambda pool: 8000 * MIB if pool == "gpu-0000:05:00.0" else 0, frozenset({4242})
    )

    assert [room.budget for room in rooms[1:]] == [(24576 - 350 - 1000 - 1024) * MIB, (24576 - 350 - 300 - 1024) * MIB]


def test_either_of_two_cards_counts_as_the_fuller() -> None:
    """Both may land on the one that others have filled."""
    listing = [device(f"Vulkan{index}", "NVIDIA GeForce RTX 3090", 24822) for index in range(2)]
    (_, room) = rooms_of(HOST, place_devices(listing, cards_of("two-3090")), NO_WISH, lambda pool: 0, frozenset())

    assert room.devices == ("Vulkan0", "Vulkan1")
    assert room.budget == (24576 - 350 - 9000 - 1024) * MIB
    assert "any of 2 cards" in room.why


def test_the_owner_s_word_on_devices_stands() -> None:
    """A reserve of its own, and a device that is not to be used has no room."""
    listing = [device("CUDA0", "NVIDIA GeForce RTX 4090", 24111), device("CUDA1", "NVIDIA GeForce RTX 3060", 11909)]
    wishes = DeviceWishes({"CUDA0": DeviceWish(reserve=4 * GIB), "CUDA1": DeviceWish(use=False)})

    rooms = rooms_of(HOST, place_devices(listing, cards_of("mixed")), wishes, lambda pool: 0, frozenset())

    assert [room.pool for room in rooms] == ["host", "gpu-0000:01:00.0"]
    assert rooms[1].budget == (24564 - 400 - 500 - 4096) * MIB


def test_a_card_that_only_a_build_knows_has_what_the_listing_says() -> None:
    """Less the reserve; and it is said that others' use is not known."""
    (_, room) = rooms_of(
        HOST, place_devices([device("Vulkan0", "Arc B580", 12000)], ()), NO_WISH, lambda pool: 0, frozenset()
    )
    assert room.budget == (12000 - 750) * MIB
    assert "not known" in room.why
    assert (room.foreign, room.reserve) == (None, 750 * MIB)


def test_what_software_holds_is_held_in_the_host_s_room() -> None:
    """Llvmpipe is behind the host's room, which does not make the machine unified; it takes no more than it lists."""
    placed = place_devices([device("Vulkan0", "llvmpipe", 2048, software=True)], ())
    (room,) = rooms_of(HOST, placed, NO_WISH, lambda pool: 0, frozenset())
    assert (room.devices, room.unified, room.budget) == (("Vulkan0",), False, 30 * GIB)
    assert room.caps == {"Vulkan0": 2048 * MIB}


def test_the_reserve_follows_the_card() -> None:
    """A sixteenth, between 512 MiB and 1 GiB."""
    assert [default_reserve(size * GIB) for size in (2, 12, 139)] == [512 * MIB, 768 * MIB, GIB]
