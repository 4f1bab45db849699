"""Whether a LoRA may be given to a model, from the two headers.

sd-server does not look: a LoRA whose shapes don't fit ends the whole process (``GGML_ASSERT`` in ``lora.hpp``). Names
come in several spellings, which the engine translates. What is spelled as the model's own tensors, or as diffusers
spells them, must have their shape; of what is not, a tensor that it could be for must at least exist.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path

from engines.contract import ModelMetadata
from engines.formats.diffusion import packed_tensors, read_file
from engines.pictures import LoraMisfitError
from engines.sd_cpp.diffusers_names import checkpoint_names

Shape = tuple[int, ...]

# The two factors of a change, in the spellings that are about.
_DOWN = re.compile(r"[._](?:lora_down|lora_A|lora\.down)(?:\.default)?\.weight$|\.hada_w[12]_b$")
_UP = re.compile(r"[._](?:lora_up|lora_B|lora\.up)(?:\.default)?\.weight$|\.hada_w[12]_a$")
_WHOLE = re.compile(r"\.diff$")
_KRONECKER = re.compile(r"\.lokr_w[12](?:_[ab])?$")
_PREFIX = re.compile(
    r"^(?:lora\.|lycoris[._])?(?:lora_unet_|lora_transformer_|model\.diffusion_model\.|diffusion_model[._]"
    r"|base_model\.model\.|transformer[._]|unet[._])"
)
_TEXT = re.compile(r"^(?:lora\.)?(?:lora_te\d?_|text_encoder|text_model|te\d?\.|cond_stage_model|conditioner)")
_SEPARATORS = re.compile(r"[^0-9a-z]+")


@dataclass(frozen=True, slots=True)
class Change:
    """What a LoRA adds to one tensor: its name there, and the shape of the sum.

    Attributes:
        deep: made of factors with more than two dimensions, as those of a convolution: a plain matrix takes none such.
    """

    name: str
    shape: Shape
    deep: bool = False


def check_lora(metadata: ModelMetadata, lora: Path) -> str | None:
    """Let a LoRA pass; the answer is a note for who asked, or None.

    Raises:
        LoraMisfitError: it would end the engine, or is for another model.
        ModelFileError: the file can't be read.
    """
    model = {_plain(name.removesuffix(".weight")): shape for name, shape in packed_tensors(metadata)}
    changes, in_text = _changes(read_file(lora).shapes)
    if not changes:
        what = "changes text encoders only" if in_text else "holds nothing that a LoRA is made of"
        raise LoraMisfitError(f"{lora.name} {what}, so it can't be checked against the model")
    named = [(change, _name_in(model, change.name)) for change in changes]
    known = [(change, name) for change, name in named if name is not None]
    for change, name in known:
        there = model[name]
        if prod(change.shape) != prod(there) or change.shape[0] != there[0] or (change.deep and len(there) == 2):  # noqa: PLR2004  a matrix
            raise LoraMisfitError(
                f"{lora.name} is for another model: its change of {change.name} is {_text(change.shape)}, and there "
                f"the model has {_text(there)}"
            )
    places = _places(model.values())
    for change in (change for change, name in named if name is None):
        if not _could_be(change, places):
            raise LoraMisfitError(
                f"{lora.name} is for another model: nothing in this one could take its change of {change.name}, "
                f"{_text(change.shape)}"
            )
    if known:
        return None
    return f"no tensor of {lora.name} is named like one of the model: it may change nothing"


def _name_in(model: Mapping[str, Shape], name: str) -> str | None:
    """The model's tensor of this name, or of one that means the same; None: there is none."""
    if name in model:
        return name
    return next((other for other in checkpoint_names(name) if other in model), None)


def _changes(shapes: Mapping[str, Shape]) -> tuple[list[Change], bool]:
    """The changes to the network that draws; and whether there are any to text encoders.

    Raises:
        LoraMisfitError: two factors that don't go together.
    """
    found: list[Change] = []
    in_text = False
    for name, down in shapes.items():
        if _TEXT.match(name):
            in_text = True
            continue
        base = _DOWN.sub("", name)
        if _WHOLE.search(name):
            found.append(Change(_bare(_WHOLE.sub("", name)), down))
        elif base != name:
            up = _partner(shapes, name, base)
            if up is None or len(down) < 2 or len(up) < 2 or down[0] != up[1]:  # noqa: PLR2004  matrices at least
                raise LoraMisfitError(f"{name[:80]} has no partner that it can be multiplied with")
            middle = _middle(shapes, base)
            if middle is not None and middle[:2] != (down[0], down[0]):
                raise LoraMisfitError(f"{name[:80]} has a middle factor that it can't be multiplied with")
            deep = len(down) > 2 or len(up) > 2 or middle is not None  # noqa: PLR2004  more than a matrix
            found.append(Change(_bare(base), (up[0], *down[1:]), deep))
        elif _KRONECKER.search(name):
            raise LoraMisfitError("it is a LoKr, whose shapes can't be checked here: convert it to a plain LoRA")
    return found, in_text


def _partner(shapes: Mapping[str, Shape], name: str, base: str) -> Shape | None:
    ending = name[len(base) :]
    for down, up in (("lora_down", "lora_up"), ("lora_A", "lora_B"), ("lora.down", "lora.up"), ("_b", "_a")):
        if down in ending and (found := shapes.get(base + ending.replace(down, up))) is not None:
            return found
    return None


def _middle(shapes: Mapping[str, Shape], base: str) -> Shape | None:
    """The third factor that some convolutions' changes have."""
    names = (f"{base}.lora_mid.weight", f"{base}.hada_t1", f"{base}.hada_t2")
    return next((shapes[name] for name in names if name in shapes), None)


def _bare(name: str) -> str:
    return _plain(_PREFIX.sub("", name).removesuffix(".weight"))


def _plain(name: str) -> str:
    return _SEPARATORS.sub("_", name.lower()).strip("_")


def _places(shapes: Iterable[Shape]) -> Mapping[tuple[int, bool], int]:
    """The most rows of any tensor, by what one of its rows takes in, and whether it is more than a matrix."""
    places: dict[tuple[int, bool], int] = {}
    for shape in shapes:
        if len(shape) > 1:
            place = (prod(shape[1:]), len(shape) > 2)  # noqa: PLR2004  more than a matrix
            places[place] = max(places.get(place, 0), shape[0])
    return places


def _could_be(change: Change, places: Mapping[tuple[int, bool], int]) -> bool:
    """A part of a larger matrix, as where three projections are kept as one; a convolution takes either form."""
    shape, width = change.shape, prod(change.shape[1:])
    most = max(places.get((width, True), 0), 0 if change.deep else places.get((width, False), 0))
    return len(shape) > 1 and shape[0] <= most


def _text(shape: Shape) -> str:
    return "x".join(map(str, shape))
