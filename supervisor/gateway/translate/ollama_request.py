"""From requests of Ollama's API to what engines are asked. Pure."""

from __future__ import annotations

from collections import deque
from typing import Any

import orjson

from supervisor.errors import CallerError

_TAG = ":latest"
# Ollama's name for an option, and a chat's; where they are the same, the engine's own name.
_OPTIONS = {
    **{name: name for name in ("temperature", "top_p", "top_k", "min_p", "typical_p", "seed", "stop")},
    **{name: name for name in ("repeat_penalty", "repeat_last_n", "presence_penalty", "frequency_penalty")},
    **{name: name for name in ("mirostat", "mirostat_tau", "mirostat_eta")},
}
_PLAIN = ("model", "logprobs", "top_logprobs")


def spellings(name: str) -> tuple[str, ...]:
    """The names that may be meant: ``latest`` is the tag of whoever says none."""
    if name.endswith(_TAG):
        return (name, name.removesuffix(_TAG))
    return (name,) if ":" in name.rpartition("/")[2] else (name, name + _TAG)


def tagged(model_id: str) -> str:
    """A model's name as Ollama lists it."""
    return model_id if ":" in model_id.rpartition("/")[2] else model_id + _TAG


def chat_of_chat(body: dict[str, Any]) -> dict[str, Any]:
    """The chat that ``/api/chat`` asks.

    Raises:
        CallerError: ``invalid_request``: something in it can't be asked of an engine.
    """
    chat = _common(body)
    chat["messages"] = _messages(body.get("messages"))
    if body.get("tools"):
        chat["tools"] = body["tools"]
    return chat


def chat_of_generate(body: dict[str, Any]) -> dict[str, Any]:
    """The chat that ``/api/generate`` asks, unless it is raw.

    Raises:
        CallerError: as above.
    """
    _refuse(body, "template", "the model's own template is used")
    system = [{"role": "system", "content": body["system"]}] if body.get("system") else []
    message = {"role": "user", "content": body.get("prompt") or "", "images": body.get("images")}
    return {**_common(body), "messages": _messages([*system, message])}


def completion_of_generate(body: dict[str, Any]) -> dict[str, Any]:
    """The text completion that a raw ``/api/generate`` asks.

    Raises:
        CallerError: as above.
    """
    for key in ("images", "system", "template"):
        _refuse(body, key, "a raw prompt goes to the model as it is")
    return {**_common(body), "prompt": body["prompt"]}


def is_load(body: dict[str, Any], key: str) -> bool:
    """Whether nothing is asked but that the model be loaded, or unloaded."""
    return not body.get(key) and not body.get("images")


def _common(body: dict[str, Any]) -> dict[str, Any]:
    _refuse(body, "suffix", "filling in the middle is asked of the engine itself")
    made: dict[str, Any] = {key: body[key] for key in _PLAIN if body.get(key) is not None}
    made["stream"] = body.get("stream") is not False
    options = body.get("options") or {}
    if not isinstance(options, dict):
        raise _bad("`options` must be an object.", "options")
    made |= {_OPTIONS[name]: value for name, value in options.items() if name in _OPTIONS and value is not None}
    limit = options.get("num_predict")
    if isinstance(limit, int) and limit >= 0:
        made["max_tokens"] = limit
    return {**made, **_format(body.get("format")), **_thinking(body.get("think"))}


def _format(wanted: Any) -> dict[str, Any]:
    if wanted in (None, ""):
        return {}
    if wanted == "json":
        return {"response_format": {"type": "json_object"}}
    if isinstance(wanted, dict):
        schema = {"name": "answer", "schema": wanted}
        return {"response_format": {"type": "json_schema", "json_schema": schema}}
    raise _bad('`format` must be "json" or a JSON schema.', "format")


def _thinking(think: Any) -> dict[str, Any]:
    if think is None:
        return {}
    if not isinstance(think, bool | str):
        raise _bad("`think` must be true, false, or a level in words.", "think")
    said = {"chat_template_kwargs": {"enable_thinking": bool(think)}}
    return {**said, "reasoning_effort": think} if isinstance(think, str) else said


def _messages(messages: Any) -> list[dict[str, Any]]:
    if not isinstance(messages, list):
        raise _bad("`messages` must be a list of messages.", "messages")
    calls: deque[tuple[str, Any]] = deque()
    made: list[dict[str, Any]] = []
    for position, message in enumerate(messages):
        where = f"messages[{position}]"
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise _bad(f"`{where}` must be an object with `role` and `content`.", where)
        made.append(_message(message, where, calls))
    return made


def _message(message: dict[str, Any], where: str, calls: deque[tuple[str, Any]]) -> dict[str, Any]:
    role, content = message["role"], message.get("content") or ""
    if role == "tool":
        return {"role": "tool", "tool_call_id": _answered(message, calls), "content": content}
    made: dict[str, Any] = {"role": role, "content": content}
    images = message.get("images")
    if images:
        made["content"] = [*_pictures(images, where), {"type": "text", "text": content}]
    if message.get("thinking"):
        made["reasoning_content"] = message["thinking"]
    if message.get("tool_calls"):
        made["tool_calls"] = [_call(call, where, calls) for call in message["tool_calls"]]
    return made


def _call(call: Any, where: str, calls: deque[tuple[str, Any]]) -> dict[str, Any]:
    """Ollama's calls need no id; a chat's do, so that results find them."""
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict):
        raise _bad(f"`{where}.tool_calls` must be objects with `function`.", where)
    known = str(call.get("id") or f"call_{where}_{len(calls)}")
    calls.append((known, function.get("name")))
    arguments = function.get("arguments")
    text = arguments if isinstance(arguments, str) else orjson.dumps(arguments or {}).decode()
    return {"id": known, "type": "function", "function": {"name": function.get("name"), "arguments": text}}


def _answered(message: dict[str, Any], calls: deque[tuple[str, Any]]) -> str:
    """The id of the call that this result belongs to: as said, else the first of its tool's that has none yet."""
    if message.get("tool_call_id"):
        return str(message["tool_call_id"])
    name = message.get("tool_name") or message.get("name")
    found = next((call for call in calls if name in (None, call[1])), None)
    if found is None:
        return "call_unknown"
    calls.remove(found)
    return found[0]


def _pictures(images: Any, where: str) -> list[dict[str, Any]]:
    if not isinstance(images, list) or not all(isinstance(image, str) for image in images):
        raise _bad(f"`{where}.images` must be a list of pictures in base64.", where)
    return [{"type": "image_url", "image_url": {"url": _data_url(image)}} for image in images]


def _data_url(image: str) -> str:
    """Ollama says nothing of the kind of picture; the first bytes do."""
    kinds = {"iVBOR": "png", "R0lGO": "gif", "UklGR": "webp"}
    return f"data:image/{kinds.get(image[:5], 'jpeg')};base64,{image}"


def _refuse(body: dict[str, Any], key: str, why: str) -> None:
    if body.get(key):
        raise _bad(f"`{key}` is not supported: {why}.", key)


def _bad(message: str, where: str) -> CallerError:
    return CallerError("invalid_request", message, param=where)
