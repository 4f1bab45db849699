"""From a request's fields to a job in which every number is decided; what was changed is said. Pure.

The engine would take 20000x20000, 130x130 and -64x64 and do something else without a word: nothing reaches it that was
not checked here.
"""

from __future__ import annotations

import math
import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from engines.pictures import EditMode, LoraUse, PictureAbilities, PictureWish
from supervisor.config.schema import PicturesConfig
from supervisor.errors import CallerError
from supervisor.gateway.pictures.prompts import NOTE, neutral
from supervisor.gateway.pictures.sources import Source
from supervisor.models.loras import InstalledLora

_SIZE = re.compile(r"\s*(\d{1,9})\s*[xX×]\s*(\d{1,9})\s*")  # noqa: RUF001  people write the sign, too
_LEAST_EDGE = 64
_MOST_SEED = 2**53  # beyond it JSON readers round
_MOST_GUIDANCE = 100.0
_DEFAULT_STRENGTH = 0.75
_SHAPE_SLACK = 0.02
_FORMATS = {"png": "png", "jpeg": "jpeg", "jpg": "jpeg"}
_UNSAID = frozenset({None, "", "auto", "Automatic", "automatic"})


@dataclass(frozen=True, slots=True)
class Asked:
    """A request, understood.

    Attributes:
        notes: everything that is not as it was asked for.
        skipped: why no source picture is used, where some were sent.
        loras: those that are applied.
    """

    wish: PictureWish
    notes: tuple[str, ...] = ()
    skipped: str | None = None
    loras: tuple[InstalledLora, ...] = ()


@dataclass(slots=True)
class _Reader:
    """Takes fields of a body, each checked; collects notes."""

    body: Mapping[str, Any]
    notes: list[str] = field(default_factory=list)

    def text(self, name: str, most: int) -> str:
        value = self.body.get(name)
        if value is None:
            return ""
        if not isinstance(value, str):
            raise wrong(name, "must be a text")
        if len(value) > most:
            raise wrong(name, f"has {len(value)} characters; pictures.max_prompt allows {most}")
        made, changed = neutral(value)
        if changed:
            self.notes.append(NOTE.format(field=name))
        return made

    def whole(self, name: str, least: int, most: int, why: str = "") -> int | None:
        value = self.body.get(name)
        if isinstance(value, str) and re.fullmatch(r"-?\d{1,18}", value.strip()):
            value = int(value)
        if value in _UNSAID if isinstance(value, str | None) else False:
            return None
        if isinstance(value, float) and value.is_integer() and abs(value) < _MOST_SEED:
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int):
            raise wrong(name, "must be a whole number")
        if not least <= value <= most:
            raise wrong(name, f"is {value}, and may be {least} to {most}{why}")
        return value

    def number(self, name: str, least: float, most: float) -> float | None:
        value = self.body.get(name)
        if isinstance(value, str) and value.strip():
            try:
                value = float(value)
            except ValueError:
                raise wrong(name, "must be a number") from None
        if value is None or value == "":
            return None
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise wrong(name, "must be a number")
        if not least <= value <= most:
            raise wrong(name, f"is {value:g}, and may be {least:g} to {most:g}")
        return float(value)

    def choice(self, name: str, known: Sequence[str]) -> str | None:
        value = self.body.get(name)
        if value is None or (isinstance(value, str) and value in _UNSAID):
            return None
        if not isinstance(value, str):
            raise wrong(name, "must be a name")
        found = _named(value, known)
        if found is None:
            raise wrong(name, f"is not one of {', '.join(known)}")
        if found != value:
            self.notes.append(f"{name}: {value} is called {found} here")
        return found


def wrong(name: str, why: str) -> CallerError:
    """A field that can't be used."""
    return CallerError("invalid_request", f"`{name}` {why}.", param=name)


def read_wish(
    body: Mapping[str, Any],
    abilities: PictureAbilities,
    limits: PicturesConfig,
    sources: Sequence[Source] = (),
    mask: Source | None = None,
) -> Asked:
    """The job that a body asks for; ``loras`` are added by ``with_loras``.

    Raises:
        CallerError: ``invalid_request`` with the field, ``image_source_required``.
    """
    reader = _Reader(body)
    prompt = reader.text("prompt", limits.max_prompt)
    if not prompt.strip():
        raise wrong("prompt", "is missing: say what the picture is of")
    if abilities.edit_only and not sources:
        raise CallerError(
            "image_source_required",
            "This model only changes pictures: send one, to /v1/images/edits or as `images`.",
            param="image",
        )
    width, height = _size(reader, abilities, limits)
    wish = PictureWish(
        prompt=prompt,
        negative_prompt=reader.text("negative_prompt", limits.max_prompt),
        width=width,
        height=height,
        steps=reader.whole("steps", 1, limits.max_steps, " (pictures.max_steps)") or abilities.steps,
        guidance=_or(reader.number("cfg_scale", 0, _MOST_GUIDANCE), abilities.guidance),
        seed=_seed(reader),
        count=reader.whole("n", 1, limits.max_count, " (pictures.max_count)") or 1,
        sampler=reader.choice("sampler", abilities.samplers),
        scheduler=reader.choice("scheduler", abilities.schedulers),
        output_format=_format(reader),
        output_compression=_or_whole(reader.whole("output_compression", 0, 100), 100),
    )
    if wish.negative_prompt and wish.guidance <= 1:
        reader.notes.append("negative_prompt: has no effect with a cfg_scale of 1 or less")
    wish, skipped = _with_sources(wish, reader, abilities, sources, mask)
    return Asked(wish, tuple(reader.notes), skipped)


def with_loras(asked: Asked, loras: Sequence[InstalledLora], body: Mapping[str, Any]) -> Asked:
    """The job with these LoRAs: their words, and their settings where the body says nothing."""
    wish, notes = asked.wish, list(asked.notes)
    uses = []
    for lora in loras:
        uses.append(LoraUse(lora.relative, lora.strength))
        if lora.prompt and lora.prompt.lower() not in wish.prompt.lower():
            wish = replace(wish, prompt=f"{wish.prompt}, {lora.prompt}")
            notes.append(f"prompt: {lora.prompt!r} was added for {lora.name}")
        for name, key in (("steps", "steps"), ("cfg_scale", "guidance"), ("sampler", "sampler"), ("scheduler",) * 2):
            value = getattr(lora.render, name)
            if value is not None and body.get(name) is None and value != getattr(wish, key):
                wish = replace(wish, **{key: value})
                notes.append(
                    f"{name}: {value:g} by {lora.name}"
                    if name in {"steps", "cfg_scale"}
                    else f"{name}: {value} by {lora.name}"
                )
    return replace(asked, wish=replace(wish, loras=tuple(uses)), notes=tuple(notes), loras=tuple(loras))


def lora_ids(body: Mapping[str, Any]) -> tuple[str, ...]:
    """The ids that a body names: texts, or objects with an ``id`` and nothing else.

    Raises:
        CallerError: ``invalid_request``.
    """
    value = body.get("loras")
    if value is None:
        return ()
    if not isinstance(value, list):
        raise wrong("loras", "must be a list of ids")
    ids = []
    for item in value:
        name = item.get("id") if isinstance(item, dict) and set(item) == {"id"} else item
        if not isinstance(name, str):
            raise wrong("loras", 'must be a list of ids, such as ["pencil"] or [{"id": "pencil"}]')
        ids.append(name)
    return tuple(dict.fromkeys(ids))


def _size(reader: _Reader, abilities: PictureAbilities, limits: PicturesConfig) -> tuple[int, int]:
    size = reader.body.get("size")
    why = " (pictures.max_edge)"
    if isinstance(size, str) and size not in _UNSAID:
        found = _SIZE.fullmatch(size)
        if found is None:
            raise wrong("size", "must be width x height in pixels, such as 1024x1024, or auto")
        wanted = (int(found[1]), int(found[2]))
        if not all(_LEAST_EDGE <= edge <= limits.max_edge for edge in wanted):
            raise wrong("size", f"is {size}, and each edge may be {_LEAST_EDGE} to {limits.max_edge}{why}")
    elif size is None or isinstance(size, str):
        width = reader.whole("width", _LEAST_EDGE, limits.max_edge, why)
        height = reader.whole("height", _LEAST_EDGE, limits.max_edge, why)
        wanted = (
            width or min(abilities.width, limits.max_edge),
            height or min(abilities.height, limits.max_edge),
        )
    else:
        raise wrong("size", "must be a text such as 1024x1024")
    made = (_rounded(wanted[0], abilities.multiple, limits), _rounded(wanted[1], abilities.multiple, limits))
    if made != wanted:
        text = f"{wanted[0]}x{wanted[1]} became {made[0]}x{made[1]}"
        reader.notes.append(f"size: {text}, since this model draws in multiples of {abilities.multiple} pixels")
    return made


def _rounded(edge: int, multiple: int, limits: PicturesConfig) -> int:
    up = -(-edge // multiple) * multiple
    return up if up <= limits.max_edge else max(multiple, edge // multiple * multiple)


def _seed(reader: _Reader) -> int:
    seed = reader.whole("seed", -1, _MOST_SEED)
    return secrets.randbelow(2**31) if seed is None or seed < 0 else seed


def _format(reader: _Reader) -> str:
    value = reader.body.get("output_format")
    if value is None or value in {"", "auto"} if isinstance(value, str | None) else False:
        return "png"
    found = _FORMATS.get(value) if isinstance(value, str) else None
    if found is None:
        raise wrong("output_format", "must be png or jpeg")
    return found


def _with_sources(
    wish: PictureWish,
    reader: _Reader,
    abilities: PictureAbilities,
    sources: Sequence[Source],
    mask: Source | None,
) -> tuple[PictureWish, str | None]:
    strength = reader.number("strength", 0, 1)
    if not sources:
        for name, sent in (("strength", strength), ("mask", mask)):
            if sent is not None:
                reader.notes.append(f"{name}: is for a source picture, and none was sent")
        return wish, None
    if abilities.edit_mode is None:
        return wish, f"{abilities.kind} models take no source pictures: it was drawn from the prompt alone"
    used = sources[: abilities.max_sources]
    if len(used) < len(sources):
        reader.notes.append(f"image: {len(used)} of {len(sources)} source pictures are used by this model")
    if abilities.edit_mode is EditMode.REFERENCE:
        if strength is not None:
            reader.notes.append("strength: this model looks at its sources and does not begin with one of them")
        strength = None
    else:
        strength = _DEFAULT_STRENGTH if strength is None else strength
        if strength == 1:
            reader.notes.append("strength: 1 leaves nothing of the source")
    if mask is not None and not abilities.masks:
        reader.notes.append("mask: this model redraws the whole picture")
    elif mask is not None:
        _check_shape(mask, used[0])
    return replace(
        wish,
        sources=tuple(source.data for source in used),
        strength=strength,
        mask=mask.data if mask is not None and abilities.masks else None,
    ), None


def _check_shape(mask: Source, source: Source) -> None:
    """Both are cut to the shape of the new picture, so that a mask of another shape would lie elsewhere."""
    across, down = mask.width * source.height, mask.height * source.width
    if abs(across - down) > _SHAPE_SLACK * max(across, down):
        said = f"is {mask.width}x{mask.height} and the picture {source.width}x{source.height}"
        raise wrong("mask", f"{said}: both must have the same shape")


def _named(value: str, known: Sequence[str]) -> str | None:
    """By the spelling here, or by A1111's: ``DPM++ 2M`` is ``dpm++2m``, ``Euler a`` is ``euler_a``."""
    if value in known:
        return value
    plain = {_plain(name): name for name in known}
    words = value.rsplit(" ", 1)
    found = plain.get(_plain(value))
    # A1111 once had the scheduler within the sampler's name.
    return found or (plain.get(_plain(words[0])) if words[-1].lower() in {"karras", "exponential"} else None)


def _plain(name: str) -> str:
    return re.sub(r"[\s_-]", "", name.lower())


def _or(value: float | None, default: float) -> float:
    return default if value is None else value


def _or_whole(value: int | None, default: int) -> int:
    return default if value is None else value
