"""Reads and checks a request's body before anything is started for it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import anyio.to_thread
import orjson
from aiohttp import web

from supervisor.errors import CallerError
from supervisor.units import format_size

# Above this, parsing and encoding take milliseconds: not on the loop.
THREAD_BYTES = 2**20
# A URL's scheme; base64 has no colon. Spaces in front are skipped, as the engine's own reader might.
_SCHEME = re.compile(r"\s*([A-Za-z][A-Za-z0-9+.-]*):")
# A place in a body is told so far, and no further.
_LONGEST_PATH = 200
# Parts of a message that carry media, by what engines accept: an object with the media inside, or the media itself.
_MEDIA = ("image_url", "input_audio", "audio_url", "video_url", "input_video", "input_image", "file")


@dataclass(frozen=True, slots=True)
class Body:
    """A JSON object, its model's name, and whether it is so large that it is handled in a thread."""

    json: dict[str, Any]
    model: str
    large: bool


async def read_body(request: web.Request, limit: int, keys: tuple[str, ...] = ()) -> Body:
    """The body as a JSON object that names a model; ``keys`` may stand for ``model``.

    Raises:
        CallerError: ``body_too_large`` (the limit is on the decompressed size), ``invalid_json``, ``invalid_request``,
            ``model_missing``.
    """
    raw = await read_raw(request, limit)
    large = len(raw) > THREAD_BYTES
    try:
        parsed = await anyio.to_thread.run_sync(orjson.loads, raw) if large else orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        raise CallerError("invalid_json", f"The body is not valid JSON: {error}.", position=error.pos) from error
    if not isinstance(parsed, dict):
        raise CallerError("invalid_request", f"The body must be a JSON object, not {_json_type(parsed)}.")
    model = parsed.get("model") or next((parsed[key] for key in keys if parsed.get(key)), None)
    if not isinstance(model, str) or not model:
        raise CallerError("model_missing", "Say which model: the body needs `model`, a name from /v1/models.")
    stream = parsed.get("stream")
    if stream is not None and not isinstance(stream, bool):
        raise CallerError("invalid_request", "`stream` must be true or false.", param="stream")
    return Body(parsed, model, large)


async def encode(body: dict[str, Any], *, large: bool) -> bytes:
    """The body as bytes for the engine.

    Raises:
        CallerError: ``invalid_request``: nested more deeply than can be written again.
    """
    try:
        return await anyio.to_thread.run_sync(orjson.dumps, body) if large else orjson.dumps(body)
    except TypeError as error:  # what was read as JSON fails to be written only by its depth
        raise CallerError("invalid_request", "The body is nested too deeply: 250 levels are taken.") from error


def require_messages(body: dict[str, Any]) -> None:
    """A chat's messages: a list of objects, without URLs that the engine would have to fetch.

    Raises:
        CallerError: ``invalid_request``, ``url_refused``.
    """
    if not isinstance(body.get("tools") or [], list):
        raise CallerError("invalid_request", "`tools` must be a list of tools.", param="tools")
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        raise CallerError("invalid_request", "`messages` must be a list with at least one message.", param="messages")
    for position, message in enumerate(messages):
        where = f"messages[{position}]"
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise CallerError("invalid_request", f"`{where}` must be an object with `role` and `content`.", param=where)
        _refuse_urls(message.get("content"), f"{where}.content")


def require_prompt(body: dict[str, Any]) -> None:
    """A text completion's prompt.

    Raises:
        CallerError: ``invalid_request``, ``url_refused``.
    """
    _require_text(body, "prompt")


def require_input(body: dict[str, Any]) -> None:
    """What is to be embedded.

    Raises:
        CallerError: ``invalid_request``, ``url_refused``.
    """
    _require_text(body, "input")


def require_documents(body: dict[str, Any]) -> None:
    """What is to be ranked, and by what.

    Raises:
        CallerError: ``invalid_request``.
    """
    if not isinstance(body.get("query"), str):
        raise CallerError("invalid_request", "`query` must be a text.", param="query")
    documents = body.get("documents", body.get("texts"))
    if not isinstance(documents, list) or not documents:
        raise CallerError("invalid_request", "`documents` must be a list with at least one text.", param="documents")


def refuse_media(value: Any, where: str = "the body") -> None:
    """Refuse whatever an engine would fetch, at any place of a body whose form is not known.

    Raises:
        CallerError: ``url_refused``.
    """
    todo = [(value, where)]
    while todo:  # no recursion: what can be read may be nested more deeply than Python calls itself
        value, where = todo.pop()
        if isinstance(value, list):
            todo.extend((inside, where) for inside in value if isinstance(inside, list | dict))
        elif isinstance(value, dict):
            _refuse_urls([value], where)
            source = value.get("source")
            if isinstance(source, dict) and isinstance(source.get("url"), str):
                _refuse_strings(source["url"], f"{where}.source.url")
            for key, inside in value.items():
                if key == "multimodal_data":
                    _refuse_strings(inside, f"{where}.{key}")
                if isinstance(inside, list | dict):
                    todo.append((inside, f"{where}.{key}" if len(where) < _LONGEST_PATH else where))


def media_in(chat: dict[str, Any]) -> str | None:
    """The place of the first picture, sound or file among a chat's messages; None: it has none."""
    messages = chat.get("messages")
    for position, message in enumerate(messages if isinstance(messages, list) else ()):
        content = message.get("content") if isinstance(message, dict) else None
        for place, part in enumerate(content if isinstance(content, list) else ()):
            if isinstance(part, dict) and any(part.get(key) is not None for key in _MEDIA):
                return f"messages[{position}].content[{place}]"
    return None


@contextmanager
def well_formed() -> Iterator[None]:
    """The block reads a client's body, whose fields may be of any kind.

    Raises:
        CallerError: ``invalid_request``: one is of a kind that it can't be of.
    """
    try:
        yield
    except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError) as error:
        raise CallerError(
            "invalid_request", "A field of the body has a value of a kind that it can't have, or is nested too deeply."
        ) from error


def side_by_side(body: dict[str, Any]) -> bool:
    """Whether the answer has several choices, whose chunks mix."""
    prompt = body.get("prompt")
    several = isinstance(prompt, list) and len(prompt) > 1 and not isinstance(prompt[0], int)
    return several or body.get("n") not in (None, 1)


async def read_raw(request: web.Request, limit: int) -> bytes:
    """The body's bytes.

    Raises:
        CallerError: ``body_too_large``, ``invalid_request``.
    """
    if request.content_length is not None and request.content_length > limit:
        raise _too_large(limit)
    try:
        return await request.read()
    except web.HTTPRequestEntityTooLarge as error:
        raise _too_large(limit) from error
    except (web.RequestPayloadError, ValueError) as error:
        raise CallerError("invalid_request", "The body could not be read: it is cut short or badly encoded.") from error


def _too_large(limit: int) -> CallerError:
    return CallerError("body_too_large", f"The body is larger than {format_size(limit)}, the most that is taken.")


def _require_text(body: dict[str, Any], key: str) -> None:
    value = body.get(key)
    if value is None or value == []:
        raise CallerError("invalid_request", f"`{key}` is missing: a text, or a list of them.", param=key)
    if not isinstance(value, str | list | dict):
        raise CallerError("invalid_request", f"`{key}` must be a text or a list, not {_json_type(value)}.", param=key)
    for position, item in enumerate(value if isinstance(value, list) else [value]):
        if isinstance(item, dict):
            _refuse_strings(item.get("multimodal_data"), f"{key}[{position}].multimodal_data")
            _refuse_urls([item], f"{key}[{position}]")
            _refuse_urls(item.get("content"), f"{key}[{position}].content")


def _refuse_urls(parts: Any, where: str) -> None:
    if not isinstance(parts, list):
        return
    for position, part in enumerate(parts):
        if isinstance(part, dict):
            for key in _MEDIA:
                if key in part:
                    _refuse_strings(part[key], f"{where}[{position}].{key}")


def _refuse_strings(media: Any, where: str) -> None:
    """Only data that is in the request itself passes: engines would fetch the rest, from the network or the disk."""
    for name, value in _strings(media, ""):
        scheme = _SCHEME.match(value[:64])
        is_url = name in {"", "url"} and not where.endswith("multimodal_data")
        if (scheme is None and not is_url) or (scheme is not None and scheme[1].lower() == "data"):
            continue
        raise CallerError(
            "url_refused",
            f"`{where}` is a URL or a path, and engines here fetch nothing. Send the content itself, as a data: URL.",
            param=where,
        )


def _strings(value: Any, name: str) -> Iterator[tuple[str, str]]:
    todo = [(value, name)]
    while todo:
        value, name = todo.pop()
        if isinstance(value, str):
            yield name, value
        elif isinstance(value, dict):
            todo.extend((inside, key) for key, inside in value.items())
        elif isinstance(value, list):
            todo.extend((inside, name) for inside in value)


def _json_type(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return "null" if value is None else "a boolean"
    names: dict[type, str] = {list: "a list", dict: "an object", str: "a text"}
    return names.get(type(value), "a number")
