"""Checks a conversation, its tools and the form of its answer. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, Literal

from engines.mlx.server.asked import Chat, Structure, Tools
from engines.mlx.server.fields import Fields
from engines.mlx.server.problems import RequestError

MAX_MESSAGES = 10_000
MAX_TOOLS = 256
_ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant", "tool": "tool"}
_TEXT_PARTS = {"text": "text", "input_text": "text", "output_text": "text", "refusal": "refusal"}
_NAME = re.compile(r"[\w.:/-]{1,128}")
_PASSED = ("name", "tool_call_id", "reasoning_content")
# A template gets these from us, or they change what it is.
_OWN_VARIABLES = frozenset(
    {
        "messages",
        "conversation",
        "tools",
        "documents",
        "chat_template",
        "add_generation_prompt",
        "continue_final_message",
        "tokenize",
        "padding",
        "truncation",
        "max_length",
        "return_tensors",
        "return_dict",
        "return_assistant_tokens_mask",
        "tokenizer_kwargs",
        "kwargs",
    }
)


def read_chat(fields: Fields) -> Chat:
    """The conversation of a body.

    Raises:
        RequestError: it can't be put into a template.
    """
    messages = fields.list("messages")
    if not messages:
        raise fields.wrong("messages", "must be a list with at least one message")
    if len(messages) > MAX_MESSAGES:
        raise RequestError(f"`messages` holds {len(messages)}; {MAX_MESSAGES} are the most.", param="messages")
    checked = tuple(_message(message, f"messages[{place}].") for place, message in enumerate(messages))
    tools = _tools(fields)
    structure = _structure(fields)
    if structure is not None and tools.offered and tools.choice == "required":
        raise RequestError("an answer can't be both a call that is required and of a `response_format`.")
    last = checked[-1]
    return Chat(
        messages=checked,
        tools=tools,
        structure=structure,
        continues=last["role"] == "assistant" and not last.get("tool_calls"),
        variables=_variables(fields),
    )


def _message(message: object, where: str) -> dict[str, Any]:
    if not isinstance(message, dict):
        raise RequestError(f"`{where[:-1]}` must be an object.", param=where[:-1])
    fields = Fields(message, where)
    role = message.get("role")
    if not isinstance(role, str) or role not in _ROLES:
        raise fields.wrong("role", f"must be one of {', '.join(_ROLES)}")
    checked: dict[str, Any] = {"role": _ROLES[role], "content": _content(fields)}
    for key in _PASSED:
        if (text := fields.text(key)) is not None:
            checked[key] = text
    calls = fields.list("tool_calls")
    if calls:
        checked["tool_calls"] = [_call(call, f"{where}tool_calls[{place}].") for place, call in enumerate(calls)]
    return checked


def _content(fields: Fields) -> str:
    """The text of a message; parts are joined with nothing between."""
    value = fields.raw("content")
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    if not isinstance(value, list):
        raise fields.wrong("content", "must be a text, or a list of parts")
    return "".join(_part(part, f"{fields.name('content')}[{place}]") for place, part in enumerate(value))


def _part(part: object, where: str) -> str:
    if isinstance(part, str):
        return part
    kind = part.get("type") if isinstance(part, dict) else None
    if not isinstance(part, dict) or not isinstance(kind, str):
        raise RequestError(f"`{where}` must be an object with a type.", param=where)
    if kind not in _TEXT_PARTS:
        raise RequestError(
            f"`{where}` is of type {kind[:40]!r}, and this model reads text only: leave it out, or ask a model that "
            "reads it.",
            param=where,
        )
    text = part.get(_TEXT_PARTS[kind])
    if not isinstance(text, str):
        raise RequestError(f"`{where}.{_TEXT_PARTS[kind]}` must be a string.", param=where)
    return text


def _call(call: object, where: str) -> dict[str, Any]:
    """A call of an earlier turn; templates take its arguments as an object."""
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(call, dict) or not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise RequestError(f"`{where}function.name` must be a string.", param=where[:-1])
    given = function.get("arguments")
    arguments = _object_of(given) if isinstance(given, str) else given
    if arguments is not None and not isinstance(arguments, dict | str):
        raise RequestError(f"`{where}function.arguments` must be a JSON object as a string.", param=where[:-1])
    identity = call.get("id")
    made: dict[str, Any] = {"type": "function", "function": {"name": function["name"], "arguments": arguments or {}}}
    if isinstance(identity, str):
        made["id"] = identity
    return made


def _object_of(text: str) -> dict[str, Any] | str:
    try:
        value = json.loads(text) if text.strip() else {}
    except (ValueError, RecursionError):
        return text
    return value if isinstance(value, dict) else text


def _tools(fields: Fields) -> Tools:
    tools = fields.list("tools") or []
    if len(tools) > MAX_TOOLS:
        raise RequestError(f"`tools` holds {len(tools)}; {MAX_TOOLS} are the most.", param="tools")
    offered = tuple(_tool(tool, f"tools[{place}].") for place, tool in enumerate(tools))
    names = [tool["function"]["name"] for tool in offered]
    choice = fields.raw("tool_choice")
    if choice is None or choice == "auto":
        return Tools(offered, parallel=fields.flag("parallel_tool_calls", default=True))
    if choice == "none":
        return Tools()
    if choice == "required" and offered:
        return Tools(offered, "required", parallel=fields.flag("parallel_tool_calls", default=True))
    function = choice.get("function") if isinstance(choice, dict) else None
    name = function.get("name") if isinstance(function, dict) else None
    if name in names:
        one = tuple(tool for tool in offered if tool["function"]["name"] == name)
        return Tools(one, "required", name, parallel=False)
    raise fields.wrong("tool_choice", "must be auto, none, required (with tools), or name one of the tools")


def _tool(tool: object, where: str) -> Mapping[str, Any]:
    function = tool.get("function") if isinstance(tool, dict) else None
    if not isinstance(tool, dict) or tool.get("type", "function") != "function" or not isinstance(function, dict):
        raise RequestError(f"`{where[:-1]}` must be of type function, with a function inside.", param=where[:-1])
    fields = Fields(function, f"{where}function.")
    name = fields.text("name")
    if name is None or not _NAME.fullmatch(name):
        raise fields.wrong("name", "must be a name of letters, digits, dots, colons, slashes, _ and -")
    fields.text("description")
    fields.object("parameters")
    return {"type": "function", "function": function}


def _structure(fields: Fields) -> Structure | None:
    """What ``response_format`` asks for; a bare ``json_schema`` at the top is taken too."""
    form = fields.object("response_format")
    if form is None:
        bare = fields.object("json_schema")
        return None if bare is None else Structure(bare)
    inner = Fields(form, "response_format.")
    kind: Literal["text", "json_object", "json_schema"] | Any = form.get("type")
    if kind == "text":
        return None
    if kind == "json_object":
        return Structure(inner.object("schema"))
    if kind == "json_schema":
        named = inner.object("json_schema")
        schema = Fields(named or form, "response_format.json_schema.").object("schema")
        if schema is None:
            raise RequestError("`response_format.json_schema.schema` must be an object.", param="response_format")
        return Structure(schema)
    raise inner.wrong("type", "must be text, json_object or json_schema")


def _variables(fields: Fields) -> Mapping[str, Any]:
    """More values for the template; names that it gets from us are refused."""
    given = dict(fields.object("chat_template_kwargs") or {})
    if taken := sorted(_OWN_VARIABLES & given.keys()):
        raise RequestError(f"`chat_template_kwargs` may not hold {', '.join(taken)}.", param="chat_template_kwargs")
    thinking = fields.raw("enable_thinking")
    if isinstance(thinking, bool):
        given.setdefault("enable_thinking", thinking)
    return given
