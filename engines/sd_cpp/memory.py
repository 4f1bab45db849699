"""Predicted memory of sd-server: what it holds when it is idle, and what a picture takes on top.

Weights lie in buffers of their own, not in mapped files. Working buffers are made for each stage of a picture and given
back after it: text encoders, then the network step by step, then the autoencoder. So a picture takes what its largest
stage does. The formulas follow the engine's own graphs; ``bench/pictures`` holds them against the process.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from engines.contract import MemoryEstimate, ModelMetadata
from engines.formats.diffusion import picture_kind
from engines.formats.picture_kinds import PictureKind
from engines.pictures import EditMode, PictureWish
from engines.sd_cpp.settings import SdCppSettings

HOST = "host"
_MIB = 2**20
# The program, its libraries and its vocabularies, idle, on Linux x86-64 with the CPU backend.
PROGRAM_BYTES = 96 * _MIB
# Of an autoencoder's largest layer, for each pixel: 128 or 256 channels, their 3 x 3 neighbourhoods in 16 bits, and
# the layers before and after. The engine says 1664 MiB at 512 x 512 and 6656 at 1024 x 1024.
VAE_PIXEL_BYTES = 6656
# The same of a tiny one, which has 64 channels throughout; 2.1 to 3.0 KB were seen.
TAE_PIXEL_BYTES = 3072
# Pixels along the edge of a tile, which jobs ask for: the engine's own default counts cells, which differ by kind. A
# source is read in tiles that are larger by this.
_TILE_PIXELS = 256
_READING = 1.30539
# Copies of the stream of tokens that a transformer's block keeps at once, in 32 bits.
_TOKEN_COPIES = 12
_TEXT_TOKENS = 512
_TEXT_BYTES = 48 * _MIB
# What small buffers and the heap between them take besides, whatever the size.
_HEAP_BYTES = 16 * _MIB
_DEFAULT_WIDTH = 3072
_DEFAULT_HEAD = 128
# A UNet's convolutions for each latent cell, and its attention: cells for each token, and heads.
_UNET_CELL_BYTES = 24 * 1024
_UNET_ATTENTION = {"sdxl": (4, 10), "sd2": (1, 5), "sd1": (1, 8)}


@dataclass(frozen=True, slots=True)
class PictureStages:
    """Bytes that each stage takes."""

    text: int
    network: int
    autoencoder: int

    @property
    def most(self) -> int:
        """The largest of them: they come one after the other."""
        return max(self.text, self.network, self.autoencoder)


def estimate_memory(metadata: ModelMetadata, host_weights: int) -> Mapping[str, MemoryEstimate]:
    """What the engine holds of host memory when it is idle, where so many bytes of weights lie there."""
    return {HOST: MemoryEstimate(weights=host_weights, kv=0, compute=0, other=PROGRAM_BYTES, upper=_spare(metadata))}


def _spare(metadata: ModelMetadata) -> int:
    """Bytes that the weights may be more than their file: some types are widened at the load."""
    return max(8 * _MIB, metadata.tensor_bytes // 32)


def stages(metadata: ModelMetadata, settings: SdCppSettings, wish: PictureWish) -> PictureStages:
    """What each stage of this picture takes."""
    kind = picture_kind(metadata)
    cells = -(-wish.width // kind.latent_factor) * -(-wish.height // kind.latent_factor)
    references = len(wish.sources) if kind.edit_mode is EditMode.REFERENCE else 0
    if kind.multiple == 64:  # noqa: PLR2004  UNets halve their size three times
        network = _unet(kind, cells, flash=bool(settings.flash_attention))
    else:
        network = _transformer(metadata, kind, cells * (1 + references), flash=bool(settings.flash_attention))
    return PictureStages(_TEXT_BYTES, network, _autoencoder(metadata, kind, wish))


def tile_cells(kind: PictureKind) -> int:
    """Latent cells along the edge of a tile, where a picture is decoded in tiles."""
    return max(4, _TILE_PIXELS // kind.latent_factor)


def _unet(kind: PictureKind, cells: int, *, flash: bool) -> int:
    share, heads = next(sizes for name, sizes in _UNET_ATTENTION.items() if kind.name.startswith(name))
    tokens = cells // share
    return cells * _UNET_CELL_BYTES + (0 if flash else tokens * tokens * heads * 4)


def _transformer(metadata: ModelMetadata, kind: PictureKind, cells: int, *, flash: bool) -> int:
    width = int(metadata.fields.get("width") or _DEFAULT_WIDTH)
    head = int(metadata.fields.get("head") or _DEFAULT_HEAD)
    tokens = cells // kind.patch**2 + _TEXT_TOKENS
    scores = 0 if flash else tokens * tokens * max(1, width // head) * 4
    return scores + tokens * width * 4 * _TOKEN_COPIES


def _autoencoder(metadata: ModelMetadata, kind: PictureKind, wish: PictureWish) -> int:
    per_pixel = TAE_PIXEL_BYTES if "bytes.tae" in metadata.fields else VAE_PIXEL_BYTES
    pixels = wish.width * wish.height
    if wish.tiled:
        # What is put together from the tiles is kept beside them, in 32 bits.
        edge = int(tile_cells(kind) * kind.latent_factor * (_READING if wish.sources else 1.0))
        return min(wish.width, edge) * min(wish.height, edge) * per_pixel + pixels * 3 * 4 * 2
    return pixels * per_pixel


def working_set(
    metadata: ModelMetadata, settings: SdCppSettings, wish: PictureWish, on_cpu: frozenset[str] | None = None
) -> Mapping[str, int]:
    """Bytes by place that the picture takes on top of the idle engine: its largest stage, and the pictures done.

    ``on_cpu``: settings of the parts that the CPU computes, while a device does the rest; None: the CPU does all.
    """
    done = wish.count * wish.width * wish.height * 3 * 4
    sources = sum(len(source) for source in wish.sources) + len(wish.sources) * wish.width * wish.height * 3 * 4
    taken = stages(metadata, settings, wish)
    if on_cpu is None:
        most = taken.most
    else:
        by_part = {"clip_on_cpu": taken.text, "vae_on_cpu": taken.autoencoder}
        most = max((size for name, size in by_part.items() if name in on_cpu), default=0)
    return {HOST: most + _HEAP_BYTES + done + sources}
