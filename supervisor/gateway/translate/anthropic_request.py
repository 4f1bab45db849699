"""From a request of Anthropic's Messages to a chat. Pure.

What a chat can't say is refused by name, before anything starts; what only concerns Anthropic's own service is dropped;
what neither knows goes to the engine as it came.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import orjson

from supervisor.errors import CallerError
from supervisor.gateway.translate.drafting import DRAFTING, drafting

# Said to Anthropic's service, and nothing to an engine.
_DROPPED = frozenset(
    {
        "metadata", "service_tier", "inference_geo", "speed", "diagnostics", "cache_control", "context_management",
        "betas", "user_profile_id", "workspace_id",
    }
)  # fmt: skip
# Each would make somebody fetch or run something.
_REFUSED = ("mcp_servers", "container")
_SAME = ("max_tokens", "temperature", "top_p", "top_k", "stream", "model")
_TRANSLATED = frozenset(
    {"messages", "system", "stop_sequences", "tools", "tool_choice", "thinking", "output_config", *DRAFTING, *_SAME}
)
_CHOICES = {"auto": "auto", "any": "required", "none": "none"}


def to_chat(body: dict[str, Any]) -> dict[str, Any]:
    """The chat that asks the same.

    Raises:
        CallerError: ``invalid_request``, ``url_refused``: something in it can't be asked of an engine.
    """
    for key in _REFUSED:
        if body.get(key):
            raise _bad(f"`{key}` is not supported: engines here fetch and run nothing for a client.", key)
    chat = {key: value for key, value in body.items() if key not in _TRANSLATED and key not in _DROPPED}
    chat |= {key: body[key] for key in _SAME if body.get(key) is not None}
    chat["messages"] = [*_system(body.get("system")), *_messages(body.get("messages"))]
    if body.get("stop_sequences"):
        chat["stop"] = body["stop_sequences"]
    chat |= _tools(body)
    chat |= _thinking(body, chat)
    chat |= _format(body.get("output_config"))
    return chat | drafting(body)


def shows_thinking(body: dict[str, Any]) -> bool:
    """Whether the answer has thinking blocks: only for those who asked for them."""
    thinking = body.get("thinking")
    if not isinstance(thinking, dict) or thinking.get("display") == "omitted":
        return False
    return thinking.get("type") in {"enabled", "adaptive"}


def _system(system: Any) -> list[dict[str, Any]]:
    if system is None or system in ("", []):
        return []
    return [{"role": "system", "content": _plain(system, "system")}]


def _messages(messages: Any) -> Iterator[dict[str, Any]]:
    if not isinstance(messages, list) or not messages:
        raise _bad("`messages` must be a list with at least one message.", "messages")
    for position, message in enumerate(messages):
        where = f"messages[{position}]"
        role = message.get("role") if isinstance(message, dict) else None
        content = message.get("content") if isinstance(message, dict) else None
        if role == "user":
            yield from _user(content, f"{where}.content")
        elif role == "assistant":
            yield _assistant(content, f"{where}.content")
        elif role == "system":
            yield {"role": "system", "content": _plain(content, f"{where}.content")}
        else:
            raise _bad(f"`{where}` must be an object with `role` user or assistant, and `content`.", where)


def _user(content: Any, where: str) -> Iterator[dict[str, Any]]:
    """Results of tools become messages of their own, in order; what stands between them stays together."""
    if isinstance(content, str):
        yield {"role": "user", "content": content}
        return
    parts: list[dict[str, Any]] = []
    given = False
    for position, block in enumerate(_blocks(content, where)):
        place = f"{where}[{position}]"
        if block.get("type") == "tool_result":
            if parts:
                yield _user_message(parts)
                parts = []
            text, parts = _result(block, place)
            yield {"role": "tool", "tool_call_id": str(block.get("tool_use_id") or ""), "content": text}
            given = True
        else:
            parts.append(_part(block, place))
    if parts or not given:
        yield _user_message(parts)


def _user_message(parts: list[dict[str, Any]]) -> dict[str, Any]:
    """Parts that are all text need no list: not every template takes one."""
    if all(part["type"] == "text" for part in parts):
        return {"role": "user", "content": "\n".join(part["text"] for part in parts)}
    return {"role": "user", "content": parts}


def _result(block: dict[str, Any], where: str) -> tuple[str, list[dict[str, Any]]]:
    """The text of a tool's result, and its pictures, which a chat can only hold in a message of the user's."""
    content = block.get("content")
    if content is None or isinstance(content, str):
        text, pictures = content or "", []
    else:
        parts = [_part(inside, f"{where}.content[{at}]") for at, inside in enumerate(_blocks(content, where))]
        text = "\n".join(part["text"] for part in parts if part["type"] == "text")
        pictures = [part for part in parts if part["type"] != "text"]
    return (f"Error: {text}" if block.get("is_error") else text), pictures


def _assistant(content: Any, where: str) -> dict[str, Any]:
    if isinstance(content, str):
        return {"role": "assistant", "content": content}
    texts: list[str] = []
    thoughts: list[str] = []
    calls: list[dict[str, Any]] = []
    for position, block in enumerate(_blocks(content, where)):
        kind = block.get("type")
        if kind == "text":
            texts.append(_text(block, f"{where}[{position}]"))
        elif kind == "thinking":
            thoughts.append(str(block.get("thinking") or ""))
        elif kind == "tool_use":
            function = {"name": block.get("name"), "arguments": orjson.dumps(block.get("input") or {}).decode()}
            calls.append({"id": block.get("id"), "type": "function", "function": function})
        elif kind != "redacted_thinking":
            raise _unknown(kind, f"{where}[{position}]", "text, thinking and tool_use")
    message: dict[str, Any] = {"role": "assistant", "content": "".join(texts)}
    if thoughts:
        message["reasoning_content"] = "".join(thoughts)
    if calls:
        message["tool_calls"] = calls
    return message


def _part(block: dict[str, Any], where: str) -> dict[str, Any]:
    kind = block.get("type")
    if kind == "text":
        return {"type": "text", "text": _text(block, where)}
    source = block.get("source")
    if kind == "image":
        return {"type": "image_url", "image_url": {"url": _picture(source, f"{where}.source")}}
    if kind == "document" and isinstance(source, dict) and source.get("type") == "text":
        title = f"{block['title']}\n" if isinstance(block.get("title"), str) else ""
        return {"type": "text", "text": f"{title}{source.get('data') or ''}"}
    if kind == "document":
        raise _bad(f"`{where}` is a document that no engine here reads: send its text.", where)
    raise _unknown(kind, where, "text, image, tool_result, and documents of plain text")


def _picture(source: Any, where: str) -> str:
    kind = source.get("type") if isinstance(source, dict) else None
    if kind == "base64" and isinstance(source.get("data"), str) and isinstance(source.get("media_type"), str):
        return f"data:{source['media_type']};base64,{source['data']}"
    if kind == "url":
        if str(source.get("url")).startswith("data:"):
            return str(source["url"])
        raise CallerError(
            "url_refused",
            f"`{where}` is a URL, and engines here fetch nothing. Send the picture itself, as base64.",
            param=where,
        )
    raise _bad(f"`{where}` must be of type base64, with `media_type` and `data`.", where)


def _tools(body: dict[str, Any]) -> dict[str, Any]:
    tools = body.get("tools")
    if not tools:
        return {}
    if not isinstance(tools, list):
        raise _bad("`tools` must be a list of tools.", "tools")
    made: dict[str, Any] = {"tools": [_tool(tool, f"tools[{position}]") for position, tool in enumerate(tools)]}
    choice = body.get("tool_choice")
    if choice is None:
        return made
    kind = choice.get("type") if isinstance(choice, dict) else None
    if kind == "tool":
        # llama-server takes a named tool for "auto": one that alone is offered, and required, is the same.
        named = [tool for tool in made["tools"] if tool["function"]["name"] == choice.get("name")]
        if not named:
            raise _bad("`tool_choice` names a tool that is not among `tools`.", "tool_choice")
        made = {"tools": named, "tool_choice": "required"}
    elif kind in _CHOICES:
        made["tool_choice"] = _CHOICES[kind]
    else:
        raise _bad("`tool_choice` must be an object of type auto, any, tool or none.", "tool_choice")
    if choice.get("disable_parallel_tool_use"):
        made["parallel_tool_calls"] = False
    return made


def _tool(tool: Any, where: str) -> dict[str, Any]:
    if not isinstance(tool, dict) or not isinstance(tool.get("name"), str):
        raise _bad(f"`{where}` must be an object with `name` and `input_schema`.", where)
    if tool.get("type") not in {None, "custom"}:
        raise _bad(
            f"`{where}` is a tool of Anthropic's own, {tool['type']!r}: give it as a tool with `input_schema`.", where
        )
    function = {"name": tool["name"], "parameters": tool.get("input_schema") or {"type": "object", "properties": {}}}
    if isinstance(tool.get("description"), str):
        function["description"] = tool["description"]
    return {"type": "function", "function": function}


def _thinking(body: dict[str, Any], chat: dict[str, Any]) -> dict[str, Any]:
    thinking = body.get("thinking")
    if thinking is None:
        return {}
    kind = thinking.get("type") if isinstance(thinking, dict) else None
    if kind not in {"enabled", "disabled", "adaptive"}:
        raise _bad("`thinking` must be an object of type enabled, adaptive or disabled.", "thinking")
    given = chat.get("chat_template_kwargs")
    # The name that templates of models which can think or not go by; others don't read it.
    said = {"enable_thinking": kind != "disabled"}
    return {"chat_template_kwargs": {**said, **given} if isinstance(given, dict) else said}


def _format(config: Any) -> dict[str, Any]:
    wished = config.get("format") if isinstance(config, dict) else None
    if not isinstance(wished, dict) or wished.get("type") != "json_schema":
        return {}
    schema = {"name": "answer", "schema": wished.get("schema")}
    return {"response_format": {"type": "json_schema", "json_schema": schema}}


def _blocks(content: Any, where: str) -> list[dict[str, Any]]:
    if not isinstance(content, list) or not all(isinstance(block, dict) for block in content):
        raise _bad(f"`{where}` must be a text or a list of blocks.", where)
    return content


def _plain(content: Any, where: str) -> str:
    """Content that can only be text."""
    if isinstance(content, str):
        return content
    return "\n".join(_text(block, f"{where}[{at}]") for at, block in enumerate(_blocks(content, where)))


def _text(block: dict[str, Any], where: str) -> str:
    if block.get("type") != "text" or not isinstance(block.get("text"), str):
        raise _bad(f"`{where}` must be a block of type text with `text`.", where)
    return str(block["text"])


def _unknown(kind: Any, where: str, taken: str) -> CallerError:
    return _bad(f"`{where}` is a block of type {kind!r}, which can't be put to an engine; taken are {taken}.", where)


def _bad(message: str, where: str) -> CallerError:
    return CallerError("invalid_request", message, param=where)
