"""How a generation request is put to the MLX server: always as a stream with progress, as to every engine."""

from __future__ import annotations

import json
from typing import Any

_PROGRESS = b'"prompt_progress":'
_STOPPED = b'"stop_reason":'


def prepare_generation(body: dict[str, Any], *, progress: bool = True) -> dict[str, Any]:
    """The body for the engine: a stream, with progress if so told; usage too when the client asked for no stream."""
    sent = {**body, "stream": True, "return_progress": progress}
    if not body.get("stream"):
        options = body.get("stream_options")
        sent["stream_options"] = {**(options if isinstance(options, dict) else {}), "include_usage": True}
    return sent


def is_progress(data: bytes) -> bool:
    """Whether an SSE payload is a progress report: in content the same bytes stand inside a string, escaped."""
    return _PROGRESS in data


def stop_string(data: bytes) -> str | None:
    """The stop string that ended a choice: the server names it beside the finish reason, outside of any text."""
    if _STOPPED not in data:
        return None
    chunk = json.loads(data)
    choices = chunk.get("choices") if isinstance(chunk, dict) else None
    for choice in choices if isinstance(choices, list) else ():
        word = choice.get("stop_reason") if isinstance(choice, dict) else None
        if isinstance(word, str) and word:
            return word
    return None
