"""What the supervisor and an adapter say to each other about pictures: what a model can do, a job, and how far it is.

Sizes are pixels, seconds are seconds, bytes are bytes; unknown is ``None``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from pathlib import Path

    from engines.contract import LaunchSettings, ModelMetadata


class EditMode(StrEnum):
    """How a model uses source pictures."""

    REFERENCE = "reference"
    """It looks at them, several perhaps, and draws anew."""
    IMG2IMG = "img2img"
    """It begins with one of them, and leaves of it what ``strength`` says."""


class WeightsKind(StrEnum):
    """How a model comes."""

    CHECKPOINT = "checkpoint"
    """One file with all parts."""
    DIFFUSION_MODEL = "diffusion-model"
    """The network that draws; text encoders and autoencoder are files of their own."""


@dataclass(frozen=True, slots=True)
class PictureAbilities:
    """What a picture model can do, and how it is used unless a request says otherwise.

    Attributes:
        kind: family of the network, such as ``sdxl``.
        edit_mode: None: it takes no source pictures.
        max_sources: source pictures that it uses; 0 without ``edit_mode``.
        edit_only: it draws nothing without a source picture.
        masks: it can leave a part of the source as it is.
        multiple: width and height are multiples of this.
        guidance: how strictly it keeps to the prompt (``cfg_scale``); 1: no second pass for what is not wanted.
    """

    kind: str
    weights_kind: WeightsKind
    edit_mode: EditMode | None
    max_sources: int
    edit_only: bool
    masks: bool
    width: int
    height: int
    steps: int
    guidance: float
    multiple: int
    samplers: tuple[str, ...] = ()
    schedulers: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class LoraUse:
    """A LoRA of a job: its file, relative to the folder of LoRAs, and how strongly it is applied."""

    file: str
    strength: float


@dataclass(frozen=True, slots=True)
class PictureWish:
    """A job in full: every number is decided.

    Attributes:
        sources: encoded pictures (PNG, JPEG), in order.
        mask: an encoded picture; white is drawn anew.
        strength: how much of a source is given up, 0 to 1; None: no source is begun with.
        tiled: the picture is decoded in tiles, which takes less memory and more time.
    """

    prompt: str
    width: int
    height: int
    steps: int
    guidance: float
    seed: int
    count: int = 1
    negative_prompt: str = ""
    sampler: str | None = None
    scheduler: str | None = None
    strength: float | None = None
    sources: tuple[bytes, ...] = field(default=(), repr=False)
    mask: bytes | None = field(default=None, repr=False)
    loras: tuple[LoraUse, ...] = ()
    output_format: str = "png"
    output_compression: int = 100
    tiled: bool = False


class JobState(StrEnum):
    """Where a job is, by the engine's own word."""

    QUEUED = "queued"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"
    GONE = "gone"
    """The engine knows no such job."""


@dataclass(frozen=True, slots=True)
class JobReport:
    """An engine's answer about a job; ``images`` in base64."""

    state: JobState
    images: tuple[str, ...] = field(default=(), repr=False)
    error: str | None = None


class Stage(StrEnum):
    """What an engine is at with a picture, by its log."""

    STARTED = "started"
    ENCODED = "encoded"
    STEP = "step"
    DECODING = "decoding"
    DECODED = "decoded"
    FINISHED = "finished"
    OUT_OF_MEMORY = "out_of_memory"
    LORAS = "loras"


@dataclass(frozen=True, slots=True)
class PictureSign:
    """One sign of progress in an engine's log.

    Attributes:
        step, steps: of a ``STEP``; of ``LORAS``, tensors that were applied, and all there were.
        step_seconds: time of a step by the engine's own word.
        image: number of the picture that is begun, from 1.
        asked_bytes: what could not be had, of ``OUT_OF_MEMORY``.
    """

    stage: Stage
    step: int = 0
    steps: int = 0
    step_seconds: float | None = None
    image: int | None = None
    asked_bytes: int | None = None


class LoraMisfitError(Exception):
    """A LoRA that must not be given to this model: it would end the engine, or change nothing."""


class PictureEngine(Protocol):
    """The part of an adapter that draws. Stateless; every method is quick and pure but for ``check_lora``."""

    def abilities(self, metadata: ModelMetadata, settings: LaunchSettings) -> PictureAbilities:
        """What the model can do; what the settings say goes over what its files say."""
        ...

    def lora_folder(self, settings: LaunchSettings) -> Path | None:
        """Where its LoRAs are installed; None: nowhere."""
        ...

    def tiling(self, settings: LaunchSettings) -> bool | None:
        """Whether pictures are decoded in tiles; None: where they would not fit otherwise."""
        ...

    def check_lora(self, metadata: ModelMetadata, lora: Path) -> str | None:
        """Compare a LoRA's header with the model's: a note for who asked, or None. Reads the file's header.

        Raises:
            LoraMisfitError: it must not be given to this model.
            ModelFileError: the file can't be read.
        """
        ...

    def submit(self, wish: PictureWish, abilities: PictureAbilities) -> tuple[str, dict[str, Any]]:
        """Path and body that begin a job."""
        ...

    def read_submitted(self, status: int, body: bytes) -> str:
        """The id of a job that was begun.

        Raises:
            ValueError: it was refused, with the engine's words.
        """
        ...

    def status_path(self, job: str) -> str:
        """Where the job is asked for."""
        ...

    def cancel_path(self, job: str) -> str:
        """Where a job that has not begun is taken back; a POST."""
        ...

    def read_job(self, status: int, body: bytes) -> JobReport:
        """What an answer of ``status_path`` means."""
        ...

    def read_sign(self, line: str) -> PictureSign | None:
        """What a log line tells of a picture; called for each line, so a cheap test comes first."""
        ...

    def working_set(self, metadata: ModelMetadata, settings: LaunchSettings, wish: PictureWish) -> Mapping[str, int]:
        """Bytes by place that a job takes while it runs, on top of what the engine holds."""
        ...
