"""A1111's fields as pictures are wished for here; what is not done is said. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# Its names for what is called otherwise here.
_FIELDS = {
    "batch_size": "n",
    "sampler_name": "sampler",
    "sampler_index": "sampler",
    "scheduler": "scheduler",
    "denoising_strength": "strength",
}
_SAME = ("prompt", "negative_prompt", "width", "height", "steps", "cfg_scale", "seed", "loras")
_SCHEDULES = frozenset({"karras", "exponential"})
_MODEL = "sd_model_checkpoint"
# What it draws with and nobody does here, with the values by which it says "no".
_NOT_HERE: Mapping[str, tuple[Any, ...]] = {
    "tiling": (False,),
    "restore_faces": (False,),
    "enable_hr": (False,),
    "subseed_strength": (0,),
    "seed_resize_from_w": (-1, 0),
    "seed_resize_from_h": (-1, 0),
    "styles": ([],),
    "script_name": ("",),
    "alwayson_scripts": ({},),
    "refiner_checkpoint": ("",),
    "eta": (),
    "s_churn": (0,),
    "s_noise": (1,),
    "s_tmin": (0,),
    "clip_skip": (0, 1),
    "image_cfg_scale": (),
    "resize_mode": (0,),
}
# The same, where a mask is sent.
_NOT_WITH_A_MASK: Mapping[str, tuple[Any, ...]] = {
    "mask_blur": (0,),
    "mask_blur_x": (0,),
    "mask_blur_y": (0,),
    "inpaint_full_res": (False, 0),
    "inpainting_fill": (1,),
}


def wish_of(body: Mapping[str, Any], *, with_source: bool) -> dict[str, Any]:
    """The fields of a wish, unchecked, of a body of ``txt2img`` or ``img2img``."""
    wish: dict[str, Any] = {name: body[name] for name in _SAME if body.get(name) is not None}
    for theirs, ours in _FIELDS.items():
        if body.get(theirs) not in (None, ""):
            wish.setdefault(ours, body[theirs])
    rounds = body.get("n_iter")
    if rounds not in (None, "") and not (_is_count(rounds) and rounds == 1):
        count = wish.get("n", 1)
        # One of them is no number: it is the one that is refused.
        wish["n"] = count * rounds if _is_count(count) and _is_count(rounds) else rounds if _is_count(count) else count
    sampler = wish.get("sampler")
    if isinstance(sampler, str) and "scheduler" not in wish and (last := _last_word(sampler)) in _SCHEDULES:
        wish["scheduler"] = last  # its older names of samplers hold the schedule
    if not with_source:
        wish.pop("strength", None)  # sent with every request by some, for what would come later
    return wish


def notes_of(body: Mapping[str, Any], *, masked: bool) -> tuple[str, ...]:
    """What the body asks for and is not done."""
    asked = dict(_NOT_HERE) | (dict(_NOT_WITH_A_MASK) if masked else {})
    notes = [f"{name}: is not done here" for name, off in asked.items() if _is_on(body.get(name), off)]
    settings = body.get("override_settings")
    others = [name for name in settings if name != _MODEL] if isinstance(settings, dict) else []
    notes += [f"override_settings.{name[:60]}: is not done here" for name in others[:20]]
    return tuple(notes)


def named_model(body: Mapping[str, Any]) -> str | None:
    """The model that the body itself names."""
    settings = body.get("override_settings")
    named = settings.get(_MODEL) if isinstance(settings, dict) else None
    return named if isinstance(named, str) and named else None


def _is_on(value: Any, off: tuple[Any, ...]) -> bool:
    return value is not None and not any(isinstance(value, bool) is isinstance(no, bool) and value == no for no in off)


def _is_count(value: Any) -> bool:
    return type(value) is int


def _last_word(name: str) -> str:
    return name.rsplit(" ", 1)[-1].lower()
