"""Picture models are told apart by their tensors, and what is no whole model says what it lacks."""

from pathlib import Path

import numpy as np
import pytest

from engines.contract import ModelFileError, NotAModelError
from engines.formats.diffusion import network_of, packed_tensors, read_checkpoint, read_parts
from engines.formats.picture_kinds import KINDS, Shapes, kind_of
from engines.pictures import EditMode
from tests.support.toy_pictures import ToyModels, save

UNET: Shapes = {"input_blocks.0.0.weight": (320, 4, 3, 3)}


def _attention(width: int, channels: int = 4) -> Shapes:
    name = "input_blocks.1.1.transformer_blocks.0.attn2.to_k.weight"
    return {"input_blocks.0.0.weight": (320, channels, 3, 3), name: (320, width)}


@pytest.mark.parametrize(
    ("name", "shapes"),
    [
        ("sd1", _attention(768)),
        ("sd1-inpaint", _attention(768, 9)),
        ("sd1-pix2pix", _attention(768, 8)),
        ("sd2", _attention(1024)),
        ("sd2-inpaint", _attention(1024, 9)),
        ("sdxl", _attention(2048)),
        ("sdxl-inpaint", _attention(2048, 9)),
        ("sdxl-pix2pix", _attention(2048, 8)),
        ("sd3", {"joint_blocks.0.x_block.attn.qkv.weight": (4608, 1536)}),
        ("flux", {"double_blocks.0.img_attn.qkv.weight": (9216, 3072), "img_in.weight": (3072, 64)}),
        ("flux", {"single_transformer_blocks.0.attn.to_q.weight": (3072, 3072)}),
        ("flux-fill", {"double_blocks.0.img_attn.qkv.weight": (9216, 3072), "img_in.weight": (3072, 384)}),
        ("flux-controls", {"double_blocks.0.img_attn.qkv.weight": (9216, 3072), "img_in.weight": (3072, 128)}),
        ("flex-2", {"double_blocks.0.img_attn.qkv.weight": (9216, 3072), "img_in.weight": (3072, 196)}),
        ("chroma", {"double_blocks.0.a": (1,), "distilled_guidance_layer.in_proj.weight": (5120, 64)}),
        ("chroma-radiance", {"double_blocks.0.a": (1,), "nerf_final_layer_conv.conv.weight": (3, 64, 3, 3)}),
        (
            "flux2",
            {
                "double_blocks.0.a": (1,),
                "double_stream_modulation_img.lin.weight": (1, 1),
                "single_blocks.47.linear1.weight": (1, 1),
            },
        ),
        ("flux2-klein", {"double_blocks.0.a": (1,), "double_stream_modulation_img.lin.weight": (1, 1)}),
        ("qwen-image", {"transformer_blocks.0.img_mod.1.weight": (18432, 3072)}),
        ("z-image", {"cap_embedder.0.weight": (2560,)}),
        ("ovis-image", {"double_blocks.0.img_mlp.gate_proj.weight": (512, 128)}),
        ("ernie-image", {"layers.0.adaLN_sa_ln.weight": (1,)}),
        ("anima", {"llm_adapter.blocks.0.cross_attn.q_proj.weight": (1, 1)}),
        ("wan", {"blocks.0.cross_attn.norm_k.weight": (1,)}),
        ("svd", {**UNET, "input_blocks.8.0.time_mixer.mix_factor": (1,)}),
    ],
)
def test_each_kind_is_known_by_its_tensors(name: str, shapes: Shapes) -> None:
    """The tensors by which the engine itself tells them apart."""
    kind = kind_of(shapes, {})
    assert kind is not None
    assert kind.name == name


def test_every_kind_can_be_recognised() -> None:
    """A kind that no tensors lead to could never be served."""
    marks = test_each_kind_is_known_by_its_tensors.pytestmark[0].args[1]  # type: ignore[attr-defined]  # set by the mark
    assert {name for name, _ in marks} == set(KINDS)


def test_a_language_model_is_no_picture_model() -> None:
    """Its layers look like none of them."""
    assert kind_of({"model.layers.0.self_attn.q_proj.weight": (64, 64)}, {}) is None


def test_what_a_kind_does_is_sound() -> None:
    """Sources without a way to use them, or a size that its own multiple does not divide, would be contradictions."""
    for kind in KINDS.values():
        assert (kind.max_sources > 0) == (kind.edit_mode is not None), kind
        assert kind.size % kind.multiple == 0, kind
        assert not (kind.masks and kind.edit_mode is EditMode.REFERENCE), kind


def test_parts_make_one_model(toy_models: ToyModels) -> None:
    """Roles in the order of the config, bytes of all of them, and the shape of the network."""
    parts = {role: Path(path) for role, path in toy_models.ovis.items()}
    metadata = read_parts(parts)
    assert (metadata.architecture, metadata.roles) == ("ovis-image", ("diffusion_model", "llm", "tae"))
    assert metadata.file_bytes == sum(path.stat().st_size for path in parts.values())
    assert int(metadata.fields["bytes.llm"]) < metadata.tensor_bytes < metadata.file_bytes
    assert (metadata.fields["width"], metadata.fields["head"]) == (128, 128)
    assert dict(packed_tensors(metadata))["double_blocks.0.img_attn.proj.weight"] == (128, 128)


@pytest.mark.parametrize(
    ("without", "words"), [("llm", "needs llm"), ("tae", "needs vae"), ("diffusion_model", "draws")]
)
def test_a_part_that_is_missing_is_named(toy_models: ToyModels, without: str, words: str) -> None:
    """Before anything is started: the engine would load for a minute and then end."""
    parts = {role: Path(path) for role, path in toy_models.ovis.items() if role != without}
    with pytest.raises(ModelFileError, match=words):
        read_parts(parts)


@pytest.mark.parametrize(("name", "words"), [("truncated", "not whole"), ("garbage", "not a safetensors")])
def test_a_broken_part_is_named(toy_models: ToyModels, name: str, words: str) -> None:
    """Cut short, and no model at all."""
    parts = {role: Path(path) for role, path in toy_models.ovis.items()}
    with pytest.raises(ModelFileError, match=words):
        read_parts({**parts, "diffusion_model": toy_models.broken(name)})


def test_a_lora_or_a_lone_part_is_no_model(toy_models: ToyModels) -> None:
    """A folder that is searched may hold both: neither is listed as a model."""
    for path in (toy_models.loras / "toy_style.safetensors", Path(toy_models.ovis["diffusion_model"])):
        with pytest.raises(NotAModelError):
            read_checkpoint(path)


def test_a_whole_checkpoint_is_one_model(tmp_path: Path) -> None:
    """Network, text encoder and autoencoder in one file, by their prefixes."""
    small = np.zeros((2, 2), np.float16)
    tensors = {f"model.diffusion_model.{name}": np.zeros(shape, np.float16) for name, shape in _attention(768).items()}
    rest = ("cond_stage_model.transformer.a.weight", "first_stage_model.decoder.conv_in.weight")
    save(tmp_path / "a.safetensors", {**tensors, **dict.fromkeys(rest, small)})
    metadata = read_checkpoint(tmp_path / "a.safetensors")
    assert (metadata.architecture, metadata.roles, metadata.quantization) == ("sd1", (), "F16")


def test_the_network_is_found_with_and_without_prefix() -> None:
    """A checkpoint marks it, a file of its own need not."""
    bare = {"img_in.weight": (1, 1)}
    assert network_of(bare) == bare
    assert network_of({"model.diffusion_model.img_in.weight": (1, 1), "vae.a": (1,)}) == bare
