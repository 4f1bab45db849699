"""Where the parts of a model go when its engine has a device: as much on it as fits, the rest by flags. Pure.

sd-server lists no devices, so how much of one is this engine's is said by ``launch.device_memory``. It computes one
stage after the other: text encoders, the network step by step, the autoencoder. Weights that are kept in host memory
(``--offload-to-cpu``) come to the device for their stage only; a part on the CPU never does.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from engines.contract import ModelMetadata
from engines.formats.diffusion import picture_kind
from engines.pictures import PictureWish
from engines.sd_cpp.memory import PictureStages, stages
from engines.sd_cpp.settings import SdCppSettings

_TEXT_ROLES = ("clip_l", "clip_g", "t5xxl", "llm", "llm_vision", "clip_vision")
_AUTOENCODER_ROLES = ("vae", "tae")
_GIB = 2**30
# What is given up, step by step: time for moving weights, then for computing on the CPU.
_STEPS = ("offload_to_cpu", "clip_on_cpu", "vae_on_cpu")


@dataclass(frozen=True, slots=True)
class PartBytes:
    """Weights by what they are for; a checkpoint in one file counts as the network."""

    text: int
    network: int
    autoencoder: int

    @property
    def total(self) -> int:
        """All of them."""
        return self.text + self.network + self.autoencoder


@dataclass(frozen=True, slots=True)
class Placed:
    """Where the parts go.

    Attributes:
        on: flags by the names of their settings, each with its reason.
        device_bytes: the most that lies on the device at once; None: it is not known what there is.
        host_weights: bytes of weights that lie in host memory.
        fits: whether the device holds it.
    """

    on: Mapping[str, str]
    device_bytes: int | None
    host_weights: int
    fits: bool = True


def part_bytes(metadata: ModelMetadata) -> PartBytes:
    """Bytes of weights by part, from the files' headers."""
    sizes = {
        name.removeprefix("bytes."): int(size) for name, size in metadata.fields.items() if name.startswith("bytes.")
    }
    text = sum(sizes.get(role, 0) for role in _TEXT_ROLES)
    autoencoder = sum(sizes.get(role, 0) for role in _AUTOENCODER_ROLES)
    return PartBytes(text, metadata.tensor_bytes - text - autoencoder, autoencoder)


def place(metadata: ModelMetadata, settings: SdCppSettings) -> Placed:
    """The first of the steps with which a picture of the usual size fits on the device; what the config says stands."""
    said = {name: getattr(settings, name) for name in _STEPS}
    on = {name: f"from launch.{name}" for name, value in said.items() if value}
    parts, room = part_bytes(metadata), settings.device_memory
    if room is None:
        # All of it is counted as host memory: it is there before it goes to a device.
        return Placed(on, None, metadata.tensor_bytes)
    taken = _stages(metadata, settings)
    whole = _on_device(parts, taken, frozenset(on))
    for name in _STEPS:
        if _on_device(parts, taken, frozenset(on)) <= room:
            break
        if said[name] is None and _helps(name, parts):
            on[name] = (
                f"it does not fit otherwise: {whole / _GIB:.2f} GiB of weights and working memory, and "
                f"{room / _GIB:.2f} GiB by launch.device_memory"
            )
    flags = frozenset(on)
    device = _on_device(parts, taken, flags)
    return Placed(on, device, _on_host(parts, flags), fits=device <= room)


def _helps(name: str, parts: PartBytes) -> bool:
    return {"clip_on_cpu": parts.text, "vae_on_cpu": parts.autoencoder}.get(name, 1) > 0


def _stages(metadata: ModelMetadata, settings: SdCppSettings) -> PictureStages:
    kind = picture_kind(metadata)
    width, height = settings.width or kind.size, settings.height or kind.size
    tiled = settings.vae_tiling is not False
    return stages(metadata, settings, PictureWish("", width, height, 1, 1.0, 0, tiled=tiled))


def _on_device(parts: PartBytes, taken: PictureStages, flags: frozenset[str]) -> int:
    """The most at once: all weights and the largest stage, or where they come and go one part with its stage."""
    rows = [(parts.network, taken.network)]
    if "clip_on_cpu" not in flags:
        rows.append((parts.text, taken.text))
    if "vae_on_cpu" not in flags:
        rows.append((parts.autoencoder, taken.autoencoder))
    if "offload_to_cpu" in flags:
        return max(weights + working for weights, working in rows)
    return sum(weights for weights, _ in rows) + max(working for _, working in rows)


def _on_host(parts: PartBytes, flags: frozenset[str]) -> int:
    if "offload_to_cpu" in flags:
        return parts.total
    text = parts.text if "clip_on_cpu" in flags else 0
    return text + (parts.autoencoder if "vae_on_cpu" in flags else 0)
