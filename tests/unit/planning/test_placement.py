"""Where layers go: the largest placement that fits, on a model of simple arithmetic."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engines.contract import DeviceListing
from supervisor.planning.placement import largest, offer_devices
from supervisor.planning.scales import Weighed
from tests.fakes.memory_model import MIB, MemoryModel, draft_of, placements_of, scales_of

MODEL = MemoryModel()  # 33 layers of 100 MiB, and of 32 MiB of cache with 4 slots of 8192 tokens
SMALL = draft_of(slots=1, ctx_size=1024)  # 1 MiB of cache a layer
LARGE = 100_000
CARDS = tuple(DeviceListing(f"GPU{number}", "a card", "gpu", MIB, MIB) for number in range(2))


def test_one_device_with_room_gets_all_layers() -> None:
    """All layers, the output among them, on the device with the most room; the others stay free."""
    scales = scales_of(MODEL, LARGE, 5000, 4000)
    placed = placements_of(MODEL, scales, ("GPU0", "GPU1")).whole(SMALL)
    assert placed.fits
    assert (placed.draft.devices, placed.draft.n_gpu_layers, placed.draft.tensor_split) == (("GPU0",), 33, ())


def test_several_devices_share_by_their_room() -> None:
    """No device alone has the room: whole layers by free bytes, which the split says."""
    scales = scales_of(MODEL, LARGE, 2800, 1400)
    placed = placements_of(MODEL, scales, ("GPU0", "GPU1")).whole(SMALL)
    assert placed.fits
    assert (placed.draft.n_gpu_layers, placed.draft.tensor_split) == (33, (22, 11))


def test_layers_move_from_the_fullest_device() -> None:
    """A share by room alone can miss: compute is needed on each device, however small."""
    model = replace(MODEL, compute=600)
    scales = scales_of(model, LARGE, 3700, 1000)
    placed = placements_of(model, scales, ("GPU0", "GPU1")).whole(SMALL)
    assert placed.fits
    assert placed.draft.tensor_split == (30, 3)


def test_as_many_layers_as_fit() -> None:
    """A part on the device: 10 layers of 101 MiB beside 50 MiB for computing, and an eleventh does not fit."""
    scales = scales_of(MODEL, LARGE, 1070)
    placed = placements_of(MODEL, scales, ("GPU0",)).moves()["n_gpu_layers"](SMALL)
    assert placed.fits
    assert placed.draft.n_gpu_layers == 10


def test_a_part_is_split_over_devices_too() -> None:
    """Two small cards hold more layers than one."""
    scales = scales_of(MODEL, LARGE, 1070, 600)
    placed = placements_of(MODEL, scales, ("GPU0", "GPU1")).moves()["n_gpu_layers"](SMALL)
    assert placed.fits
    assert (placed.draft.n_gpu_layers, placed.draft.tensor_split) == (15, (10, 5))


def test_as_few_experts_as_will_do_go_to_the_host() -> None:
    """Dense parts stay on the device; experts of the first layers leave it until the rest fits."""
    model = replace(MODEL, dense=20, experts=80)
    scales = scales_of(model, LARGE, 2000)
    placed = placements_of(model, scales, ("GPU0",)).moves()["experts_to_cpu"](SMALL)
    assert placed.fits
    assert (placed.draft.n_gpu_layers, placed.draft.n_cpu_moe) == (33, 18)
    assert not scales.weigh(replace(placed.draft, n_cpu_moe=17)).fits


def test_the_users_own_numbers_stand() -> None:
    """A number of layers is not changed, named devices are all used, and neither can be given up."""
    scales = scales_of(MODEL, LARGE, 500, 500)
    numbered = placements_of(MODEL, scales, ("GPU0",), layers=20)
    assert numbered.whole(SMALL).draft.n_gpu_layers == 20
    assert not numbered.whole(SMALL).fits
    assert not numbered.moves()
    named = placements_of(MODEL, scales_of(MODEL, LARGE, 9000, 9000), ("GPU1", "GPU0"), named=True)
    assert named.whole(SMALL).draft.devices == ("GPU1", "GPU0")
    assert named.moves().keys() == {"n_gpu_layers"}


def test_a_room_that_is_not_known_is_not_compared() -> None:
    """Unknown is not zero: the device gets the layers."""
    scales = scales_of(MODEL, None, None)
    placed = placements_of(MODEL, scales, ("GPU0",)).whole(SMALL)
    assert placed.fits
    assert placed.draft.n_gpu_layers == 33


def test_devices_that_are_one_memory_share_its_room() -> None:
    """On a unified machine, what the device takes is taken from the host."""
    scales = scales_of(MODEL, 3000)
    unified = placements_of(MODEL, scales, ())
    assert unified.whole(SMALL).needed == {"host": 33 * 101 * MIB + 50 * MIB}


@pytest.mark.parametrize(
    ("wished", "layers", "listed", "devices"),
    [
        (None, None, CARDS, ("GPU1", "GPU0")),
        (("GPU0",), None, CARDS, ("GPU0",)),
        ((), None, CARDS, ()),
        (None, 0, CARDS, ()),
        (None, None, None, None),
        (None, None, (), ()),
        (None, None, (replace(CARDS[0], software=True),), ()),
        (None, None, (replace(CARDS[0], usable=False),), ()),
    ],
)
def test_what_devices_are_offered(
    wished: tuple[str, ...] | None,
    layers: int | None,
    listed: tuple[DeviceListing, ...] | None,
    devices: tuple[str, ...] | None,
) -> None:
    """The roomiest first; wishes as they stand; software devices only by name; an untrusted listing is the engine's."""
    offer = offer_devices(wished, layers, listed, scales_of(MODEL, LARGE, 100, 200))
    assert offer.devices == devices
    assert offer.why


def test_a_device_without_a_room_is_not_offered() -> None:
    """``host.devices`` can close one; the reason names it."""
    offer = offer_devices(None, None, CARDS, scales_of(MODEL, LARGE, 0, 200))
    assert offer.devices == ("GPU1",)
    assert "GPU0" in offer_devices(None, None, CARDS[:1], scales_of(MODEL, LARGE, 0)).why


@settings(deadline=None)
@given(budget=st.integers(-5, 60), steps=st.lists(st.integers(0, 9), min_size=1, max_size=40))
def test_the_search_finds_the_largest(budget: int, steps: list[int]) -> None:
    """However unevenly needs grow, and with few looks: the largest number that fits, or the least if none does."""
    needs = [sum(steps[: number + 1]) for number in range(len(steps))]
    looks = []

    def weigh(number: int) -> Weighed:
        looks.append(number)
        return Weighed(replace(SMALL, n_gpu_layers=number), {}, {}, {"gpu": needs[number] - budget})

    found = largest(0, len(needs) - 1, weigh)
    fitting = [number for number, need in enumerate(needs) if need <= budget]
    assert found.draft.n_gpu_layers == max(fitting, default=0)
    assert len(looks) <= 20
