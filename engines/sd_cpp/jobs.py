"""sd-server's native job interface: what is sent, and what its answers mean.

No text of a client becomes an option here: the other routes read ``<sd_cpp_extra_args>`` out of a prompt, this one
does not, and every number was decided before.
"""

from __future__ import annotations

from base64 import b64encode
from typing import Any

import orjson

from engines.formats.picture_kinds import KINDS
from engines.pictures import EditMode, JobReport, JobState, PictureAbilities, PictureWish
from engines.sd_cpp.memory import tile_cells

SUBMIT_PATH = "/sdcpp/v1/img_gen"
_JOB_PATH = "/sdcpp/v1/jobs/"
_ACCEPTED = 202
_OK = 200
_MISSING = frozenset({404, 410})
SAMPLERS = (
    "euler", "euler_a", "heun", "dpm2", "dpm++2s_a", "dpm++2m", "dpm++2mv2", "ipndm", "ipndm_v", "lcm",
    "ddim_trailing", "tcd", "res_multistep", "res_2s", "er_sde",
)  # fmt: skip
SCHEDULERS = (
    "discrete", "karras", "exponential", "ays", "gits", "sgm_uniform", "simple", "smoothstep", "kl_optimal", "lcm",
    "bong_tangent",
)  # fmt: skip
_STATES = {
    "queued": JobState.QUEUED,
    "generating": JobState.RUNNING,
    "completed": JobState.DONE,
    "failed": JobState.FAILED,
    "cancelled": JobState.CANCELLED,
}


def submit(wish: PictureWish, abilities: PictureAbilities) -> tuple[str, dict[str, Any]]:
    """Path and body of a new job."""
    sampling: dict[str, Any] = {"sample_steps": wish.steps, "guidance": {"txt_cfg": wish.guidance}}
    if wish.sampler is not None:
        sampling["sample_method"] = wish.sampler
    if wish.scheduler is not None:
        sampling["scheduler"] = wish.scheduler
    body: dict[str, Any] = {
        "prompt": wish.prompt,
        "negative_prompt": wish.negative_prompt,
        "width": wish.width,
        "height": wish.height,
        "seed": wish.seed,
        "batch_count": wish.count,
        "sample_params": sampling,
        "output_format": wish.output_format,
        "output_compression": wish.output_compression,
        # It would name files of this machine in every picture.
        "embed_image_metadata": False,
        "lora": [{"path": lora.file, "multiplier": lora.strength} for lora in wish.loras],
        "vae_tiling_params": _tiling(wish, abilities),
    }
    if wish.sources and abilities.edit_mode is EditMode.REFERENCE:
        body["ref_images"] = [_base64(source) for source in wish.sources]
    elif wish.sources:
        body["init_image"] = _base64(wish.sources[0])
        if wish.strength is not None:
            body["strength"] = wish.strength
    if wish.mask is not None:
        body["mask_image"] = _base64(wish.mask)
    return SUBMIT_PATH, body


def _tiling(wish: PictureWish, abilities: PictureAbilities) -> dict[str, Any]:
    if not wish.tiled:
        return {"enabled": False}
    cells = tile_cells(KINDS[abilities.kind])
    return {"enabled": True, "tile_size_x": cells, "tile_size_y": cells}


def read_submitted(status: int, body: bytes) -> str:
    """The id of the new job.

    Raises:
        ValueError: it was refused, with the engine's words.
    """
    parsed = _object(body)
    job = parsed.get("id")
    if status == _ACCEPTED and isinstance(job, str) and job.replace("_", "").isalnum():
        return job
    said = parsed.get("message") or parsed.get("error")
    raise ValueError(said if isinstance(said, str) else f"it answered {status}")


def status_path(job: str) -> str:
    """Where the job is asked for."""
    return _JOB_PATH + job


def cancel_path(job: str) -> str:
    """Where a job that has not begun is taken back."""
    return f"{_JOB_PATH}{job}/cancel"


def read_job(status: int, body: bytes) -> JobReport:
    """What an answer about a job means.

    Raises:
        ValueError: it has another shape.
    """
    if status in _MISSING:
        return JobReport(JobState.GONE)
    parsed = _object(body)
    state = _STATES.get(str(parsed.get("status")))
    if status != _OK or state is None:
        raise ValueError(f"it answered {status} about a job, without a state that is known")
    error = parsed.get("error")
    said = error.get("message") if isinstance(error, dict) else None
    result = parsed.get("result")
    rows = result.get("images") if isinstance(result, dict) else None
    images = [row.get("b64_json") for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []
    return JobReport(
        state, tuple(image for image in images if isinstance(image, str)), said if isinstance(said, str) else None
    )


def _base64(data: bytes) -> str:
    return b64encode(data).decode()


def _object(body: bytes) -> dict[str, Any]:
    try:
        parsed = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise ValueError("its answer is no JSON") from error
    if not isinstance(parsed, dict):
        raise ValueError("its answer is no object")  # noqa: TRY004  of an engine's answer, not of a caller's type
    return parsed
