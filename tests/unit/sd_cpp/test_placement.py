"""Which parts of a picture model go where, by what its device holds: steps in order, each with its arithmetic."""

from dataclasses import replace
from typing import Any

import pytest

from engines.pictures import PictureWish
from engines.sd_cpp.adapter import SdCppAdapter
from engines.sd_cpp.command import build_command
from engines.sd_cpp.drawing import SdCppPictures
from engines.sd_cpp.placement import part_bytes, place
from engines.sd_cpp.settings import SdCppSettings
from tests.unit.sd_cpp.test_command import DRAFT, METADATA, UNKNOWN

_GIB = 2**30
# As Flux.1 at 8 bits: 12 GiB of network, 5 of text encoders.
FLUX = replace(
    METADATA,
    architecture="flux",
    tensor_bytes=17 * _GIB + _GIB // 4,
    fields={
        "bytes.diffusion_model": 12 * _GIB,
        "bytes.t5xxl": 5 * _GIB,
        "bytes.vae": _GIB // 4,
        "width": 3072,
        "head": 128,
    },
)


def settings(**said: Any) -> SdCppSettings:
    """As a config would say them."""
    return SdCppSettings.model_validate(said)


@pytest.mark.parametrize(
    ("room", "flags"),
    [("24GiB", set()), ("16GiB", {"offload_to_cpu"}), ("8GiB", {"offload_to_cpu", "clip_on_cpu", "vae_on_cpu"})],
)
def test_what_does_not_fit_moves_step_by_step(room: str, flags: set[str]) -> None:
    """All on the device, else weights come and go, else parts are computed by the CPU."""
    placed = place(FLUX, settings(device_memory=room))
    assert set(placed.on) == flags
    assert placed.fits == (room != "8GiB")
    assert placed.host_weights == (FLUX.tensor_bytes if flags else 0)


def test_what_the_config_says_stands() -> None:
    """A flag that is refused is not chosen, and one that is wished is there without need."""
    refused = place(FLUX, settings(device_memory="16GiB", offload_to_cpu=False))
    assert set(refused.on) == {"clip_on_cpu"}
    assert refused.host_weights == 5 * _GIB
    wished = place(FLUX, settings(device_memory="80GiB", vae_on_cpu=True))
    assert wished.on == {"vae_on_cpu": "from launch.vae_on_cpu"}
    assert wished.host_weights == _GIB // 4


def test_the_plan_tells_parts_and_why() -> None:
    """Flags with the arithmetic behind them; without a known device all is host memory, as before."""
    draft = replace(DRAFT, metadata=FLUX, settings=settings(device_memory="16GiB"))
    made = build_command(draft, UNKNOWN)
    assert "--offload-to-cpu" in made.argv
    assert "--clip-on-cpu" not in made.argv
    reasons = {choice.choice: choice for choice in made.choices}
    assert "16.00 GiB by launch.device_memory" in reasons["offload-to-cpu"].reason
    assert reasons["weights"].value == {"text": 5 * _GIB, "network": 12 * _GIB, "autoencoder": _GIB // 4}
    unknown = replace(draft, settings=settings())
    assert "launch.device_memory is not set" in build_command(unknown, UNKNOWN).choices[0].reason
    assert SdCppAdapter().estimate_memory(unknown)["host"].weights == FLUX.tensor_bytes
    assert part_bytes(METADATA).network == METADATA.tensor_bytes


def test_a_picture_takes_host_memory_for_what_the_cpu_computes_alone() -> None:
    """Where the device is known; else for all of it."""
    pictures, wish = SdCppPictures(), PictureWish("x", 1024, 1024, 1, 1.0, 0)
    cases: dict[str, dict[str, Any]] = {
        "all": {},
        "none": {"device_memory": "80GiB"},
        "vae": {"device_memory": "80GiB", "vae_on_cpu": True},
    }
    sizes = {name: pictures.working_set(FLUX, settings(**said), wish)["host"] for name, said in cases.items()}
    assert sizes["none"] < 64 * 2**20 < 6 * _GIB < sizes["vae"] <= sizes["all"]


def test_a_size_is_written_with_its_unit() -> None:
    """As everywhere in a config."""
    with pytest.raises(ValueError, match="not a size"):
        settings(device_memory="8 gigs")
    assert settings(device_memory="auto").device_memory is None
