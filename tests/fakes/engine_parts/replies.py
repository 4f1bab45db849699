"""What the fake says: replies, tool calls, vectors and scores, each decided by the request and the faults. Pure."""

from __future__ import annotations

import base64
import hashlib
import json
import math
import re
import secrets
import struct
from typing import Any

from tests.fakes.engine_parts.answers import (
    EMBEDDING_LENGTH,
    Choice,
    Generation,
    JsonObject,
    Piece,
    RequestError,
    words,
)
from tests.fakes.engine_parts.faults import Faults


def start_generation(*, chat: bool, body: JsonObject, model: str, faults: Faults) -> Generation:
    """What the fake will say to this request.

    Raises:
        RequestError: llama-server would refuse it.
    """
    limit = body.get("max_tokens", body.get("n_predict", -1))
    if chat:
        prompts = [chat_prompt(body)] * int(body.get("n") or 1)
        if body.get("tools") and body.get("stream") and body.get("logprobs"):
            raise RequestError(400, "logprobs is not supported with tools + stream", "invalid_request_error")
    else:
        asked = body.get("prompt")
        if asked is None:
            raise RequestError(400, '"prompt" must be provided', "invalid_request_error")
        prompts = asked if isinstance(asked, list) and asked and isinstance(asked[0], str) else [str(asked)]
    choices = [_choice(index, prompt, body, faults, limit, chat=chat) for index, prompt in enumerate(prompts)]
    return Generation(chat=chat, body=body, model=model, choices=choices)


def embeddings(body: JsonObject, model: str) -> JsonObject:
    """Unit vectors that depend on the text alone.

    Raises:
        RequestError: nothing to embed.
    """
    given = body.get("input", body.get("content"))
    if given is None:
        raise RequestError(400, '"input" or "content" must be provided', "invalid_request_error")
    texts = given if isinstance(given, list) else [given]
    as_base64 = body.get("encoding_format") == "base64"
    rows = []
    for index, text in enumerate(texts):
        vector = _vector(str(text))
        packed = base64.b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode()
        rows.append({"embedding": packed if as_base64 else vector, "index": index, "object": "embedding"})
    tokens = sum(max(1, len(words(str(text)))) for text in texts)
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    return {"model": model, "object": "list", "usage": usage, "data": rows}


def rerank(body: JsonObject, model: str) -> JsonObject:
    """Scores by the number of words shared with the query.

    Raises:
        RequestError: no query or no documents.
    """
    query, documents = body.get("query"), body.get("documents")
    if not isinstance(query, str) or not isinstance(documents, list):
        raise RequestError(400, '"query" and "documents" must be provided', "invalid_request_error")
    asked = set(query.split())
    scores = [len(asked & set(str(text).split())) / max(1, len(asked)) for text in documents]
    ranked = sorted(range(len(scores)), key=lambda index: -scores[index])
    results = [{"index": index, "relevance_score": scores[index]} for index in ranked]
    tokens = sum(len(words(str(text))) for text in [query, *documents])
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    return {"model": model, "object": "list", "usage": usage, "results": results}


def chat_prompt(body: JsonObject) -> str:
    """The prompt of a chat: its texts, a line each.

    Raises:
        RequestError: no messages.
    """
    messages = body.get("messages")
    if messages is None:
        raise RequestError(400, "'messages' is required", "invalid_request_error")
    if not isinstance(messages, list):
        raise RequestError(400, "Expected 'messages' to be an array", "invalid_request_error")
    return "\n".join(_text_of(message) for message in messages)


def _text_of(message: Any) -> str:
    content = message.get("content") if isinstance(message, dict) else None
    if isinstance(content, list):
        return " ".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
    return content if isinstance(content, str) else ""


def _choice(index: int, prompt: str, body: JsonObject, faults: Faults, limit: Any, *, chat: bool) -> Choice:
    call = _tool_to_call(body, faults) if chat else None
    pieces = [Piece(text, {"reasoning_content": text}) for text in words(faults.reasoning or "")] if chat else []
    if call is not None:
        pieces += _call_pieces(call)
    else:
        pieces += [Piece(text, {"content": text}) for text in _reply(prompt, faults)]
    finish = "stop" if call is None else "tool_calls"
    pieces, stopped = _stopped(pieces, body.get("stop"))
    if isinstance(limit, int) and limit >= 0:
        if body.get("ignore_eos"):
            pieces = [pieces[at % len(pieces)] for at in range(limit)]
            finish = "length"
        elif len(pieces) >= limit:
            pieces, finish, stopped = pieces[:limit], "length", ""
    return Choice(index, ["<s>", *words(prompt)], pieces, finish, stopped)


def _stopped(pieces: list[Piece], stop: Any) -> tuple[list[Piece], str]:
    """The pieces before the first stop string, whose own piece is withheld, and that string."""
    said = ""
    for at, piece in enumerate(pieces):
        said += piece.text
        for word in [stop] if isinstance(stop, str) else stop or ():
            if word in said:
                return pieces[:at], word
    return pieces, ""


def _reply(prompt: str, faults: Faults) -> list[str]:
    if faults.reply is not None:
        said = words(faults.reply)
    else:
        said = words(f"You said: {prompt.rsplit(chr(10), 1)[-1]}".rstrip())
    if faults.chunks is None:
        return said
    more = [f" word{at}" for at in range(len(said), faults.chunks)]
    return (said + more)[: faults.chunks]


def _tool_to_call(body: JsonObject, faults: Faults) -> JsonObject | None:
    tools, choice = body.get("tools"), body.get("tool_choice")
    if not isinstance(tools, list) or not tools or choice == "none":
        return None
    if isinstance(choice, dict):
        wanted = (choice.get("function") or {}).get("name")
        found = [tool for tool in tools if tool.get("function", {}).get("name") == wanted]
        return dict(found[0]["function"]) if found else None
    messages = body["messages"]
    answered = bool(messages) and isinstance(messages[-1], dict) and messages[-1].get("role") == "tool"
    return dict(tools[0]["function"]) if choice == "required" or (faults.tool_call and not answered) else None


def _call_pieces(function: JsonObject) -> list[Piece]:
    parameters = function.get("parameters") or {}
    properties = parameters.get("properties") or {}
    given = {name: _example(properties.get(name) or {}) for name in parameters.get("required") or properties}
    arguments = json.dumps(given)
    head = {
        "index": 0,
        "id": secrets.token_hex(16),
        "type": "function",
        "function": {"name": function["name"], "arguments": arguments[:1]},
    }
    pieces = [Piece(arguments[:1], {"tool_calls": [head]})]
    rest = re.findall(r"\w+|\W", arguments[1:])
    return pieces + [Piece(part, {"tool_calls": [{"index": 0, "function": {"arguments": part}}]}) for part in rest]


def _example(schema: JsonObject) -> Any:
    if schema.get("enum"):
        return schema["enum"][0]
    examples = {"integer": 1, "number": 1.5, "boolean": True, "array": [], "object": {}}
    return examples.get(str(schema.get("type")), "Oslo")


def _vector(text: str) -> list[float]:
    digest = hashlib.blake2b(text.encode(), digest_size=4 * EMBEDDING_LENGTH).digest()
    raw = [value / 2**31 for value in struct.unpack(f"<{EMBEDDING_LENGTH}i", digest)]
    norm = math.sqrt(sum(value * value for value in raw)) or 1.0
    return [value / norm for value in raw]
