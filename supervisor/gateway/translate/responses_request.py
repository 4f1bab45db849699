"""From a request of OpenAI's Responses, and what came before it, to a chat. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

import orjson

from supervisor.errors import CallerError
from supervisor.gateway.translate.drafting import DRAFTING, drafting

_DATA_URL = re.compile(r"data:[^;,]+;base64,.+", re.DOTALL)
_TEXTS = frozenset({"input_text", "output_text", "summary_text", "text"})
_SAME = ("model", "temperature", "top_p", "stream", "parallel_tool_calls")
# About OpenAI's own service, or said back to the client only.
_DROPPED = frozenset(
    {
        "store", "metadata", "user", "safety_identifier", "prompt_cache_key", "prompt_cache_retention", "service_tier",
        "include", "truncation", "stream_options", "max_tool_calls", "top_logprobs",
    }
)  # fmt: skip
_TRANSLATED = frozenset(
    {
        "input", "instructions", "previous_response_id", "max_output_tokens", "reasoning", "tools", "tool_choice",
        "text", *DRAFTING, *_SAME,
    }
)  # fmt: skip
_REFUSED = {
    "background": "an answer ends with its connection here",
    "conversation": "chains go by `previous_response_id`",
    "prompt": "there are no stored prompts here",
}


def to_chat(body: dict[str, Any], before: Sequence[dict[str, Any]] = ()) -> dict[str, Any]:
    """The chat that asks the same; ``before``: messages of the chain.

    Raises:
        CallerError: ``invalid_request``, ``url_refused``: something in it can't be asked of an engine.
    """
    for key, why in _REFUSED.items():
        if body.get(key):
            raise _bad(f"`{key}` is not supported: {why}.", key)
    chat = {key: value for key, value in body.items() if key not in _TRANSLATED and key not in _DROPPED}
    chat |= {key: body[key] for key in _SAME if body.get(key) is not None}
    instructions = body.get("instructions")
    system = [{"role": "system", "content": instructions}] if isinstance(instructions, str) and instructions else []
    chat["messages"] = [*system, *before, *messages_of(items_of(body.get("input")))]
    if body.get("max_output_tokens") is not None:
        chat["max_tokens"] = body["max_output_tokens"]
    return {**chat, **_tools(body), **_reasoning(body.get("reasoning")), **_format(body.get("text")), **drafting(body)}


def items_of(given: Any) -> list[dict[str, Any]]:
    """The input as items; a text is one message of the user's.

    Raises:
        CallerError: ``invalid_request``: it is neither.
    """
    if isinstance(given, str):
        return [{"type": "message", "role": "user", "content": given}]
    if not isinstance(given, list):
        raise _bad("`input` must be a text or a list of items.", "input")
    for position, item in enumerate(given):
        if not isinstance(item, dict):
            raise _bad(f"`input[{position}]` must be an object.", f"input[{position}]")
    return [item if "type" in item else {"type": "message", **item} for item in given]


def messages_of(items: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """The items as messages of a chat.

    A run of reasoning, words of the assistant's and calls is one message of the assistant's; its words after a call
    begin another.

    Raises:
        CallerError: ``invalid_request``: an item that can't be put so, by its name.
    """
    made: list[dict[str, Any]] = []
    turn: dict[str, Any] | None = None
    for position, item in enumerate(items):
        where = f"input[{position}]"
        kind, role = item["type"], item.get("role")
        if kind in {"reasoning", "function_call"} or (kind == "message" and role == "assistant"):
            if turn is None or (kind == "message" and "tool_calls" in turn):
                turn = {"role": "assistant", "content": ""}
                made.append(turn)
            _grow(turn, item, where)
            continue
        turn = None
        if kind == "function_call_output":
            output, _ = _content(item.get("output"), "tool", f"{where}.output")
            made.append({"role": "tool", "tool_call_id": str(item.get("call_id") or ""), "content": output})
        elif kind != "message":
            raise _bad(f"`{where}` is an item of type {kind!r}, which can't be put to an engine.", where)
        elif role in {"user", "system", "developer"}:
            made.append(_message(item, "system" if role == "developer" else str(role), where))
        else:
            raise _bad(f"`{where}` has the role {role!r}; taken are user, assistant, system and developer.", where)
    return made


def _grow(turn: dict[str, Any], item: dict[str, Any], where: str) -> None:
    if item["type"] == "message":
        turn["content"] += _content(item.get("content"), "assistant", f"{where}.content")[0]
    elif item["type"] == "reasoning":
        parts = item.get("summary") or item.get("content") or ()
        thought = "".join(str(part.get("text") or "") for part in parts if isinstance(part, dict))
        turn["reasoning_content"] = turn.get("reasoning_content", "") + thought
    else:
        function = {"name": item.get("name"), "arguments": item.get("arguments") or "{}"}
        call = {"id": item.get("call_id") or item.get("id"), "type": "function", "function": function}
        turn.setdefault("tool_calls", []).append(call)


def _message(item: dict[str, Any], role: str, where: str) -> dict[str, Any]:
    text, images = _content(item.get("content"), role, f"{where}.content")
    if not images:
        return {"role": role, "content": text}
    parts = [{"type": "image_url", "image_url": {"url": image}} for image in images]
    return {"role": role, "content": [{"type": "text", "text": text}, *parts] if text else parts}


def _content(content: Any, role: str, where: str) -> tuple[str, list[str]]:
    """Text with nothing between its parts, and pictures, which can only come after it."""
    if isinstance(content, str):
        return content, []
    if content is None:
        return "", []
    if not isinstance(content, list) or not all(isinstance(part, dict) for part in content):
        raise _bad(f"`{where}` must be a text or a list of parts.", where)
    texts: list[str] = []
    images: list[str] = []
    for position, part in enumerate(content):
        place, kind = f"{where}[{position}]", part.get("type")
        if kind in _TEXTS or kind == "refusal":
            if images:
                what = "text" if kind in _TEXTS else "a refusal"
                raise _bad(
                    f"`{place}` is {what} after an image, which a chat can't say: put all text before the images, or "
                    "into a message of its own.",
                    place,
                )
            texts.append(str(part.get("refusal" if kind == "refusal" else "text") or ""))
        elif kind == "input_image":
            images.append(_image(part, role, place))
        else:
            raise _bad(f"`{place}` is a part of type {kind!r}; taken are text, refusals and images.", place)
    return "".join(texts), images


def _image(part: dict[str, Any], role: str, where: str) -> str:
    if role != "user":
        raise _bad(f"`{where}` is an image in a message of the role {role}: only a user's may have one.", where)
    if part.get("file_id"):
        raise _bad(f"`{where}` names a file, and there are none here: send the image as a data URL.", where)
    url = part.get("image_url")
    if not isinstance(url, str) or not url:
        raise _bad(f"`{where}` has no `image_url`: send the image as a data URL.", where)
    if not _DATA_URL.fullmatch(url):
        raise CallerError(
            "url_refused",
            f"`{where}` must be a data URL in base64 (data:image/png;base64,…): nothing is fetched for a client.",
            param=where,
        )
    return url


def _tools(body: dict[str, Any]) -> dict[str, Any]:
    tools, choice = body.get("tools"), body.get("tool_choice")
    if not tools or choice == "none":
        return {}
    if not isinstance(tools, list):
        raise _bad("`tools` must be a list of tools.", "tools")
    made = [_tool(tool, f"tools[{position}]") for position, tool in enumerate(tools)]
    mode = choice if isinstance(choice, str) else "auto"
    if isinstance(choice, dict):
        allowed = choice.get("tools") if choice.get("type") == "allowed_tools" else [choice]
        names = {tool.get("name") for tool in allowed or () if isinstance(tool, dict)}
        made = [tool for tool in made if tool["function"]["name"] in names]
        # llama-server takes a named tool for "auto": one that alone is offered, and required, is the same.
        mode = str(choice.get("mode") or "auto") if choice.get("type") == "allowed_tools" else "required"
        if not made:
            raise _bad("`tool_choice` names no tool that is among `tools`.", "tool_choice")
    return {"tools": made, "tool_choice": mode}


def _tool(tool: Any, where: str) -> dict[str, Any]:
    kind = tool.get("type") if isinstance(tool, dict) else None
    if kind != "function" or not isinstance(tool.get("name"), str):
        raise _bad(f"`{where}` is a tool of type {kind!r}: only functions with a name can be offered here.", where)
    function = {key: tool[key] for key in ("name", "description", "parameters", "strict") if tool.get(key) is not None}
    return {"type": "function", "function": {"parameters": {"type": "object", "properties": {}}, **function}}


def _reasoning(reasoning: Any) -> dict[str, Any]:
    effort = reasoning.get("effort") if isinstance(reasoning, dict) else None
    if not isinstance(effort, str):
        return {}
    if effort == "none":
        return {"chat_template_kwargs": {"enable_thinking": False}}
    return {"reasoning_effort": effort}


def _format(text: Any) -> dict[str, Any]:
    wanted = text.get("format") if isinstance(text, dict) else None
    if not isinstance(wanted, dict):
        return {}
    kind = wanted.get("type")
    if kind == "json_object":
        return {"response_format": {"type": "json_object"}}
    if kind == "json_schema":
        schema = {key: wanted[key] for key in ("name", "schema", "strict") if key in wanted}
        return {"response_format": {"type": "json_schema", "json_schema": schema}}
    return {}


def as_stored(items: Sequence[dict[str, Any]], response_id: str) -> list[dict[str, Any]]:
    """The items as ``input_items`` gives them: each with an id, and content as a list of parts."""
    known = response_id.removeprefix("resp_")
    return [_as_stored(item, f"{known}_in{position}") for position, item in enumerate(items)]


def _as_stored(item: dict[str, Any], known: str) -> dict[str, Any]:
    prefix = {"message": "msg", "function_call": "fc", "function_call_output": "fco", "reasoning": "rs"}
    made = {"id": f"{prefix.get(item['type'], 'item')}_{known}", **item}
    if item["type"] == "message" and isinstance(item.get("content"), str):
        kind = "output_text" if item.get("role") == "assistant" else "input_text"
        made["content"] = [{"type": kind, "text": item["content"]}]
    return made


def chain_messages(records: Iterable[tuple[bytes, bytes]]) -> list[dict[str, Any]]:
    """The messages of a chain's records, oldest first: each one's input items and output items, as stored JSON."""
    made: list[dict[str, Any]] = []
    for given, output in records:
        made += messages_of(orjson.loads(given))
        made += messages_of(orjson.loads(output))
    return made


def _bad(message: str, where: str) -> CallerError:
    return CallerError("invalid_request", message, param=where)
