r"""What sd-server's log tells of a picture. It is the only place that does: no answer of its API has progress.

Steps are written without an end of line: ``\r  |====>   | 3/20 - 1.25s/it``; the same bar loads files (``MB/s``) and
decodes tiles, so what a step is of must be known from the lines before.
"""

from __future__ import annotations

import re

from engines.pictures import PictureSign, Stage

_STEP = re.compile(r"\|\s+(\d{1,6})/(\d{1,6}) - (\d+(?:\.\d+)?)(it/s|s/it)")
_IMAGE = re.compile(r"generating image: (\d+)/\d+ - seed")
_LORAS = re.compile(r"\((\d+) / (\d+)\) LoRA tensors have been applied")
_MIB = 2**20
_OUT_OF_MEMORY = (
    re.compile(r"insufficient memory \(attempted to allocate +(\d+(?:\.\d+)?) MB\)"),
    re.compile(r"allocating (\d+(?:\.\d+)?) MiB on device"),
    re.compile(r"failed to allocate .*?(\d+(?:\.\d+)?)? ?Mi?B"),
    re.compile(r"alloc(?:ate)? (?:the )?compute buffer failed|cudaMalloc failed|std::bad_alloc|ErrorOutOfDeviceMemory"),
)
_TEXTS = (
    ("generate_image completed", Stage.FINISHED),
    ("get_learned_condition completed", Stage.ENCODED),
    ("sampling completed", Stage.DECODING),
    (" decoded, taking", Stage.DECODED),
    ("generate_image ", Stage.STARTED),
)
_CHEAP = ("it", "ecoded", "completed", "generat", "lloc", "LoRA tensors", "Memory")


def read_sign(line: str) -> PictureSign | None:
    """The sign in this line; None: it has none."""
    if not any(text in line for text in _CHEAP):
        return None
    if (step := _STEP.search(line)) is not None:
        number = float(step[3])
        seconds = number if step[4] == "s/it" else 1 / number if number else None
        return PictureSign(Stage.STEP, int(step[1]), int(step[2]), seconds)
    if (image := _IMAGE.search(line)) is not None:
        return PictureSign(Stage.ENCODED, image=int(image[1]))
    if (loras := _LORAS.search(line)) is not None:
        return PictureSign(Stage.LORAS, int(loras[1]), int(loras[2]))
    for pattern in _OUT_OF_MEMORY:
        if (found := pattern.search(line)) is not None:
            asked = found[1] if found.re.groups and found[1] else None
            return PictureSign(Stage.OUT_OF_MEMORY, asked_bytes=None if asked is None else int(float(asked) * _MIB))
    return next((PictureSign(stage) for text, stage in _TEXTS if text in line), None)
