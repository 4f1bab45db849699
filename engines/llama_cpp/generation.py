"""How a generation request is put to llama-server.

Always as a stream with progress: it is the only form in which the server notices that its client left, and the
progress chunks tell slow from stuck.
"""

from __future__ import annotations

from typing import Any

_PROGRESS = b'"prompt_progress":'


def prepare_generation(body: dict[str, Any]) -> dict[str, Any]:
    """The body for the engine: a stream, with progress; usage too when the client asked for no stream."""
    sent = {**body, "stream": True, "return_progress": True}
    if not body.get("stream"):
        options = body.get("stream_options")
        sent["stream_options"] = {**(options if isinstance(options, dict) else {}), "include_usage": True}
    return sent


def is_progress(data: bytes) -> bool:
    """Whether an SSE payload is a progress chunk.

    llama-server writes ``prompt_progress`` after the choices, as the last key, and never with content; in a content
    chunk the same bytes can only stand inside a JSON string, where the quotes are escaped.
    """
    return _PROGRESS in data
