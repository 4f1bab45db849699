"""How long a prompt is, roughly and at once: what an engine will have to read before it can answer. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# English text has about four characters a token; others have fewer, and JSON's own signs make up for some of it.
_CHARACTERS_PER_TOKEN = 4
# Below keys of these names stands the content of a picture, a sound or a file, in base64.
_MEDIA = frozenset(
    {"image_url", "input_image", "image", "input_audio", "video_url", "file", "source", "multimodal_data"}
)


def estimate_tokens(body: Mapping[str, Any], payload_bytes: int, image_tokens: int, enough: int) -> int:
    """Tokens of a body as it is sent: text by its length, each picture, sound or file by a constant.

    Args:
        body: the parsed body.
        payload_bytes: its length as JSON.
        image_tokens: tokens of one picture.
        enough: more than this many need not be counted.
    """
    rough = payload_bytes // _CHARACTERS_PER_TOKEN
    if payload_bytes <= _CHARACTERS_PER_TOKEN * image_tokens:
        return rough  # too short to hold a picture that is not worth its constant
    characters, tokens = 0, 0
    todo: list[Any] = [value for key, value in body.items() if key != "model"]
    while todo and tokens + characters // _CHARACTERS_PER_TOKEN < enough:
        value = todo.pop()
        if isinstance(value, str):
            if value.startswith("data:"):
                tokens += image_tokens
            else:
                characters += len(value)
        elif isinstance(value, dict):
            for key, inside in value.items():
                if key in _MEDIA and inside is not None:
                    tokens += image_tokens
                else:
                    characters += len(key)
                    todo.append(inside)
        elif isinstance(value, list) and value and isinstance(value[0], int):
            tokens += len(value)
        elif isinstance(value, list):
            todo.extend(value)
        else:
            tokens += 1
    return min(rough, tokens + characters // _CHARACTERS_PER_TOKEN)
