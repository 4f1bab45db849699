"""What sd-server's log tells of a picture: its own lines, as they were seen."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engines.pictures import PictureSign, Stage
from engines.sd_cpp.progress import read_sign

SEEN = [
    ("[INFO ] stable-diffusion.cpp:3367 - generate_image 128x128", PictureSign(Stage.STARTED)),
    ("[INFO ] stable-diffusion.cpp:3168 - get_learned_condition completed, taking 0.22s", PictureSign(Stage.ENCODED)),
    ("[INFO ] stable-diffusion.cpp:3401 - generating image: 2/3 - seed 42", PictureSign(Stage.ENCODED, image=2)),
    ("  |=====>   | 1/4 - 25.00it/s", PictureSign(Stage.STEP, 1, 4, 0.04)),
    ("  |=====>                 | 12/20 - 3.50s/it", PictureSign(Stage.STEP, 12, 20, 3.5)),
    ("[INFO ] stable-diffusion.cpp:3432 - sampling completed, taking 0.13s", PictureSign(Stage.DECODING)),
    ("[INFO ] stable-diffusion.cpp:3208 - latent 1 decoded, taking 2.58s", PictureSign(Stage.DECODED)),
    ("[INFO ] stable-diffusion.cpp:3591 - generate_image completed in 2.82s", PictureSign(Stage.FINISHED)),
    ("[INFO ] lora.hpp:1 - (6 / 8) LoRA tensors have been applied", PictureSign(Stage.LORAS, 6, 8)),
    (
        "[ERROR] ggml_extend.hpp:69 - ggml_aligned_malloc: insufficient memory (attempted to allocate   428.16 MB)",
        PictureSign(Stage.OUT_OF_MEMORY, asked_bytes=448958300),
    ),
]


@pytest.mark.parametrize(("line", "sign"), SEEN)
def test_each_line_has_its_sign(line: str, sign: PictureSign) -> None:
    """Steps, stages, several pictures, LoRAs, and what could not be had."""
    found = read_sign(line)
    assert found is not None
    assert (found.stage, found.step, found.steps, found.image) == (sign.stage, sign.step, sign.steps, sign.image)
    assert found.step_seconds == pytest.approx(sign.step_seconds)
    assert (found.asked_bytes or 0) == pytest.approx(sign.asked_bytes or 0, abs=2**10)


@pytest.mark.parametrize(
    "line",
    [
        "  |============>        | 49/196 - 10.98MB/s",
        "  |============>        | 49/196 - 1.08GB/s",
        "[INFO ] model.cpp:993  - loading tensors completed, taking 0.60s (...)",
        "",
        "a picture of 1/4 - 3it/s",
    ],
)
def test_other_lines_have_none(line: str) -> None:
    """Files are loaded with the same bar, in bytes a second."""
    assert read_sign(line) is None


@given(st.text(max_size=80))
def test_any_line_is_read(line: str) -> None:
    """A log may hold anything."""
    read_sign(line)
    read_sign(f"| 1/4 - {line}s/it ecoded completed allocate (attempted to allocate {line} MB)")
