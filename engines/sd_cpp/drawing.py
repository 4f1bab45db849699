"""The part of the adapter that draws: each method hands on to the file that owns the matter."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from engines.contract import LaunchSettings, ModelMetadata
from engines.formats.diffusion import MODEL, picture_kind
from engines.pictures import EditMode, JobReport, PictureAbilities, PictureSign, PictureWish, WeightsKind
from engines.sd_cpp import jobs, loras, memory, progress
from engines.sd_cpp.placement import place
from engines.sd_cpp.settings import SdCppSettings


class SdCppPictures:
    """Implements ``PictureEngine`` for ``sd-server``."""

    def abilities(self, metadata: ModelMetadata, settings: LaunchSettings) -> PictureAbilities:
        """By kind; the settings go over it."""
        own, kind = _own(settings), picture_kind(metadata)
        edit_mode = own.edit_mode or kind.edit_mode
        if own.max_source_images is not None:
            sources = own.max_source_images
        else:
            sources = kind.max_sources or (1 if edit_mode else 0)
        if edit_mode is EditMode.IMG2IMG:
            sources = min(sources, 1)
        whole = not metadata.roles or MODEL in metadata.roles
        return PictureAbilities(
            kind=kind.name,
            weights_kind=WeightsKind.CHECKPOINT if whole else WeightsKind.DIFFUSION_MODEL,
            edit_mode=edit_mode if sources else None,
            max_sources=sources,
            edit_only=kind.edit_only if own.edit_only is None else own.edit_only,
            masks=kind.masks and edit_mode is EditMode.IMG2IMG and bool(sources),
            width=own.width or kind.size,
            height=own.height or kind.size,
            steps=own.steps or kind.steps,
            guidance=kind.guidance if own.cfg_scale is None else own.cfg_scale,
            multiple=kind.multiple,
            samplers=jobs.SAMPLERS,
            schedulers=jobs.SCHEDULERS,
        )

    def lora_folder(self, settings: LaunchSettings) -> Path | None:
        """``launch.lora_dir``."""
        return _own(settings).lora_dir

    def tiling(self, settings: LaunchSettings) -> bool | None:
        """``launch.vae_tiling``."""
        return _own(settings).vae_tiling

    def check_lora(self, metadata: ModelMetadata, lora: Path) -> str | None:
        """See ``loras.check_lora``."""
        return loras.check_lora(metadata, lora)

    def submit(self, wish: PictureWish, abilities: PictureAbilities) -> tuple[str, dict[str, Any]]:
        """See ``jobs.submit``."""
        return jobs.submit(wish, abilities)

    def read_submitted(self, status: int, body: bytes) -> str:
        """See ``jobs.read_submitted``."""
        return jobs.read_submitted(status, body)

    def status_path(self, job: str) -> str:
        """See ``jobs.status_path``."""
        return jobs.status_path(job)

    def cancel_path(self, job: str) -> str:
        """See ``jobs.cancel_path``."""
        return jobs.cancel_path(job)

    def read_job(self, status: int, body: bytes) -> JobReport:
        """See ``jobs.read_job``."""
        return jobs.read_job(status, body)

    def read_sign(self, line: str) -> PictureSign | None:
        """See ``progress.read_sign``."""
        return progress.read_sign(line)

    def working_set(self, metadata: ModelMetadata, settings: LaunchSettings, wish: PictureWish) -> Mapping[str, int]:
        """See ``memory.working_set``."""
        own = _own(settings)
        on_cpu = None if own.device_memory is None else frozenset(place(metadata, own).on)
        return memory.working_set(metadata, own, wish, on_cpu)


def _own(settings: LaunchSettings) -> SdCppSettings:
    return settings if isinstance(settings, SdCppSettings) else SdCppSettings()
