"""How a generation request is put to llama-server.

As a stream with progress: it is the only form in which the server notices that its client left, and the progress
chunks tell slow from stuck. Where the answer is too short for either to matter, whole.
"""

from __future__ import annotations

import json
from collections.abc import Generator
from typing import Any, TypeVar

_T = TypeVar("_T")
_PROGRESS = b'"prompt_progress":'
_STOPPED = b'"stopping_word":"'
_OF_STREAMS = frozenset({"id_slot", "return_progress", "stream_options"})


def prepare_generation(body: dict[str, Any], *, progress: bool = True) -> dict[str, Any]:
    """The body for the engine: a stream, with progress if so told; usage too when the client asked for no stream.

    A client's ``id_slot`` is left out: which slot serves whom is not a client's to say.
    """
    sent = {**body, "stream": True, "return_progress": progress}
    sent.pop("id_slot", None)
    if not body.get("stream"):
        options = body.get("stream_options")
        sent["stream_options"] = {**(options if isinstance(options, dict) else {}), "include_usage": True}
    return sent


def prepare_whole(body: dict[str, Any]) -> dict[str, Any]:
    """The body for a whole answer: ``timings`` are in it unasked. ``id_slot`` is left out as above."""
    sent = {key: value for key, value in body.items() if key not in _OF_STREAMS}
    sent["stream"] = False
    return sent


def name_stop(sent: dict[str, Any]) -> dict[str, Any]:
    """The body, so that the end of the answer names the stop string: a chat's chunks do so in no other way."""
    return {**sent, "verbose": True}


def stop_string(data: bytes) -> str | None:
    """The stop string that ended the answer, from the last chunks of one that was asked for with ``name_stop``.

    The key can only stand in the object that this adds: in a text its quotes would be escaped.
    """
    if _STOPPED not in data:
        return None
    chunk = json.loads(data)
    said = chunk.get("__verbose") if isinstance(chunk, dict) else None
    word = said.get("stopping_word") if isinstance(said, dict) else None
    return word if isinstance(word, str) and word else None


def answer_prefix(body: dict[str, Any]) -> str:
    """A last message of the assistant's is continued: llama-server's whole answer repeats it, its stream does not."""
    messages = body.get("messages")
    last = messages[-1] if isinstance(messages, list) and messages else None
    if not isinstance(last, dict) or last.get("role") != "assistant":
        return ""
    content = last.get("content")
    if isinstance(content, list):
        texts = (part.get("text") for part in content if isinstance(part, dict))
        return "".join(text for text in texts if isinstance(text, str))
    return content if isinstance(content, str) else ""


def can_stream(body: dict[str, Any]) -> bool:
    """All but tools with logprobs, which llama-server answers whole and refuses to stream (seen in b10068)."""
    return not (body.get("tools") and body.get("logprobs"))


def is_progress(data: bytes) -> bool:
    """Whether an SSE payload is a progress chunk.

    llama-server writes ``prompt_progress`` after the choices, as the last key, and never with content; in a content
    chunk the same bytes can only stand inside a JSON string, where the quotes are escaped.
    """
    return _PROGRESS in data


def count_tokens(body: dict[str, Any]) -> Generator[tuple[str, dict[str, Any]], bytes, int]:
    """What to ask llama-server, and what its answers mean: a chat's prompt by its template, then that one's tokens.

    A picture counts as the mark that stands for it in the prompt.

    Raises:
        ValueError: an answer has another shape.
    """
    answer = yield "/apply-template", {key: value for key, value in body.items() if key != "stream"}
    prompt = _member(answer, "prompt", str)
    answer = yield "/tokenize", {"content": prompt, "add_special": True, "parse_special": True}
    return len(_member(answer, "tokens", list))


def _member(answer: bytes, key: str, kind: type[_T]) -> _T:
    document = json.loads(answer)
    value = document.get(key) if isinstance(document, dict) else None
    if isinstance(value, kind):
        return value
    raise ValueError(f"no {key}")
