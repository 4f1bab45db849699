"""Kinds of picture models, told apart by the names and shapes of their tensors, as the engine tells them apart."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from engines.pictures import EditMode

Shapes = Mapping[str, tuple[int, ...]]
"""Dimensions by name, the row last; names of the network that draws are without prefix."""

_SEVERAL = 4


@dataclass(frozen=True, slots=True)
class PictureKind:
    """A family of networks.

    Attributes:
        multiple: of width and height; what is asked between them is rounded up by the engine.
        latent_factor: pixels along one edge of a latent's cell.
        patch: latent cells along one edge of a token.
        needs: roles of which a model of this kind needs one each; ``vae`` may be a ``tae``.
        draws: whether it makes pictures; False: it makes videos only.
    """

    name: str
    multiple: int
    size: int
    steps: int
    guidance: float
    needs: tuple[tuple[str, ...], ...]
    edit_mode: EditMode | None = EditMode.IMG2IMG
    max_sources: int = 1
    edit_only: bool = False
    masks: bool = True
    latent_factor: int = 8
    patch: int = 2
    draws: bool = True


_CLIP = (("clip_l",),)
_TWO_CLIPS = (("clip_l",), ("clip_g",))
_CLIP_AND_T5 = (("clip_l",), ("t5xxl",))
_LLM = (("llm",),)


def _unet(name: str, size: int, needs: tuple[tuple[str, ...], ...], **more: bool | int | EditMode) -> PictureKind:
    return PictureKind(name, 64, size, 20, 7.0, needs, patch=1, **more)  # type: ignore[arg-type]  # by name


def _flux2(name: str, steps: int) -> PictureKind:
    several = (EditMode.REFERENCE, _SEVERAL)
    return PictureKind(name, 16, 1024, steps, 1.0, _LLM, *several, masks=False, latent_factor=16, patch=1)


KINDS: Mapping[str, PictureKind] = {
    kind.name: kind
    for kind in (
        _unet("sd1", 512, _CLIP),
        _unet("sd1-inpaint", 512, _CLIP, edit_only=True),
        _unet("sd1-pix2pix", 512, _CLIP, edit_mode=EditMode.REFERENCE, edit_only=True, masks=False),
        _unet("sd2", 512, _CLIP),
        _unet("sd2-inpaint", 512, _CLIP, edit_only=True),
        _unet("sdxl", 1024, _TWO_CLIPS),
        _unet("sdxl-inpaint", 1024, _TWO_CLIPS, edit_only=True),
        _unet("sdxl-pix2pix", 1024, _TWO_CLIPS, edit_mode=EditMode.REFERENCE, edit_only=True, masks=False),
        PictureKind("sd3", 8, 1024, 28, 4.5, (("clip_l",), ("clip_g",), ("t5xxl",))),
        PictureKind("flux", 8, 1024, 20, 1.0, _CLIP_AND_T5),
        PictureKind("flux-fill", 8, 1024, 20, 1.0, _CLIP_AND_T5, edit_only=True),
        PictureKind("flux-controls", 8, 1024, 20, 1.0, _CLIP_AND_T5, None, 0, masks=False),
        PictureKind("flex-2", 8, 1024, 20, 3.5, _CLIP_AND_T5),
        PictureKind("chroma", 8, 1024, 26, 4.0, (("t5xxl",),)),
        PictureKind("chroma-radiance", 16, 1024, 26, 4.0, (("t5xxl",),), latent_factor=1, patch=16),
        _flux2("flux2", 20),
        _flux2("flux2-klein", 4),
        PictureKind("qwen-image", 8, 1024, 20, 2.5, _LLM),
        PictureKind("z-image", 8, 1024, 9, 1.0, _LLM),
        PictureKind("ovis-image", 8, 1024, 20, 5.0, _LLM),
        PictureKind("ernie-image", 16, 1024, 20, 4.0, _LLM, latent_factor=16, patch=1),
        PictureKind("anima", 8, 1024, 30, 4.0, _LLM),
        PictureKind("wan", 16, 832, 30, 6.0, (("t5xxl",),), None, 0, masks=False, draws=False),
        PictureKind("svd", 64, 1024, 20, 2.5, (), None, 0, masks=False, draws=False),
    )
}  # fmt: skip


def kind_of(shapes: Shapes, text: Shapes) -> PictureKind | None:
    """The kind of a network; None: none that is known.

    Args:
        shapes: tensors of the network that draws.
        text: tensors of text encoders in the same file.
    """
    name = _transformer(shapes) or _unet_name(shapes, text)
    return KINDS[name] if name else None


# The first whose tensor is there, as in the engine; what needs a closer look follows.
_MARKS: tuple[tuple[str, str], ...] = (
    ("nerf_final_layer_conv.", "chroma-radiance"),
    ("joint_blocks.", "sd3"),
    ("transformer_blocks.0.img_mod.1.weight", "qwen-image"),
    ("llm_adapter.blocks.0.cross_attn.q_proj.weight", "anima"),
    ("double_blocks.0.img_mlp.gate_proj.weight", "ovis-image"),
    ("cap_embedder.0.weight", "z-image"),
    ("layers.0.adaLN_sa_ln.weight", "ernie-image"),
    ("blocks.0.cross_attn.norm_k.weight", "wan"),
    ("input_blocks.8.0.time_mixer.mix_factor", "svd"),
)
_FLUX_BY_INPUT: Mapping[int, str] = {384: "flux-fill", 128: "flux-controls", 196: "flex-2"}
_INPAINT_CHANNELS = 9
_PIX2PIX_CHANNELS = 8
_SD2_WIDTH = 1024
_XL_WIDTH = 2048


def _transformer(shapes: Shapes) -> str | None:
    for mark, name in _MARKS:
        if mark in shapes or (mark.endswith(".") and _begins(shapes, mark)):
            return name
    if not _begins(shapes, "double_blocks."):
        return "flux" if _begins(shapes, "single_transformer_blocks.") else None
    if "double_stream_modulation_img.lin.weight" in shapes:
        return "flux2" if "single_blocks.47.linear1.weight" in shapes else "flux2-klein"
    if _begins(shapes, "distilled_guidance_layer."):
        return "chroma"
    inputs = shapes.get("img_in.weight", (0, 0))[-1]
    return _FLUX_BY_INPUT.get(inputs, "flux")


def _unet_name(shapes: Shapes, text: Shapes) -> str | None:
    """By the width of what the attention reads: 768 of SD 1, 1024 of SD 2, 2048 of SDXL; and by the input channels."""
    if not _begins(shapes, "input_blocks.") and not _begins(shapes, "down_blocks."):
        return None
    attention = next((shape for name, shape in shapes.items() if name.endswith("attn2.to_k.weight")), None)
    width = attention[-1] if attention else _width_of_text(text)
    family = "sdxl" if width == _XL_WIDTH else "sd2" if width == _SD2_WIDTH else "sd1"
    first = shapes.get("input_blocks.0.0.weight") or shapes.get("conv_in.weight") or (0, 0)
    if first[1] == _INPAINT_CHANNELS:
        return f"{family}-inpaint"
    if first[1] == _PIX2PIX_CHANNELS and family != "sd2":
        return f"{family}-pix2pix"
    return family


def _width_of_text(text: Shapes) -> int:
    if any(name.startswith(("conditioner.embedders.1", "cond_stage_model.1")) for name in text):
        return _XL_WIDTH
    tokens = next((shape for name, shape in text.items() if name.endswith("token_embedding.weight")), (0, 0))
    return tokens[-1]


def _begins(names: Iterable[str], prefix: str) -> bool:
    return any(name.startswith(prefix) for name in names)
