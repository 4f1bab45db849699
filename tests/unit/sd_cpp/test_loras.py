"""Whether a LoRA may be given to a model: what fits, what matches nothing, and what would end the engine."""

from pathlib import Path

import numpy as np
import pytest

from engines.contract import ModelMetadata
from engines.formats.diffusion import read_parts
from engines.pictures import LoraMisfitError
from engines.sd_cpp.loras import check_lora
from tests.support.toy_pictures import ToyModels, save


@pytest.fixture
def ovis(toy_models: ToyModels) -> ModelMetadata:
    """The toy model's facts."""
    return read_parts({role: Path(path) for role, path in toy_models.ovis.items()})


def write(path: Path, **tensors: tuple[int, ...]) -> Path:
    """A file with these shapes; ``__`` stands for a dot."""
    file = path / "lora.safetensors"
    save(file, {name.replace("__", "."): np.zeros(shape, np.float16) for name, shape in tensors.items()})
    return file


def test_the_toys_are_told_apart(toy_models: ToyModels, ovis: ModelMetadata) -> None:
    """One fits, one matches nothing and is noted, and on the other model the first is refused."""
    klein = read_parts({role: Path(path) for role, path in toy_models.klein.items()})
    style, nomatch = toy_models.loras / "toy_style.safetensors", toy_models.loras / "toy_nomatch.safetensors"
    assert check_lora(ovis, style) is None
    assert "may change nothing" in (check_lora(ovis, nomatch) or "")
    with pytest.raises(LoraMisfitError, match=r"is for another model.*128x128"):
        check_lora(klein, style)


@pytest.mark.parametrize(
    "spelling",
    [
        "lora_unet_double_blocks_0_img_attn_proj.lora_{}",
        "transformer.double_blocks.0.img_attn.proj.lora_{}",
        "transformer.transformer_blocks.0.attn.to_out.0.lora_{}",
    ],
)
def test_spellings_lead_to_the_same_tensor(tmp_path: Path, ovis: ModelMetadata, spelling: str) -> None:
    """Underlines, dots and prefixes differ between the tools that make LoRAs."""
    ends = ("down", "up") if "unet" in spelling else ("A", "B")
    for shape, fits in (((128, 4), True), ((64, 4), False)):
        names = [f"{spelling.format(end)}.weight".replace(".", "__") for end in ends]
        file = write(tmp_path, **{names[0]: (4, 128), names[1]: shape})
        if fits:
            assert check_lora(ovis, file) is None
        else:
            with pytest.raises(LoraMisfitError):
                check_lora(ovis, file)


@pytest.mark.parametrize(
    ("tensors", "words"),
    [
        ({"diffusion_model__x__lora_A__weight": (4, 777), "diffusion_model__x__lora_B__weight": (128, 4)}, "nothing"),
        ({"diffusion_model__x__lora_A__weight": (4, 128), "diffusion_model__x__lora_B__weight": (128, 8)}, "partner"),
        ({"diffusion_model__x__lora_A__weight": (4, 128)}, "partner"),
        (
            {"lora_te1_text_model_x__lora_down__weight": (4, 8), "lora_te1_text_model_x__lora_up__weight": (8, 4)},
            "text",
        ),
        (
            {"double_blocks__0__img_attn__proj__lokr_w1": (4, 4), "double_blocks__0__img_attn__proj__lokr_w2": (4, 4)},
            "LoKr",
        ),
        ({"some__weight": (4, 4)}, "holds nothing"),
        (
            {
                "double_blocks__0__img_attn__proj__lora_A__weight": (4, 128, 1, 1),
                "double_blocks__0__img_attn__proj__lora_B__weight": (128, 4, 1, 1),
            },
            "is for another model",
        ),
        (
            {
                "diffusion_model__x__lora_A__weight": (4, 128, 1, 1),
                "diffusion_model__x__lora_B__weight": (128, 4, 1, 1),
            },
            "nothing",
        ),
        (
            {
                "double_blocks__0__img_attn__proj__lora_down__weight": (4, 128),
                "double_blocks__0__img_attn__proj__lora_mid__weight": (5, 7),
                "double_blocks__0__img_attn__proj__lora_up__weight": (128, 4),
            },
            "middle",
        ),
    ],
)
def test_what_can_not_be_checked_or_does_not_fit_is_refused(
    tmp_path: Path, ovis: ModelMetadata, tensors: dict[str, tuple[int, ...]], words: str
) -> None:
    """Each would be tried by the engine, and some would end it."""
    with pytest.raises(LoraMisfitError, match=words):
        check_lora(ovis, write(tmp_path, **tensors))
