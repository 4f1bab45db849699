"""What a client is told of a job, and of pictures that are done. Pure."""

from __future__ import annotations

from typing import Any

from engines.pictures import PictureAbilities
from supervisor.gateway.pictures.drawing import Drawn
from supervisor.gateway.pictures.jobs import Job
from supervisor.models.loras import InstalledLora, LoraShelf


def image_facts(job: Job, drawn: Drawn) -> dict[str, Any]:
    """How the pictures were really made."""
    wish = (job.order.wish if job.order is not None else None) or job.asked.wish
    facts: dict[str, Any] = {
        "model": job.entry.id,
        "seed": wish.seed,
        "seeds": [wish.seed + number for number in range(len(drawn.images))],
        "steps": wish.steps,
        "cfg_scale": wish.guidance,
        "width": wish.width,
        "height": wish.height,
        "duration_ms": round(drawn.seconds * 1000),
    }
    notes = [*job.asked.notes, *_lora_notes(job.asked.loras, drawn)]
    if notes:
        facts["settings_notes"] = notes
    if job.asked.loras:
        facts["loras"] = [{"id": lora.id, "name": lora.name} for lora in job.asked.loras]
    if job.asked.skipped is not None:
        facts["img2img_skipped_reason"] = job.asked.skipped
    return facts


def _lora_notes(loras: tuple[InstalledLora, ...], drawn: Drawn) -> list[str]:
    if not loras or drawn.applied is None:
        return []
    done, whole = drawn.applied
    if done == whole:
        return []
    return [f"loras: {done} of {whole} tensors were applied, as the engine says; the others match nothing"]


def job_document(job: Job) -> dict[str, Any]:
    """A job as ``GET /v1/images/jobs/{id}`` shows it, without its pictures."""
    shown: dict[str, Any] = {
        "id": job.id,
        "object": "image.job",
        "created": int(job.created),
        "model": job.entry.id,
        "status": job.state,
        "progress": job.progress.document(),
        "events_url": f"/v1/images/jobs/{job.id}/events",
    }
    if job.error is not None:
        shown["error"] = {"code": job.error.code, "message": job.error.message}
    return shown


def listed_abilities(abilities: PictureAbilities, shelf: LoraShelf, model_id: str) -> dict[str, Any]:
    """What ``/v1/models`` says of a picture model, so that a remote caller can choose."""
    return {
        "kind": abilities.kind,
        "weightsKind": abilities.weights_kind.value,
        "supportsImg2Img": abilities.edit_mode is not None,
        "editMode": None if abilities.edit_mode is None else abilities.edit_mode.value,
        "maxSourceImages": abilities.max_sources,
        "editOnly": abilities.edit_only,
        "masks": abilities.masks,
        "defaultSize": f"{abilities.width}x{abilities.height}",
        "defaultSteps": abilities.steps,
        "defaultCfgScale": abilities.guidance,
        "sizeMultiple": abilities.multiple,
        "samplers": list(abilities.samplers),
        "schedulers": list(abilities.schedulers),
        "loras": [lora.summary() for lora in shelf.loras if lora.is_for(abilities.kind, model_id)],
    }
