"""What llama-server's answers look like: bodies and chunks in its own shapes and key order. Pure.

Recorded from build b10068 (``system_fingerprint`` b1-571d0d5).
"""

from __future__ import annotations

import hashlib
import json
import re
import secrets
import time
from dataclasses import dataclass, field
from typing import Any

FINGERPRINT = "b1-571d0d5"
EMBEDDING_LENGTH = 8
_WORD = re.compile(r"\s*\S+")

JsonObject = dict[str, Any]


class RequestError(Exception):
    """A request that llama-server refuses, with its status and error type."""

    def __init__(self, status: int, message: str, kind: str, **more: Any) -> None:
        super().__init__(message)
        self.status = status
        self.body = error_body(status, message, kind, **more)


def error_body(status: int, message: str, kind: str, **more: Any) -> JsonObject:
    """``{"error": {"code", "message", "type"}}``."""
    return {"error": {"code": status, "message": message, "type": kind, **more}}


LOADING = {"error": {"message": "Loading model", "type": "unavailable_error", "code": 503}}
BAD_KEY = {"error": {"message": "Invalid API Key", "type": "authentication_error", "code": 401}}
NOT_FOUND = {"error": {"message": "File Not Found", "type": "not_found_error", "code": 404}}


def not_supported(what: str, flag: str) -> RequestError:
    """A route whose flag was not given."""
    message = f"This server does not support {what}. Start it with `{flag}`"
    return RequestError(501, message, "not_supported_error")


def parse_body(data: bytes) -> JsonObject:
    """The request's JSON object.

    Raises:
        RequestError: broken JSON is 500, as llama-server says it.
    """
    try:
        body = json.loads(data)
    except ValueError as error:
        where = getattr(error, "pos", 0) + 1
        message = f"[json.exception.parse_error.101] parse error at line 1, column {where}: syntax error"
        raise RequestError(500, message, "server_error") from None
    if not isinstance(body, dict):
        raise RequestError(500, "[json.exception.type_error.302] type must be object", "server_error")
    return body


def words(text: str) -> list[str]:
    """The fake's tokens: words with the blanks before them."""
    return _WORD.findall(text)


def token_id(piece: str) -> int:
    """A stable number for a token."""
    return int.from_bytes(hashlib.blake2s(piece.encode(), digest_size=2).digest())


@dataclass(frozen=True, slots=True)
class Piece:
    """One content chunk: its text and the delta that carries it."""

    text: str
    delta: JsonObject


@dataclass(slots=True)
class Choice:
    """One answer in the making."""

    index: int
    prompt: list[str]
    pieces: list[Piece]
    finish_reason: str
    stopping_word: str = ""
    sent: int = 0


@dataclass(slots=True)
class Generation:
    """One generation request: what was asked, and what came of it so far."""

    chat: bool
    body: JsonObject
    model: str
    choices: list[Choice]
    id: str = field(default_factory=lambda: "chatcmpl-" + secrets.token_hex(16))
    created: int = field(default_factory=lambda: int(time.time()))
    cached: int = 0
    prompt_seconds: float = 0.0
    decode_seconds: float = 0.0

    @property
    def stream(self) -> bool:
        """Whether the client asked for chunks."""
        return bool(self.body.get("stream"))

    @property
    def progress(self) -> bool:
        """Whether the client asked for prompt progress."""
        return self.stream and bool(self.body.get("return_progress"))

    @property
    def prompt_tokens(self) -> int:
        """Tokens of the (first) prompt."""
        return len(self.choices[0].prompt)

    def usage(self, choice: Choice) -> JsonObject:
        """Token counts of one choice."""
        asked, said = len(choice.prompt), choice.sent
        return {
            "completion_tokens": said,
            "prompt_tokens": asked,
            "total_tokens": asked + said,
            "prompt_tokens_details": {"cached_tokens": self.cached},
        }

    def timings(self, choice: Choice) -> JsonObject:
        """Speeds of one choice, in milliseconds and tokens per second."""
        read, said = len(choice.prompt) - self.cached, choice.sent
        prompt_ms, decode_ms = max(self.prompt_seconds * 1000, 0.001), max(self.decode_seconds * 1000, 0.001)
        return {
            "cache_n": self.cached,
            "prompt_n": read,
            "prompt_ms": prompt_ms,
            "prompt_per_token_ms": prompt_ms / max(read, 1),
            "prompt_per_second": read * 1000 / prompt_ms,
            "predicted_n": said,
            "predicted_ms": decode_ms,
            "predicted_per_token_ms": decode_ms / max(said, 1),
            "predicted_per_second": said * 1000 / decode_ms,
        }

    def chunk(self, choice: JsonObject | None, **more: Any) -> JsonObject:
        """A stream's payload around one choice, or around none."""
        head: JsonObject = {"choices": [] if choice is None else [choice], "created": self.created}
        about = {"model": self.model, "system_fingerprint": FINGERPRINT}
        if self.chat:
            return {**head, "id": self.id, **about, "object": "chat.completion.chunk", **more}
        return {**head, **about, "object": "text_completion", **more.pop("before_id", {}), "id": self.id, **more}

    def progress_chunk(self, processed: int, milliseconds: int) -> JsonObject:
        """How much of the prompt has been read."""
        state = {"total": self.prompt_tokens, "cache": self.cached, "processed": processed, "time_ms": milliseconds}
        return self.chunk(self._empty(self.choices[0]), prompt_progress=state)

    def role_chunk(self, choice: Choice) -> JsonObject:
        """The first chunk of a chat choice."""
        return self.chunk(self._empty(choice))

    def piece_chunk(self, choice: Choice, piece: Piece) -> JsonObject:
        """One token of content."""
        logprobs = self._logprobs([piece])
        more = {"timings": self.timings(choice)} if self.body.get("timings_per_token") else {}
        if not self.chat:
            shape = {"text": piece.text, "index": choice.index, "logprobs": logprobs, "finish_reason": None}
            return self.chunk(shape, **more)
        shape = {"finish_reason": None, "index": choice.index, "delta": piece.delta}
        return self.chunk(shape if logprobs is None else {**shape, "logprobs": logprobs}, **more)

    def final_chunks(self, choice: Choice) -> list[JsonObject]:
        """The chunk with the finish reason, and for chats the usage chunk if it was asked for."""
        usage, timings = self.usage(choice), self.timings(choice)
        if not self.chat:
            shape = {"text": "", "index": choice.index, "logprobs": None, "finish_reason": choice.finish_reason}
            return [self.chunk(shape, before_id={"usage": usage}, timings=timings)]
        shape = {"finish_reason": choice.finish_reason, "index": choice.index, "delta": {}}
        options = self.body.get("stream_options") or {}
        verbose = {"__verbose": {"stopping_word": choice.stopping_word}} if self.body.get("verbose") else {}
        if not options.get("include_usage"):
            return [self.chunk(shape, timings=timings, **verbose)]
        return [self.chunk(shape, **verbose), self.chunk(None, usage=usage, timings=timings)]

    def whole(self) -> JsonObject:
        """The answer of a request that asked for no stream."""
        first = self.choices[0]
        return {
            "choices": [self._whole_choice(choice) for choice in self.choices],
            "created": self.created,
            "model": self.model,
            "system_fingerprint": FINGERPRINT,
            "object": "chat.completion" if self.chat else "text_completion",
            "usage": self.usage(first),
            "id": self.id,
            "timings": self.timings(first),
        }

    def _whole_choice(self, choice: Choice) -> JsonObject:
        pieces = choice.pieces[: choice.sent]
        logprobs = self._logprobs(pieces)
        if not self.chat:
            text = "".join(piece.text for piece in pieces)
            return {"text": text, "index": choice.index, "logprobs": logprobs, "finish_reason": choice.finish_reason}
        shape = {"finish_reason": choice.finish_reason, "index": choice.index, "message": _message(pieces)}
        return shape if logprobs is None else {**shape, "logprobs": logprobs}

    def _empty(self, choice: Choice) -> JsonObject:
        if self.chat:
            delta = {"role": "assistant", "content": None}
            return {"finish_reason": None, "index": choice.index, "delta": delta}
        return {"text": "", "index": choice.index, "logprobs": None, "finish_reason": None}

    def _logprobs(self, pieces: list[Piece]) -> JsonObject | None:
        asked = self.body.get("logprobs")
        if not asked:
            return None
        count = int(self.body.get("top_logprobs", 5)) if self.chat else int(asked)
        return {"content": [_logprob(piece.text, count) for piece in pieces]}


def models(alias: str, aliases: tuple[str, ...], slot_context: int) -> JsonObject:
    """``/v1/models``."""
    meta = {
        "vocab_type": 2,
        "n_vocab": 65536,
        "n_ctx": slot_context,
        "n_ctx_train": 8192,
        "n_embd": EMBEDDING_LENGTH,
        "n_params": 1024,
        "size": 2048,
        "ftype": "F32",
    }
    row = {"id": alias, "aliases": list(aliases), "tags": [], "object": "model", "created": int(time.time())}
    texts = dict.fromkeys(("modified_at", "size", "digest"), "")
    details = {"parent_model": "", "format": "gguf", "family": "", "families": [""]}
    old = {
        "name": alias,
        "model": alias,
        **texts,
        "type": "model",
        "description": "",
        "tags": [""],
        "capabilities": ["completion"],
        "parameters": "",
        "details": {**details, "parameter_size": "", "quantization_level": ""},
    }
    return {"models": [old], "object": "list", "data": [{**row, "owned_by": "llamacpp", "meta": meta}]}


def _message(pieces: list[Piece]) -> JsonObject:
    content = "".join(piece.delta.get("content", "") for piece in pieces)
    reasoning = "".join(piece.delta.get("reasoning_content", "") for piece in pieces)
    message: JsonObject = {"role": "assistant", "content": content}
    if reasoning:
        message["reasoning_content"] = reasoning
    parts = [piece.delta["tool_calls"][0] for piece in pieces if "tool_calls" in piece.delta]
    if parts:
        arguments = "".join(part["function"]["arguments"] for part in parts)
        function = {"name": parts[0]["function"]["name"], "arguments": arguments}
        message["tool_calls"] = [{"type": "function", "function": function, "id": parts[0]["id"]}]
    return message


def _logprob(text: str, count: int) -> JsonObject:
    def entry(piece: str, value: float) -> JsonObject:
        return {"id": token_id(piece), "token": piece, "bytes": list(piece.encode()), "logprob": value}

    tops = [entry(text, -0.5)] + [entry(f"~{at}", -1.5 - at) for at in range(1, count)]
    return {**entry(text, -0.5), "top_logprobs": tops[:count]}
